"""Converts a conversation that another program saved as one JSON document: in a shape of
its own, or one of ours that it laid out anew.

    {"session_id": …, "messages": [{"role", "content", "timestamp",
      "tool_calls": [{"tool_name", "arguments", "result", "status", …}],
      "metadata"}], "created_at": …, "updated_at": …}

Bytes in, header and entries out. A document is parsed one message at a time, and
twice: first all of it is checked, then it is converted while the caller takes the entries.
So other threads run in between, and memory holds one message, however many there are.

Times without a zone are UTC; one that can't be read, or is the first instant there is,
becomes the one before it. A turn is a user's message and the answers up to the next one; a
turn without a final answer is ended, so that no old prompt runs again. Values that JSON
readers do not agree on (NaN, lone surrogates, huge integers) are replaced; the caller keeps
the original file.
"""

from __future__ import annotations

import codecs
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final
from zlib import crc32

import orjson
from msgspec import Struct

from nplt_storage.codec import BadLine, crc_suffix, decode_verified, encode_line, peek_seq
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
    ToolExecutionStatus,
    ToolResultsEntry,
)
from nplt_storage.errors import BadEntry
from nplt_storage.file_system import Read
from nplt_storage.files.format import (
    CLOSING_KEYS,
    BadHeader,
    Header,
    LaterFormat,
    decode_header,
    empty_tail,
    encode_header,
)
from nplt_storage.ids import is_session_id
from nplt_storage.json_values import INTEGER_MAX, INTEGER_MIN, JsonObject, JsonValue

_KEYS: Final = frozenset(["role", "content", "timestamp", "tool_calls", "metadata"])
_KEPT_LETTERS_MAX: Final = 16 * 1024
NO_ROLE: Final = "message"
"""The role of a message without a valid one; no program uses this name."""


def regular(message: dict[str, Any]) -> dict[str, Any]:
    """The message with a role, a text and `metadata`, which also holds its other keys.

    An odd message does not make the document unusable: a value that had to be replaced is kept in
    `metadata` as `imported_…`, shortened if it is large."""
    role, content = message.get("role"), message.get("content")
    calls, metadata = message.get("tool_calls"), message.get("metadata")
    kept: dict[str, Any] = {}
    if not isinstance(role, str) or not role:
        kept["role"], role = role, NO_ROLE
    if not isinstance(content, str):
        kept["content"], content = content, _text_of(content)
    if _time(message.get("timestamp")) is None:
        kept["timestamp"] = message.get("timestamp")
    if not isinstance(calls, list):
        kept["tool_calls"] = calls
    if not isinstance(metadata, dict):
        kept["metadata"], metadata = metadata, {}
    others = {name: value for name, value in message.items() if name not in _KEYS}
    odd = {f"imported_{name}": _cut(value) for name, value in kept.items() if value is not None}
    return message | {"role": role, "content": content, "metadata": others | metadata | odd}


def _text_of(content: Any) -> str:
    """The text in the content, joined by newlines. A value that is not a list and has no text is
    given as JSON."""
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


# ------------------------------------------------------------------------------
# Parsing piece by piece
#
# One call that parses a whole document keeps all other threads waiting until it returns. So
# the text is decoded a window at a time, and the values in the list of messages are parsed
# one by one. A value that goes on behind the window is parsed again with twice as much text.

_WINDOW_BYTES: Final = 256 * 1024
_NUMBER_GOES_ON_LETTERS: Final = 2
"""A number that is cut may look complete (`1` of `1e+5`), so a value is accepted only if more
letters than this follow it in the window."""
_LONGEST_CUT_LETTERS: Final = 20
_VALUE_LETTERS_MAX: Final = 32 * 1024 * 1024
"""A longer value is not a message; a file that is not a JSON document may go on for gigabytes."""
_REST_BYTES_MAX: Final = 16 * 1024 * 1024
_SPACE: Final = re.compile(r"[ \t\n\r]*")
_WITHIN: Final = frozenset(bytes([value]) for value in range(0x80, 0xC0))
"""The continuation bytes of UTF-8."""
_INTEGER_LETTERS_MAX: Final = 20
"""Longer integers exceed 64 bits, and Python refuses to parse thousands of digits."""


class NotForeign(Exception):
    """The document can't be imported; the caller leaves the file alone."""


def _integer(text: str) -> int | str:
    return int(text) if len(text) <= _INTEGER_LETTERS_MAX else text


def _let_others_run(found: dict[str, Any]) -> dict[str, Any]:
    """Parsing a value in one call blocks all other threads; calling a Python function now and then
    lets them run."""
    return found


_PARSER: Final = json.JSONDecoder(parse_int=_integer, object_hook=_let_others_run)


