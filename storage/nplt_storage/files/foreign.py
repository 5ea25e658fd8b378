"""Converts a conversation that another program saved as one JSON document: in a shape of
its own, or one of ours that it laid out anew.

    {"session_id": …, "messages": [{"role", "content", "timestamp",
      "tool_calls": [{"tool_name", "arguments", "result", "status", …}],
      "metadata"}], "created_at": …, "updated_at": …}

Pure functions: bytes in, header and entries out. Times without a zone are UTC; one
that can't be read, or is the first instant there is, becomes the one before it. A
turn is a user's message and the answers up to the next one; a turn without a final
answer is ended, so that no old prompt runs again. Values that JSON readers do not
agree on (NaN, lone surrogates, huge integers) are replaced; the caller keeps the
original file.
"""

from __future__ import annotations

import codecs
import json
import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final
from zlib import crc32

import orjson
from msgspec import Struct

from nplt_storage.codec import (
    BadLine,
    crc_suffix,
    decode_verified,
    encode_line,
    peek_kind,
    peek_seq,
)
from nplt_storage.entries import (
    UNSTAMPED,
    DebugEntry,
    Entry,
    FaultEntry,
    ModelInputEntry,
    ModelOutputEntry,
    SystemInstructionEntry,
    ToolCallRequest,
    ToolCallResult,
    ToolResultsEntry,
    ToolStatus,
)
from nplt_storage.errors import BadEntry
from nplt_storage.files.format import (
    BadHeader,
    Header,
    LaterFormat,
    decode_header,
    empty_tail,
    encode_header,
)
from nplt_storage.ids import is_session_id
from nplt_storage.json_values import INTEGER_MAX, INTEGER_MIN, JsonObject, JsonValue

# ------------------------------------------------------------------------------
# Normalizing one message
#
# An odd message does not make the document unusable. `role` and `content` become
# text; a value that had to be changed is kept in `metadata` as `imported_…`, shortened
# if it is large.

_KEYS: Final = frozenset(["role", "content", "timestamp", "tool_calls", "metadata"])
_KEPT_LETTERS_MAX: Final = 16 * 1024
NO_ROLE: Final = "message"
"""No program calls a role that: it is taken in like every role nobody knows."""


def why_unusable(message: Any) -> str | None:
    if not isinstance(message, dict):
        return "is no JSON object"
    if "role" not in message and "content" not in message:
        return "has neither a role nor a content"
    return None


def regular(message: dict[str, Any], time_of: Callable[[Any], datetime | None]) -> dict[str, Any]:
    """With `metadata` that holds all other keys too."""
    role, content = message.get("role"), message.get("content")
    calls, metadata = message.get("tool_calls"), message.get("metadata")
    kept: dict[str, Any] = {}
    if not isinstance(role, str) or not role:
        kept["role"], role = role, NO_ROLE
    if not isinstance(content, str):
        kept["content"], content = content, _text_of(content)
    if time_of(message.get("timestamp")) is None:
        kept["timestamp"] = message.get("timestamp")
    if not isinstance(calls, list):
        kept["tool_calls"] = calls
    if not isinstance(metadata, dict):
        kept["metadata"], metadata = metadata, {}
    others = {name: value for name, value in message.items() if name not in _KEYS}
    odd = {f"imported_{name}": _cut(value) for name, value in kept.items() if value is not None}
    return message | {"role": role, "content": content, "metadata": others | metadata | odd}


def _text_of(content: Any) -> str:
    """Of a list of parts, those that are text; of anything else, its JSON."""
    if content is None:
        return ""
    parts = content if isinstance(content, list) else [content]
    texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
    found = [text for text in texts if isinstance(text, str)]
    if found or isinstance(content, list):
        return "\n".join(found)
    return as_text(content)


def _cut(value: Any) -> Any:
    text = as_text(value)
    return value if len(text) <= _KEPT_LETTERS_MAX else text[:_KEPT_LETTERS_MAX] + "…"


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


_DOCUMENT_KEYS = frozenset(["session_id", "messages", "created_at", "updated_at"])
_OUR_KEYS = frozenset(["format", "crc", "head_seq", "epoch_offset"])
_STATUSES: dict[str, ToolStatus] = {
    "success": "success",
    "completed": "success",
    "ok": "success",
    "skipped": "skipped",
    "pending": "skipped",
}


_INTEGER_LETTERS_MAX = 20
"""A longer one is beyond 64 bits, and Python refuses to read thousands of digits."""


class NotForeign(Exception):
    """Nothing that can be taken in: the caller leaves the file alone."""


