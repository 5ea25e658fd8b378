"""What people are shown when they are asked whether a tool may be run.

Arguments can be giant, and a question must fit a screen: long values are cut,
and the question says so.
"""

from __future__ import annotations

from typing import Final

import orjson

from nplt_protocol.events import ApprovalRequest
from nplt_protocol.json_values import JsonObject, JsonValue
from nplt_storage.facts.entries import ApprovalEntry
from nplt_storage.facts.entry_to_json import time_as_text
from nplt_storage.facts.tool_calls import ToolCallRequest

_WHOLE_CHARACTERS_MAX: Final = 6_000
_VALUE_CHARACTERS_MAX: Final = 1_000
_VALUES_MAX: Final = 16
_NAME_CHARACTERS_MAX: Final = 200


def question_event(session_id: str, asked: ApprovalEntry, call: ToolCallRequest) -> ApprovalRequest:
    assert asked.turn_id is not None
    assert asked.expires_at is not None
    size = len(call.raw_arguments)
    is_cut = size > _WHOLE_CHARACTERS_MAX
    arguments: JsonObject = dict(call.arguments or {})
    return ApprovalRequest(
        session_id=session_id,
        approval_id=asked.approval_id,
        turn_id=asked.turn_id,
        tool_name=asked.tool_name[:_NAME_CHARACTERS_MAX],
        arguments=_cut(arguments) if is_cut else arguments,
        expires_at=time_as_text(asked.expires_at),
        tool_call_id=asked.tool_call_id,
        truncated=True if is_cut else None,
        size=size if is_cut else None,
    )


def _cut(arguments: JsonObject) -> JsonObject:
    cut: JsonObject = {}
    for name, value in list(arguments.items())[:_VALUES_MAX]:
        cut[name[:_NAME_CHARACTERS_MAX]] = _cut_value(value)
    return cut


def _cut_value(value: JsonValue) -> JsonValue:
    text = value if isinstance(value, str) else orjson.dumps(value).decode()
    if len(text) <= _VALUE_CHARACTERS_MAX:
        return value
    return text[:_VALUE_CHARACTERS_MAX] + "…"