class FileBytes:
    """The bytes of a file, read only as needed."""

    def __init__(self, read: Read, size: int) -> None:
        self._read = read
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, part: slice) -> bytes:
        start, stop, _ = part.indices(self._size)
        return self._read(start, max(stop - start, 0))


class _Text:
    """The text of a document from the byte `start` on. Raises `ValueError` for invalid JSON or
    UTF-8."""

    def __init__(self, data: FileBytes | bytes, start: int, window_bytes: int) -> None:
        self._data = data
        self._window_bytes = window_bytes
        self._end = start
        """The end of the window, in bytes."""
        self._window = ""
        self._at = 0
        self.last = ""
        """The text of the last value."""

    @property
    def offset(self) -> int:
        """The offset of the next letter, in bytes."""
        return self._end - len(self._window[self._at :].encode())

    def next(self) -> str:
        """The next character that is not a space; empty at the end."""
        while True:
            space = _SPACE.match(self._window, self._at)
            assert space is not None
            self._at = space.end()
            if self._at < len(self._window) or not self._more():
                return self._window[self._at : self._at + 1]

    def take(self, letters: str) -> str:
        letter = self.next()
        if not letter or letter not in letters:
            raise ValueError(f"none of {letters} is there")
        self._at += 1
        return letter

    def value(self) -> Any:
        self.next()
        while True:
            try:
                value, end = _PARSER.raw_decode(self._window, self._at)
            except json.JSONDecodeError as error:
                # Near the window's end, or in a text that has not ended, more may help.
                is_cut = error.pos > len(self._window) - _LONGEST_CUT_LETTERS
                is_cut = is_cut or error.msg.startswith("Unterminated string")
                is_short = len(self._window) - self._at < _VALUE_LETTERS_MAX
                if not (is_cut and is_short and self._more()):
                    raise
                continue
            if len(self._window) - end > _NUMBER_GOES_ON_LETTERS or not self._more():
                self.last = self._window[self._at : end]
                self._at = end
                return value

    def items(self) -> Iterator[Any]:
        """The values of the list that begins here."""
        self.take("[")
        if self.next() == "]":
            self.take("]")
            return
        yield self.value()
        while self.take(",]") == ",":
            yield self.value()

    def finish(self) -> None:
        if self.next():
            raise ValueError("something follows the document")

    def check_rest(self) -> None:
        """Decodes the rest, unless it is long, to check that it is UTF-8."""
        self._at, stop = len(self._window), self._end + _REST_BYTES_MAX
        while self._end < stop and self._more():
            self._at = len(self._window)

    def _more(self) -> bool:
        """Extends the window; false if it is at the end already."""
        rest = self._window[self._at :]
        begin, end = self._end, self._end + max(self._window_bytes, len(rest))
        if begin >= len(self._data):
            return False
        # Not to the middle of a letter: it has up to three more bytes.
        end += next((n for n in range(3) if self._data[end + n : end + n + 1] not in _WITHIN), 3)
        try:
            self._window, self._at = rest + self._data[begin:end].decode(), 0
        except UnicodeDecodeError as error:
            error.start += begin
            raise
        self._end = min(end, len(self._data))
        return True


