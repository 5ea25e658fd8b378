"""Converts a conversation that another program saved as one JSON document: in a shape of
its own, or one of ours that it reformatted.

    {"session_id": …, "messages": [{"role", "content", "timestamp",
      "tool_calls": [{"tool_name", "arguments", "result", "status", …}],
      "metadata"}], "created_at": …, "updated_at": …}

Bytes in, header and entries out. Memory holds one message, however many there are.

Times without a zone are UTC; one that can't be read, or is the first instant there is,
becomes the one before it. A `name` becomes the conversation's. A turn is a user's message and
the answers up to the next one; a turn without a final answer is ended, so that no old prompt
runs again. The caller keeps the original file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, Final

from nplt_storage.codec import decode_verified
from nplt_storage.entries import (
    UNSTAMPED,
    DebugEntry,
    Entry,
    FaultEntry,
    ModelInputEntry,
    ModelOutputEntry,
    RenamedEntry,
    SystemInstructionEntry,
    ToolCallRequest,
    ToolCallResult,
    ToolExecutionStatus,
    ToolResultsEntry,
)
from nplt_storage.files.format import Header, decode_header
from nplt_storage.files.json_document import WINDOW_BYTES, JsonDocument, NotForeign
from nplt_storage.files.reformatted import ReformattedDocument, as_it_was_written, reformatted_in
from nplt_storage.ids import is_session_id
from nplt_storage.rows import name_from, single_line

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


_NAME_CHARACTERS_MAX = 200
_DOCUMENT_KEYS = frozenset(["session_id", "messages", "created_at", "updated_at"])
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
        self._reformatted: ReformattedDocument | None = None
        self._name = ""
        members = document.members
        if members is None or not document.has_messages:
            raise NotForeign("it holds no list of messages")
        if document.wrong:
            raise NotForeign(document.wrong)
        if document.has_our_keys:
            self._reformatted = reformatted = reformatted_in(document)
            if reformatted is None:
                raise NotForeign("its first line is damaged")
            if as_it_was_written(reformatted) is None:
                raise NotForeign("its layout was changed, and so were some of its lines")
            self.header = decode_header(reformatted.header)
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
        if isinstance(name := extra.get("name"), str):
            self._name = single_line(name)[:_NAME_CHARACTERS_MAX]
            del extra["name"]
        own_id = members.get("session_id")
        if own_id is not None and not is_session_id(named_id(members) or ""):
            extra["imported_session_id"] = own_id
        self.header = Header(session_id=session_id, created_at=created_at, extra=extra)

    def entries(self, *, new_id: Callable[[], str]) -> Iterator[Entry]:
        """Yields the entries; each call starts from the first."""
        if self._reformatted is not None:
            return map(decode_verified, self._reformatted.lines)
        messages = map(regular, self._document.messages())
        return _Importer(new_id, self.header.created_at).take_in(messages, self._name)


def read_foreign(
    data: bytes, session_id: str, *, new_id: Callable[[], str], window_bytes: int = WINDOW_BYTES
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


class _Importer:
    def __init__(self, new_id: Callable[[], str], created_at: datetime) -> None:
        self._new_id = new_id
        self._now = created_at
        self._seq = 0
        self._added: list[Entry] = []
        """Entries that have been made and not yet returned."""
        self._turn_id: str | None = None
        self._call = 0
        self._derived_name = ""
        """The name that lists show if the conversation has not been renamed."""

    def take_in(self, messages: Iterable[dict[str, Any]], name: str) -> Iterator[Entry]:
        for message in messages:
            self._take(message)
            yield from self._added
            self._added.clear()
        self._end_turn()
        if name and name != self._derived_name:
            self._add(RenamedEntry, {}, name=name)
        yield from self._added

    def _take(self, message: dict[str, Any]) -> None:
        self._now = _time(message.get("timestamp")) or self._now
        match message["role"]:
            case "user":
                self._end_turn()
                self._turn_id, self._call = self._new_id(), 0
                self._derived_name = self._derived_name or name_from(message["content"])
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
        has_turn = kind not in (SystemInstructionEntry, DebugEntry, RenamedEntry)
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
    # The earliest possible time means that there is none, as in most programs.
    return None if moment == UNSTAMPED else moment