def read_foreign(
    data: bytes, session_id: str, *, new_id: Callable[[], str]
) -> tuple[Header, list[Entry]]:
    document = load_document(data)
    messages = document.get("messages") if isinstance(document, dict) else None
    if not isinstance(messages, list):
        raise NotForeign("it holds no list of messages")
    for place, message in enumerate(messages, 1):
        if wrong := why_unusable(message):
            raise NotForeign(f"message {place} of {len(messages)} {wrong}")
    if _OUR_KEYS & document.keys() or any(_OUR_KEYS & message.keys() for message in messages):
        return _read_ours(data, session_id)
    if (named_id(document) or session_id) != session_id:
        raise NotForeign("it names another conversation")
    first = messages[0].get("timestamp") if messages else None
    created_at = _time(document.get("created_at")) or _time(first) or datetime.fromtimestamp(0, UTC)
    extra = {name: value for name, value in document.items() if name not in _DOCUMENT_KEYS}
    own_id = document.get("session_id")
    if own_id is not None and not is_session_id(named_id(document) or ""):
        extra["imported_session_id"] = own_id
    header = Header(session_id=session_id, created_at=created_at, extra=extra)
    regulars = [regular(message, _time) for message in messages]
    return header, _Importer(new_id, created_at).take_in(regulars)


def load_document(data: bytes) -> Any:
    """Whatever JSON it is, without what can't be written again. Raises `NotForeign`."""
    try:
        text = data.decode("utf-8-sig")
        return _clean(json.loads(text, parse_int=_integer, object_hook=_let_others_run))
    except RecursionError as error:
        raise NotForeign("it is nested too deeply") from error
    except UnicodeDecodeError as error:
        if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise NotForeign("it is UTF-16: save it as UTF-8") from error
        raise NotForeign(f"it is not UTF-8 (byte {error.start})") from error
    except ValueError as error:
        raise NotForeign("it is no JSON document") from error


def named_id(document: dict[str, Any]) -> str | None:
    """Which conversation it says it is; some programs count them."""
    found = document.get("session_id")
    if isinstance(found, int) and not isinstance(found, bool):
        return str(found)
    return found if isinstance(found, str) else None


def _let_others_run(found: dict[str, Any]) -> dict[str, Any]:
    """A document is read in one call, in which no other thread could run: but they can
    whenever that calls something of Python's."""
    return found


def _integer(text: str) -> int | str:
    return int(text) if len(text) <= _INTEGER_LETTERS_MAX else text


# ------------------------------------------------------------------------------
# Our own document, laid out anew
#
# Another program has indented it, or written it without our line ends, its keys in another
# order, or 0 for 0.0 (jq). It is written again as we write it, and a line is accepted if its
# checksum then fits.

_CLOSING_KEYS: Final = ("updated_at", "head_seq", "message_count", "epoch_offset")
_NOT_OF_HEADER: Final = frozenset((*_CLOSING_KEYS, "crc", "messages", "beside"))


class RelaidDocument(Struct, frozen=True, kw_only=True):
    header: bytes
    lines: tuple[bytes, ...]
    """Without those that are not as they were."""
    count: int
    """Of all there are."""
    closing: JsonObject
    beside: tuple[JsonValue, ...]


def read_relaid(data: bytes) -> RelaidDocument | None:
    """`None`: it is none of ours."""
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    messages = document.get("messages") if isinstance(document, dict) else None
    if not isinstance(messages, list) or not {"crc", *_CLOSING_KEYS} <= document.keys():
        return None
    header = _header_as_written(document)
    beside = document.get("beside", [])
    if header is None or not isinstance(beside, list):
        return None
    lines = [line for message in messages if (line := _line_as_written(message)) is not None]
    return RelaidDocument(
        header=header,
        lines=tuple(lines),
        count=len(messages),
        closing={name: document[name] for name in _CLOSING_KEYS},
        beside=tuple(beside),
    )


def as_it_was_written(data: bytes) -> bytes | None:
    """`None`: it is none of ours, or something in it is not as it was."""
    relaid = read_relaid(data)
    if relaid is None or len(relaid.lines) < relaid.count:
        return None
    tail = empty_tail(decode_header(relaid.header).created_at, len(relaid.header))
    parts = [relaid.header]
    for due, line in enumerate(relaid.lines, 1):
        if peek_seq(line) != due:
            return None
        added, tail = tail.extended(line, kind=peek_kind(line), at=decode_verified(line).timestamp)
        parts.append(added)
    closing = orjson.loads(b"{" + tail.closing_line[2:])
    if closing != relaid.closing:
        return None
    end = tail.closing_line
    if relaid.beside:
        items = b"\n,".join(map(orjson.dumps, relaid.beside))
        end = end[:-2] + b',"beside":[\n' + items + b"\n]}\n"
    return b"".join(parts) + end


def _read_ours(data: bytes, session_id: str) -> tuple[Header, list[Entry]]:
    relaid = read_relaid(data)
    if relaid is None:
        raise NotForeign("its first line is damaged")
    if as_it_was_written(data) is None:
        raise NotForeign("its layout was changed, and not every line is as it was")
    header = decode_header(relaid.header)
    if header.session_id != session_id:
        raise NotForeign(f"the file says it is conversation {header.session_id!r}")
    return header, list(map(decode_verified, relaid.lines))