class JsonDocument:
    """Any JSON document, without the values that can't be written again. It is parsed once to the
    end at construction, which raises `NotForeign` for invalid JSON and for documents that are too
    deeply nested."""

    def __init__(self, data: FileBytes | bytes, *, window_bytes: int = _WINDOW_BYTES) -> None:
        self._data = data
        self._window_bytes = window_bytes
        bom = codecs.BOM_UTF8
        self.bom_bytes = len(bom) if data[: len(bom)] == bom else 0
        self._list_at: int | None = None
        self.members: dict[str, Any] | None = None
        """The members of the top-level object without the list of messages; `None` if the document
        is not an object."""
        self.member_texts: dict[str, str] = {}
        """The text of each member as it was written, `"name":value`."""
        self.count = 0
        """The number of messages."""
        self.calls = 0
        """The number of tool calls in all messages."""
        self.first: Any = None
        self.wrong: str | None = None
        """The reason why a message can't be imported, if there is one."""
        self.has_our_keys = False
        self._survey()
        if self.wrong is not None:
            self.wrong = self.wrong.format(self.count)

    def __len__(self) -> int:
        """The size in bytes."""
        return len(self._data)

    @property
    def has_messages(self) -> bool:
        return self._list_at is not None

    def messages(self) -> Iterator[Any]:
        assert self._list_at is not None
        with self._reading(self._list_at) as text:
            yield from map(_clean, text.items())

    def message_texts(self) -> Iterator[str]:
        """The JSON of each message as it was written."""
        assert self._list_at is not None
        with self._reading(self._list_at) as text:
            yield from (text.last for _ in text.items())

    def _survey(self) -> None:
        with self._reading(self.bom_bytes) as text:
            if text.next() != "{":
                _clean(text.value())
                text.finish()
                return
            found: dict[str, Any] = {}
            text.take("{")
            is_last = text.next() == "}" and bool(text.take("}"))
            while not is_last:
                self._take_member(text, found)
                is_last = text.take(",}") == "}"
            text.finish()
            self.members = _clean(found)
            self.has_our_keys = self.has_our_keys or not _OUR_KEYS.isdisjoint(found)

    def _take_member(self, text: _Text, found: dict[str, Any]) -> None:
        """Reads one member. If a name occurs twice, the later one counts."""
        if text.next() != '"':
            raise ValueError("a member has no name")
        name = text.value()
        name_text = text.last
        text.take(":")
        if name == "messages":
            found.pop(name, None)
            self.member_texts.pop(name, None)
            self._list_at = None
            if text.next() == "[":
                self._survey_messages(text)
                return
        found[name] = text.value()
        self.member_texts[name] = f"{name_text}:{text.last}"

    def _survey_messages(self, text: _Text) -> None:
        self._list_at = text.offset
        self.count, self.calls, self.first = 0, 0, None
        self.wrong, self.has_our_keys = None, False
        for message in text.items():
            message = _clean(message)  # it may be nested too deeply for that
            self.count += 1
            if self.count == 1:
                self.first = message
            wrong: str | None = "is no JSON object"
            if isinstance(message, dict):
                calls = message.get("tool_calls")
                self.calls += len(calls) if isinstance(calls, list) else 0
                self.has_our_keys = self.has_our_keys or not _OUR_KEYS.isdisjoint(message)
                is_message = "role" in message or "content" in message
                wrong = None if is_message else "has neither a role nor a content"
            if wrong is not None and self.wrong is None:
                self.wrong = f"message {self.count} of {{}} {wrong}"

    @contextmanager
    def _reading(self, start: int) -> Iterator[_Text]:
        text = _Text(self._data, start, self._window_bytes)
        try:
            try:
                yield text
            except UnicodeDecodeError:
                raise
            except (RecursionError, ValueError):
                text.check_rest()  # what is no text is no JSON either, and easier to put right
                raise
        except RecursionError as error:
            raise NotForeign("it is nested too deeply") from error
        except UnicodeDecodeError as error:
            if self._data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
                raise NotForeign("it is UTF-16: save it as UTF-8") from error
            raise NotForeign(f"it is not UTF-8 (byte {error.start - self.bom_bytes})") from error
        except ValueError as error:
            raise NotForeign("it is no JSON document") from error


_DOCUMENT_KEYS = frozenset(["session_id", "messages", "created_at", "updated_at"])
_OUR_KEYS = frozenset(["format", "crc", "head_seq", "epoch_offset"])
_STATUSES: dict[str, ToolExecutionStatus] = {
    "success": "success",
    "completed": "success",
    "ok": "success",
    "skipped": "skipped",
    "pending": "skipped",
}


class ForeignConversation:
    """A document that can be imported; raises `NotForeign` for any other."""

    header: Header

    def __init__(self, document: JsonDocument, session_id: str) -> None:
        self._document = document
        self._relaid: RelaidDocument | None = None
        members = document.members
        if members is None or not document.has_messages:
            raise NotForeign("it holds no list of messages")
        if document.wrong:
            raise NotForeign(document.wrong)
        if document.has_our_keys:
            self._relaid = relaid = relaid_in(document)
            if relaid is None:
                raise NotForeign("its first line is damaged")
            if as_it_was_written(relaid) is None:
                raise NotForeign("its layout was changed, and not every line is as it was")
            self.header = decode_header(relaid.header)
            if self.header.session_id != session_id:
                raise NotForeign(f"the file says it is conversation {self.header.session_id!r}")
            return
        if (named_id(members) or session_id) != session_id:
            raise NotForeign("it names another conversation")
        first = document.first.get("timestamp") if document.count else None
        created_at = (
            _time(members.get("created_at")) or _time(first) or datetime.fromtimestamp(0, UTC)
        )
        extra = {name: value for name, value in members.items() if name not in _DOCUMENT_KEYS}
        own_id = members.get("session_id")
        if own_id is not None and not is_session_id(named_id(members) or ""):
            extra["imported_session_id"] = own_id
        self.header = Header(session_id=session_id, created_at=created_at, extra=extra)

    def entries(self, *, new_id: Callable[[], str]) -> Iterator[Entry]:
        """Yields the entries; each call starts from the first."""
        if self._relaid is not None:
            return map(decode_verified, self._relaid.lines)
        messages = map(regular, self._document.messages())
        return _Importer(new_id, self.header.created_at).take_in(messages)


