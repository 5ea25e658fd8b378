"""What OpenAI's two APIs share: tools, options, error events.

Options a model is known to refuse are left out; unknown models get everything.
"""

from __future__ import annotations

import re

from nplt_protocol import JsonObject, JsonValue
from nplt_server.digest.text import clean_text
from nplt_server.errors import ProviderError
from nplt_server.providers import ModelRequest
from nplt_server.providers.compiler import UserStep, VendorRules, fitting_tool_name
from nplt_server.providers.failures import failure_in_stream
from nplt_server.providers.tool_schemas import in_words, plain_object, well_formed
from nplt_server.tools import ToolDescription

TOOLS_MAX = 128
_DESCRIPTION_CHARACTERS_MAX = 1024
_NOT_AT_THE_TOP = frozenset({"allOf", "anyOf", "enum", "not", "oneOf"})
"""Of a schema; it would refuse the whole request."""
# `o3-mini`, `gpt-5.6`, `codex-mini`; also behind a vendor's name, as routers write it.
_REASONS = re.compile(r"(?:.*/)?(?:o\d|gpt-(?:[5-9]|\d\d)(?!.*-chat)|codex)")
_DOES_NOT_REASON = re.compile(r"(?:.*/)?(?:gpt-[34]|chatgpt|gpt-5.*-chat)")


def may_reason(model: str) -> bool:
    return _DOES_NOT_REASON.match(model) is None


def temperature_of(request: ModelRequest) -> float | None:
    return None if _REASONS.match(request.invocation.model) else request.temperature(2.0)


def effort_of(request: ModelRequest) -> str | None:
    wanted = request.options.get("effort")
    if not isinstance(wanted, str) or not wanted or not may_reason(request.invocation.model):
        return None
    return wanted


def functions_of(
    tools: tuple[ToolDescription, ...], rules: VendorRules
) -> list[dict[str, JsonValue]]:
    return [
        {
            "name": fitting_tool_name(tool.name, rules),
            "description": _description(tool),
            "parameters": plain_object(well_formed(tool.parameters), _NOT_AT_THE_TOP),
        }
        for tool in tools[:TOOLS_MAX]
    ]


def _description(tool: ToolDescription) -> str:
    """With the schema, where that can't be sent as it is, if there is room for all of it:
    half of one would mislead."""
    description = clean_text(tool.description)[:_DESCRIPTION_CHARACTERS_MAX]
    if _NOT_AT_THE_TOP.isdisjoint(tool.parameters):
        return description
    told = f"{description}\n\n{in_words(tool.parameters)}"
    return told if len(told) <= _DESCRIPTION_CHARACTERS_MAX else description


def seqs_of_user_step(step: UserStep) -> list[tuple[int, ...]]:
    """Of each message a step of the user becomes: its results, then its texts as one."""
    seqs: list[tuple[int, ...]] = [(result.seq,) if result.seq else () for result in step.results]
    if step.texts:
        seqs.append(tuple(dict.fromkeys(filter(None, step.text_seqs))))
    return seqs


def without_nulls(options: JsonObject) -> JsonObject:
    return {name: value for name, value in options.items() if value is not None}


def word_of(value: JsonValue) -> str:
    return value if isinstance(value, str) else ""


def count_of(figures: JsonValue, name: str) -> int:
    count = figures.get(name) if isinstance(figures, dict) else None
    return max(count, 0) if isinstance(count, int) else 0


def failure_of_event(event: JsonObject, *, before_first_token: bool) -> ProviderError:
    """Its fields stand under `error`, or, as the reference of responses shows, beside it."""
    error = event.get("error")
    told = error if isinstance(error, dict) else event
    code = told.get("code")
    return failure_in_stream(
        kind=word_of(told.get("type")),
        code=word_of(code),
        message=word_of(told.get("message")),
        status=code if isinstance(code, int) else None,  # as routers to other servers do
        before_first_token=before_first_token,
    )
