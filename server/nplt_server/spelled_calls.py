"""A call of a tool, out of what a model spelled.

Models stream arguments as text, and not all of it is JSON, or all there.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

import orjson

from nplt_protocol.json_values import JsonObject, JsonValue
from nplt_storage.facts.tool_calls import ToolCallRequest

_ARGUMENTS_DEPTH_MAX: Final = 32
_REASON_CHARACTERS_MAX: Final = 40


def parse_tool_call(tool_call_id: str, tool_name: str, raw_arguments: str) -> ToolCallRequest:
    """The raw text is always kept; a parse error is something the model can be told."""
    arguments: JsonObject | None = None
    parse_error: str | None = None
    try:
        parsed = orjson.loads(raw_arguments or "{}")
    except orjson.JSONDecodeError as error:
        parse_error = f"the arguments are not valid JSON: {error}"
    else:
        if not isinstance(parsed, dict):
            parse_error = "the arguments are not a JSON object"
        elif not _is_storable(parsed, _ARGUMENTS_DEPTH_MAX):
            parse_error = "the arguments are nested too deeply or hold a number too large"
        else:
            arguments = parsed
    return ToolCallRequest(
        tool_call_id=tool_call_id,
        tool_name=tool_name,
        raw_arguments=raw_arguments,
        arguments=arguments,
        parse_error=parse_error,
    )


def as_cut(call: ToolCallRequest, stop_reason: str) -> ToolCallRequest:
    """Nobody runs it, whatever can be read of it, and the model is told why."""
    reason = stop_reason[:_REASON_CHARACTERS_MAX]
    why = f"not run: the answer ended ({reason}) before the call was known to be whole"
    return replace(call, arguments=None, parse_error=why)


def _is_storable(value: JsonValue, depth: int) -> bool:
    match value:
        case dict():
            return depth > 0 and all(_is_storable(v, depth - 1) for v in value.values())
        case list():
            return depth > 0 and all(_is_storable(v, depth - 1) for v in value)
        case float():
            return math.isfinite(value)
        case _:
            return True
