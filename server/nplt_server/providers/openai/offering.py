"""What both APIs are told besides the conversation: tools, and the prompt's options.

Options a model is known not to take are left out, because it would refuse the whole
request; of models nobody here has heard of everything is asked.
"""

from __future__ import annotations

import re

from nplt_protocol.json_values import JsonValue
from nplt_server.clean_text import clean_text
from nplt_server.providers.base import ModelRequest
from nplt_server.providers.compiling import VendorRules
from nplt_server.providers.compiling.names import fitting_tool_name
from nplt_server.providers.compiling.schemas import in_words, plain_object, well_formed
from nplt_server.tools.base import ToolDescription

_TOOLS_MAX = 128
_DESCRIPTION_CHARACTERS_MAX = 1024
_NOT_AT_THE_TOP = frozenset({"allOf", "anyOf", "enum", "not", "oneOf"})
"""Of a schema; it would refuse the whole request."""
_TEMPERATURE_MAX = 2.0
# `o3-mini`, `gpt-5.6`, `codex-mini`; also behind a vendor's name, as routers write it.
_REASONS = re.compile(r"(?:.*/)?(?:o\d|gpt-(?:[5-9]|\d\d)(?!.*-chat)|codex)")
_DOES_NOT_REASON = re.compile(r"(?:.*/)?(?:gpt-[34]|chatgpt|gpt-5.*-chat)")


def may_reason(model: str) -> bool:
    return _DOES_NOT_REASON.match(model) is None


def temperature_of(request: ModelRequest) -> float | None:
    if _REASONS.match(request.invocation.model):
        return None
    match request.options.get("temperature"):
        case bool():
            return None
        case int() | float() as wanted:
            return min(max(float(wanted), 0.0), _TEMPERATURE_MAX)
        case _:
            return None


def effort_of(request: ModelRequest) -> str | None:
    wanted = request.options.get("effort")
    if not isinstance(wanted, str) or not wanted or not may_reason(request.invocation.model):
        return None
    return wanted


def output_tokens_of(request: ModelRequest) -> int | None:
    """The less of what the prompt and the settings say."""
    wanted = request.options.get("output_tokens")
    told = [request.answer_tokens_max]
    if isinstance(wanted, int) and not isinstance(wanted, bool) and wanted > 0:
        told.append(wanted)
    return min((tokens for tokens in told if tokens is not None), default=None)


def names_of(tools: tuple[ToolDescription, ...], rules: VendorRules) -> dict[str, str]:
    """What a tool is called there → what it is called here."""
    return {fitting_tool_name(tool.name, rules): tool.name for tool in tools[:_TOOLS_MAX]}


def functions_of(
    tools: tuple[ToolDescription, ...], rules: VendorRules
) -> list[dict[str, JsonValue]]:
    return [
        {
            "name": fitting_tool_name(tool.name, rules),
            "description": _description(tool),
            "parameters": plain_object(well_formed(tool.parameters), _NOT_AT_THE_TOP),
        }
        for tool in tools[:_TOOLS_MAX]
    ]


def _description(tool: ToolDescription) -> str:
    """With the schema, where that can't be sent as it is, if there is room for all of it:
    half of one would mislead."""
    description = clean_text(tool.description)[:_DESCRIPTION_CHARACTERS_MAX]
    if _NOT_AT_THE_TOP.isdisjoint(tool.parameters):
        return description
    told = f"{description}\n\n{in_words(tool.parameters)}"
    return told if len(told) <= _DESCRIPTION_CHARACTERS_MAX else description
