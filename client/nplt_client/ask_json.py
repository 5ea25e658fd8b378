"""`nplt ask` for programs: one JSON object at the end, or one per event.

JSON is written so that it is harmless on a terminal too, without changing its
value.
"""

from __future__ import annotations

import re
from typing import TextIO

import orjson

from nplt_client.errors import NpltError
from nplt_client.turn_record import TurnRecord
from nplt_protocol.events import (
    AgentThought,
    Event,
    TextDelta,
    ToolFinished,
    ToolStarted,
    TurnFinished,
)
from nplt_protocol.json_values import JsonObject
from nplt_protocol.replies import Receipt

# orjson escapes C0 by itself; these are as bad for a terminal.
_UNSAFE_IN_JSON = re.compile("[\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_WORD_STARTS = re.compile("(?<=[a-z])(?=[A-Z])")


def json_text(value: object, *, pretty: bool = False) -> str:
    text = orjson.dumps(value, option=orjson.OPT_INDENT_2 if pretty else None).decode()
    return _UNSAFE_IN_JSON.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


def result_of(record: TurnRecord) -> JsonObject:
    receipt, finished = record.receipt, record.finished
    result: JsonObject = {
        "session_id": receipt.session_id if receipt else None,
        "turn_id": receipt.turn_id if receipt else None,
        "text": record.text,
        "model": record.model,
        "usage": finished.usage if finished else {},
        "state": finished.state if finished else "interrupted",
        "tool_calls": list(record.tool_calls.values()),
    }
    if finished and finished.error:
        result["error"] = finished.error
    return result


def failure_of(error: NpltError, record: TurnRecord) -> JsonObject:
    """As much as came of it, and why there is no more."""
    word = _WORD_STARTS.sub("_", type(error).__name__).lower()  # timed_out, connection_lost …
    why: JsonObject = {"code": error.code or word, "message": error.message}
    state = record.finished.state if record.finished else "failed"
    return {**result_of(record), "state": state, "error": why}


class JsonOutput:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def began(self, receipt: Receipt, model: str) -> None:
        pass

    def took(self, event: Event, piece: str) -> None:
        pass

    def ended(self, record: TurnRecord) -> None:
        self._stream.write(json_text(result_of(record)) + "\n")
        self._stream.flush()

    def failed(self, error: NpltError, record: TurnRecord) -> None:
        self._stream.write(json_text(failure_of(error, record)) + "\n")
        self._stream.flush()


class JsonLinesOutput:
    """One object per line; `event` says which: init, delta, thought, tool_use,
    tool_result, usage, error, result."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def began(self, receipt: Receipt, model: str) -> None:
        self._write(
            "init",
            session_id=receipt.session_id,
            turn_id=receipt.turn_id,
            message_id=receipt.message_id,
            seq=receipt.seq,
            model=model,
        )

    def took(self, event: Event, piece: str) -> None:
        match event:
            case TextDelta():
                self._write("delta", text=event.text, call=event.call, offset=event.offset)
            case AgentThought():
                self._write("thought", type=event.type, text=event.text or event.content or "")
            case ToolStarted():
                self._write(
                    "tool_use",
                    tool_call_id=event.tool_call_id,
                    tool_name=event.tool_name,
                    arguments=event.arguments,
                )
            case ToolFinished():
                self._write(
                    "tool_result",
                    tool_call_id=event.tool_call_id,
                    tool_name=event.tool_name,
                    status=event.status,
                    duration=event.duration,
                    result=event.result,
                )
            case TurnFinished():
                self._write("usage", usage=event.usage)
                if event.error:
                    self._write("error", **event.error)
            case _:
                pass

    def ended(self, record: TurnRecord) -> None:
        self._write("result", **result_of(record))

    def failed(self, error: NpltError, record: TurnRecord) -> None:
        self._write("error", code=error.code, message=error.message, field=error.field)
        self._write("result", **failure_of(error, record))

    def _write(self, event: str, **fields: object) -> None:
        self._stream.write(json_text({"event": event, **fields}) + "\n")
        self._stream.flush()
