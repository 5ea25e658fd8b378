"""Conversations another program saved as one JSON document, taken in as ours.

    {"session_id": …, "messages": [{"role", "content", "timestamp",
      "tool_calls": [{"tool_name", "arguments", "result", "status", …}],
      "metadata"}], "created_at": …, "updated_at": …}

Pure: bytes in, header and entries out. Times without a zone are taken as UTC.
A turn is a user's message and the answers up to the next; one that has no final
answer is ended, so that nobody runs an old prompt again. What JSON can't carry
twice the same way (NaN, half a surrogate pair, huge integers) is replaced; the
original file is kept by the caller.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from nplt_storage.facts.entries import (
    DebugEntry,
    Entry,
    FaultEntry,
    ModelInputEntry,
    ModelOutputEntry,
    SystemInstructionEntry,
    ToolResultsEntry,
)
from nplt_storage.facts.json_values import INTEGER_MAX, INTEGER_MIN
from nplt_storage.facts.tool_calls import ToolCallRequest, ToolCallResult, ToolStatus
from nplt_storage.files.layout import Header

_MESSAGE_KEYS = frozenset(["role", "content", "timestamp", "tool_calls", "metadata"])
_DOCUMENT_KEYS = frozenset(["session_id", "messages", "created_at", "updated_at"])
_OUR_KEYS = frozenset(["format", "crc", "head_seq", "epoch_offset"])
_STATUSES: dict[str, ToolStatus] = {
    "success": "success",
    "completed": "success",
    "ok": "success",
    "skipped": "skipped",
    "pending": "skipped",
}


class NotForeign(Exception):
    """Nothing that can be taken in: the caller leaves the file alone."""


def read_foreign(
    data: bytes, session_id: str, *, new_id: Callable[[], str]
) -> tuple[Header, list[Entry]]:
    try:
        document = _clean(json.loads(data.decode("utf-8-sig")))
    except (ValueError, RecursionError) as error:
        raise NotForeign("it is no JSON document") from error
    messages = document.get("messages") if isinstance(document, dict) else None
    if not isinstance(messages, list) or not all(map(_is_message, messages)):
        raise NotForeign("it holds no list of messages")
    if _OUR_KEYS & document.keys() or any(_OUR_KEYS & message.keys() for message in messages):
        raise NotForeign("its first line is damaged")
    if document.get("session_id", session_id) != session_id:
        raise NotForeign("it names another conversation")
    first = messages[0].get("timestamp") if messages else None
    created_at = _time(document.get("created_at")) or _time(first) or datetime.fromtimestamp(0, UTC)
    extra = {name: value for name, value in document.items() if name not in _DOCUMENT_KEYS}
    header = Header(session_id=session_id, created_at=created_at, extra=extra)
    return header, _Importer(new_id, created_at).take_in(messages)


def _is_message(message: Any) -> bool:
    return (
        isinstance(message, dict)
        and isinstance(message.get("role"), str)
        and isinstance(message.get("content"), str)
    )


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
        metadata = message.get("metadata")
        extra = {name: value for name, value in message.items() if name not in _MESSAGE_KEYS}
        has_turn = kind not in (SystemInstructionEntry, DebugEntry)
        entry = kind(
            seq=len(self._entries) + 1,
            id=self._new_id(),
            timestamp=self._now,
            turn_id=self._turn_id if has_turn else None,
            metadata=extra | (metadata if isinstance(metadata, dict) else {}),
            **fields,
        )
        self._entries.append(entry)


def _request(call: dict[str, Any], place: int) -> ToolCallRequest:
    arguments = call.get("arguments")
    return ToolCallRequest(
        tool_call_id=_as_text(call.get("tool_call_id") or call.get("id") or f"call_{place}"),
        tool_name=_as_text(call.get("tool_name") or call.get("name") or "unknown"),
        raw_arguments=_as_text({} if arguments is None else arguments),
        arguments=arguments if isinstance(arguments, dict) else None,
    )


def _result(call: dict[str, Any], request: ToolCallRequest, at: datetime) -> ToolCallResult:
    duration = call.get("duration")
    is_number = isinstance(duration, int | float) and not isinstance(duration, bool)
    result = call.get("result")
    return ToolCallResult(
        tool_call_id=request.tool_call_id,
        tool_name=request.tool_name,
        status=_STATUSES.get(_as_text(call.get("status")), "failed"),
        result="" if result is None else _as_text(result),
        duration=duration if is_number and duration is not None else 0.0,
        timestamp=_time(call.get("timestamp")) or at,
    )


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _time(value: Any) -> datetime | None:
    if not isinstance(value, str):
        return None
    try:
        moment = datetime.fromisoformat(value)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


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