def _header_as_written(document: dict[str, Any]) -> bytes | None:
    source = {name: value for name, value in document.items() if name not in _NOT_OF_HEADER}
    try:
        body = orjson.dumps(source)[:-1]
        plain = body + b',"crc":"%08x","messages":[\n' % crc32(body)
        candidates = [plain, encode_header(decode_header(plain))]
    except (BadHeader, LaterFormat, orjson.JSONEncodeError):
        return None
    crc = f',"crc":"{document["crc"]}","messages":[\n'.encode()
    return next((line for line in candidates if line.endswith(crc)), None)


def _line_as_written(message: Any) -> bytes | None:
    if not isinstance(message, dict) or not isinstance(message.get("crc"), str):
        return None
    crc = f',"crc":"{message["crc"]}"}}'.encode()
    try:
        body = orjson.dumps({name: value for name, value in message.items() if name != "crc"})[:-1]
        line = body + crc_suffix(body)
        if not line.endswith(crc):
            line = encode_line(decode_verified(line))
        peek_seq(line)
    except (BadEntry, BadLine, orjson.JSONEncodeError):
        return None
    return line if line.endswith(crc) else None


class _Importer:
    def __init__(self, new_id: Callable[[], str], created_at: datetime) -> None:
        self._new_id = new_id
        self._now = created_at
        self._entries: list[Entry] = []
        self._turn_id: str | None = None
        self._call = 0

    def take_in(self, messages: list[dict[str, Any]]) -> list[Entry]:
        for message in messages:
            self._now = _time(message.get("timestamp")) or self._now
            match message["role"]:
                case "user":
                    self._end_turn()
                    self._turn_id, self._call = self._new_id(), 0
                    self._add(ModelInputEntry, message, content=message["content"])
                case "assistant":
                    self._take_answer(message)
                case "system":
                    self._add(SystemInstructionEntry, message, content=message["content"])
                case other:
                    category = f"imported {other}"
                    self._add(DebugEntry, message, category=category, content=message["content"])
        self._end_turn()
        return self._entries

    def _take_answer(self, message: dict[str, Any]) -> None:
        if self._turn_id is None:
            self._turn_id, self._call = self._new_id(), 0
        calls = message.get("tool_calls")
        calls = (
            [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
        )
        requests = tuple(_request(call, place) for place, call in enumerate(calls))
        content = message["content"]
        self._add(ModelOutputEntry, message, content=content, tool_calls=requests, call=self._call)
        if not requests:
            self._turn_id = None
            return
        results = tuple(
            _result(call, request, self._now) for call, request in zip(calls, requests, strict=True)
        )
        self._add(ToolResultsEntry, {}, results=results, call=self._call)
        self._call += 1

    def _end_turn(self) -> None:
        if self._turn_id is not None:
            content = "no further answer was recorded"
            self._add(FaultEntry, {}, content=content, code="imported", state="interrupted")
            self._turn_id = None

    def _add(self, kind: Callable[..., Entry], message: dict[str, Any], **fields: Any) -> None:
        has_turn = kind not in (SystemInstructionEntry, DebugEntry)
        entry = kind(
            seq=len(self._entries) + 1,
            id=self._new_id(),
            timestamp=self._now,
            turn_id=self._turn_id if has_turn else None,
            metadata=message.get("metadata", {}),
            **fields,
        )
        self._entries.append(entry)


def _request(call: dict[str, Any], place: int) -> ToolCallRequest:
    arguments = call.get("arguments")
    return ToolCallRequest(
        tool_call_id=as_text(call.get("tool_call_id") or call.get("id") or f"call_{place}"),
        tool_name=as_text(call.get("tool_name") or call.get("name") or "unknown"),
        raw_arguments=as_text({} if arguments is None else arguments),
        arguments=arguments if isinstance(arguments, dict) else None,
    )


def _result(call: dict[str, Any], request: ToolCallRequest, at: datetime) -> ToolCallResult:
    duration = call.get("duration")
    is_number = isinstance(duration, int | float) and not isinstance(duration, bool)
    result = call.get("result")
    return ToolCallResult(
        tool_call_id=request.tool_call_id,
        tool_name=request.tool_name,
        status=_STATUSES.get(as_text(call.get("status")), "failed"),
        result="" if result is None else as_text(result),
        duration=duration if is_number and duration is not None else 0.0,
        timestamp=_time(call.get("timestamp")) or at,
    )


def _time(value: Any) -> datetime | None:
    if not isinstance(value, str):
        return None
    try:
        moment = datetime.fromisoformat(value)
        moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    # The first instant there is stands for none, here as in most programs.
    return None if moment == UNSTAMPED else moment


def _clean(value: Any) -> Any:
    match value:
        case str():
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        case bool():
            return value
        case int() if not INTEGER_MIN <= value <= INTEGER_MAX:
            return str(value)
        case float() if not math.isfinite(value):
            return None
        case list():
            return [_clean(item) for item in value]
        case dict():
            return {_clean(name): _clean(item) for name, item in value.items()}
        case _:
            return value
