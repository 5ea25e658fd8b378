"""OpenAI's client, and what its two APIs share: the options a model takes, read from its name,
tools, schemas, usage. The APIs are in `openai_chat` and `openai_responses`.

Options a model is known to refuse are left out; unknown models get everything.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from nplt_protocol import JsonObject, JsonValue
from nplt_protocol.messages import EFFORTS
from nplt_server.digest.text import clean_text
from nplt_server.providers import LlmRequest, UsageReport
from nplt_server.providers.client import VendorClient
from nplt_server.providers.compiler import UserStep, fitting_tool_name, own_names
from nplt_server.providers.schemas import (
    NOT_AT_THE_TOP,
    for_openai,
    in_words,
    plain_object,
    well_formed,
)
from nplt_server.providers.sse import object_of
from nplt_server.providers.vendor_api import RenderedRequest, Rendering
from nplt_server.tools import ToolDescription

if TYPE_CHECKING:
    import httpx2
    import openai


class OpenAIClient(VendorClient):
    vendor = "OpenAI"
    vendor_url = "https://api.openai.com/v1"

    def _open(self, http: httpx2.AsyncClient) -> openai.AsyncOpenAI:
        import openai

        sdk = openai.AsyncOpenAI(
            api_key=self._api_key,
            base_url=self.address,
            max_retries=0,
            timeout=None,
            http_client=http,
        )
        sdk.organization = sdk.project = None
        sdk._custom_headers = self._headers
        return sdk

    async def _ask(self, sdk: openai.AsyncOpenAI, rendered: RenderedRequest) -> None:
        if rendered.list_name == "input":
            await sdk.responses.with_raw_response.create(stream=True)
        else:
            await sdk.chat.completions.with_raw_response.create(model="", messages=(), stream=True)

    async def _ask_for_models(self, sdk: openai.AsyncOpenAI, after: str | None) -> None:
        await sdk.models.with_raw_response.list()

    def _address_hint(self, path: str) -> str:
        return "" if "/v1" in path else "it mostly ends in /v1"


# ------------------------------------------------------------------------------
# What both APIs share: options, tools, schemas, usage

_TOOLS_MAX = 128
_DESCRIPTION_CHARACTERS_MAX = 1024
# `o3-mini`, `gpt-5.6`, `codex-mini`; also behind a vendor's name, as routers write it.
_REASONS = re.compile(r"(?:.*/)?(?:o\d|gpt-(?:[5-9]|\d\d)(?!.*-chat)|codex)")
DOES_NOT_REASON = re.compile(r"(?:.*/)?(?:gpt-[34]|chatgpt|gpt-5.*-chat)")
# By family; of an unknown one nothing is known, so it is sent what was asked for. GPT-6 Astra
# and GPT-6.1 Sol always reason.
FAMILY = re.compile(r"(?:.*/)?(?:(o)\d|gpt-(\d+)(?:\.(\d+))?)")
_ALWAYS_REASONS = re.compile(r"(?:.*/)?gpt-(?:6-astra|6\.1-sol)")
_EFFORTS_SINCE = (
    ((5, 6), ("none", "low", "medium", "high", "xhigh", "max")),
    ((5, 2), ("none", "low", "medium", "high", "xhigh")),
    ((5, 1), ("none", "low", "medium", "high")),
    ((5, 0), ("minimal", "low", "medium", "high")),
)
_NO_EFFORT_WITH_TOOLS_SINCE = (5, 4)
RESPONSES_SINCE = (5, 6)


def _version_of(model: str) -> tuple[int, int]:
    """(0, 0): not known."""
    found = FAMILY.match(model)
    return (int(found[2]), int(found[3] or 0)) if found and found[2] else (0, 0)


def is_bound_since(version: tuple[int, int], model: str) -> bool:
    """Whether a rule of OpenAI's for models that reason holds for it. A router, which writes a
    vendor before the name, has ways of its own."""
    return "/" not in model and _version_of(model) >= version and may_reason(model)


def may_reason(model: str) -> bool:
    return DOES_NOT_REASON.match(model) is None


def _efforts_of(model: str) -> tuple[str, ...]:
    """The efforts that the model accepts."""
    found, version = FAMILY.match(model), _version_of(model)
    if found and found[1]:
        return ("low", "medium", "high")
    known = next((shown for since, shown in _EFFORTS_SINCE if version >= since), EFFORTS)
    return known[1:] if _ALWAYS_REASONS.match(model) else known


def effort_of(request: LlmRequest) -> str | None:
    """The nearest the model takes: the highest that is not above what was asked for, but no
    less than some, unless none was asked for."""
    model, wanted = request.invocation.model, request.options.get("effort")
    if not isinstance(wanted, str) or wanted not in EFFORTS or not may_reason(model):
        return None
    known = _efforts_of(model)
    if wanted in known:
        return wanted
    below = EFFORTS[1 : EFFORTS.index(wanted)]
    some = [each for each in known if each != "none"]
    return next((each for each in reversed(some) if each in below), some[0])


def chat_effort_of(request: LlmRequest) -> str | None:
    """Through chat completions newer models call tools only if they don't reason."""
    model = request.invocation.model
    if not request.tools or not is_bound_since(_NO_EFFORT_WITH_TOOLS_SINCE, model):
        return effort_of(request)
    return "none" if "none" in _efforts_of(model) else None