def read_foreign(
    data: bytes, session_id: str, *, new_id: Callable[[], str], window_bytes: int = _WINDOW_BYTES
) -> tuple[Header, list[Entry]]:
    """The header and all entries of a small document at once."""
    found = ForeignConversation(JsonDocument(data, window_bytes=window_bytes), session_id)
    return found.header, list(found.entries(new_id=new_id))


def named_id(document: dict[str, Any]) -> str | None:
    """The id that the document names; some programs use numbers."""
    found = document.get("session_id")
    if isinstance(found, int) and not isinstance(found, bool):
        return str(found)
    return found if isinstance(found, str) else None


_RELAID_BYTES_MAX: Final = 64 * 1024 * 1024
"""The document is held in memory several times."""
_NOT_OF_HEADER: Final = frozenset((*CLOSING_KEYS, "crc", "messages", "beside"))


class RelaidDocument(Struct, frozen=True, kw_only=True):
    """A document of ours that another program has reformatted: indented it, or written it without
    our line ends, its keys in another order, or 0 for 0.0 (jq). It is encoded again in our layout,
    and a line is accepted if its checksum then fits."""

    header: bytes
    lines: tuple[bytes, ...]
    """The lines whose checksum still fits."""
    count: int
    """The number of all lines."""
    closing: JsonObject
    other_members: tuple[JsonValue, ...]


def read_relaid(data: FileBytes | bytes) -> RelaidDocument | None:
    """`None` if the document is not one of ours."""
    try:
        return relaid_in(JsonDocument(data))
    except NotForeign:
        return None


def relaid_in(document: JsonDocument) -> RelaidDocument | None:
    is_ours = {"crc", *CLOSING_KEYS} <= document.member_texts.keys()
    if not is_ours or not document.has_messages or len(document) > _RELAID_BYTES_MAX:
        return None
    lines: list[bytes] = []
    try:
        members: dict[str, Any] = {}
        for text in document.member_texts.values():
            members |= orjson.loads(f"{{{text}}}")
        header = _header_as_written(members)
        other_members = members.get("beside", [])
        if header is None or not isinstance(other_members, list):
            return None
        for text in document.message_texts():
            line = _line_as_written(orjson.loads(text))
            if line is not None:
                lines.append(line)
    except orjson.JSONDecodeError:
        return None
    return RelaidDocument(
        header=header,
        lines=tuple(lines),
        count=document.count,
        closing={name: members[name] for name in CLOSING_KEYS},
        other_members=tuple(other_members),
    )


def as_it_was_written(relaid: RelaidDocument | None) -> bytes | None:
    """The document in our layout; `None` if it is not one of ours or has been changed."""
    if relaid is None or len(relaid.lines) < relaid.count:
        return None
    parts, created_at = [relaid.header], decode_header(relaid.header).created_at
    tail = empty_tail(created_at, len(relaid.header))
    for due, line in enumerate(relaid.lines, 1):
        if peek_seq(line) != due:
            return None
        added, tail = tail.extended(decode_verified(line), line)
        parts.append(added)
    closing = tail.closing_line
    if orjson.loads(b"{" + closing[2:]) != relaid.closing:
        return None
    if relaid.other_members:
        items = b"\n,".join(map(orjson.dumps, relaid.other_members))
        closing = closing[:-2] + b',"beside":[\n' + items + b"\n]}\n"
    return b"".join((*parts, closing))


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
        self._seq = 0
        self._added: list[Entry] = []
        """Entries that have been made and not yet returned."""
        self._turn_id: str | None = None
        self._call = 0

    def take_in(self, messages: Iterable[dict[str, Any]]) -> Iterator[Entry]:
        for message in messages:
            self._take(message)
            yield from self._added
            self._added.clear()
        self._end_turn()
        yield from self._added

    def _take(self, message: dict[str, Any]) -> None:
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

    def _take_answer(self, message: dict[str, Any]) -> None:
        if self._turn_id is None:
            self._turn_id, self._call = self._new_id(), 0
        listed = message.get("tool_calls")
        listed = listed if isinstance(listed, list) else []
        calls = [call for call in listed if isinstance(call, dict)]
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
        self._seq += 1
        entry = kind(
            seq=self._seq,
            id=self._new_id(),
            timestamp=self._now,
            turn_id=self._turn_id if has_turn else None,
            metadata=message.get("metadata", {}),
            **fields,
        )
        self._added.append(entry)


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
            if value.isascii():
                return value
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