def sampling_of(request: LlmRequest) -> JsonObject:
    """The options that reasoning models refuse."""
    if _REASONS.match(request.invocation.model):
        return {}
    return {"temperature": request.temperature(2.0), "top_p": request.top_p}


def tool_options(request: LlmRequest, name_tool: Callable[[str], JsonValue]) -> JsonObject:
    """`name_tool` makes the value that requires a call of the tool of that name."""
    chosen = request.chosen_tool
    choice = request.tool_choice if chosen is None else name_tool(fitting_tool_name(chosen))
    return {"tool_choice": choice, "parallel_tool_calls": request.parallel_tool_calls}


def functions_of(tools: tuple[ToolDescription, ...]) -> list[JsonObject]:
    return [
        {
            "name": fitting_tool_name(tool.name),
            "description": _description(tool),
            "parameters": plain_object(well_formed(tool.parameters)),
        }
        for tool in tools[:_TOOLS_MAX]
    ]


def _description(tool: ToolDescription) -> str:
    """Adds the schema to the text where it can't be sent as it is and there is room for all of it:
    half of one would mislead."""
    description = clean_text(tool.description)[:_DESCRIPTION_CHARACTERS_MAX]
    if NOT_AT_THE_TOP.isdisjoint(tool.parameters):
        return description
    shown = f"{description}\n\n{in_words(tool.parameters)}"
    return shown if len(shown) <= _DESCRIPTION_CHARACTERS_MAX else description


def schema_format(request: LlmRequest) -> JsonObject | None:
    """The schema of the answer, as both APIs take it."""
    if request.schema is None or (shown := for_openai(request.schema)) is None:
        return None
    schema, is_strict = shown
    return {"name": "answer", "schema": schema, "strict": is_strict}


def seqs_of_user_step(step: UserStep) -> list[tuple[int, ...]]:
    """The seqs of each message that a user step becomes: its results, then its texts as one."""
    seqs: list[tuple[int, ...]] = [(result.seq,) if result.seq else () for result in step.results]
    if step.texts:
        seqs.append(tuple(dict.fromkeys(filter(None, step.text_seqs))))
    return seqs


def rendered_tools(
    rendering: Rendering, tools: tuple[ToolDescription, ...]
) -> tuple[list[JsonObject], dict[str, str]]:
    """The tools as functions, and their own names by those that are sent."""
    return rendering.tools(tools, lambda: (functions_of(tools), own_names(tools[:_TOOLS_MAX])))


def without_nulls(options: JsonObject) -> JsonObject:
    return {name: value for name, value in options.items() if value is not None}


def usage_of(usage: JsonObject, *, sent: str, output: str) -> UsageReport:
    """`sent` and `output`: how the names of these counts begin, which differs by API."""

    def count(figures: JsonObject, name: str) -> int:
        number = figures.get(name)
        return max(number, 0) if isinstance(number, int) else 0

    details = object_of(usage.get(f"{sent}_tokens_details"))
    return UsageReport(
        raw=usage,
        input_tokens=count(usage, f"{sent}_tokens"),
        output_tokens=count(usage, f"{output}_tokens"),
        cached_tokens=count(details, "cached_tokens"),
        cache_write_tokens=count(details, "cache_write_tokens"),
    )
