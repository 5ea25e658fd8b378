"""What OpenAI's two APIs share: the client, tools, options, error events.

The client is also that of servers that speak one of them.

Options a model is known to refuse are left out; unknown models get everything.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

from nplt_protocol import JsonObject, JsonValue
from nplt_protocol.messages import EFFORTS
from nplt_server.digest.text import clean_text
from nplt_server.providers import ModelRequest, UsageReport
from nplt_server.providers.client import RawResponse, RenderedRequest, VendorClient
from nplt_server.providers.compiler import UserStep, fitting_tool_name
from nplt_server.providers.schemas import (
    NOT_AT_THE_TOP,
    for_openai,
    in_words,
    plain_object,
    well_formed,
)
from nplt_server.tools import ToolDescription

if TYPE_CHECKING:
    import openai

    from nplt_server.providers.http_client import ProviderHttpClient


class OpenAIClient(VendorClient):
    vendor = "OpenAI"
    vendor_url = "https://api.openai.com/v1"

    def _open(self, http: ProviderHttpClient) -> openai.AsyncOpenAI:
        import openai

        self._sdk_error = openai.OpenAIError
        sdk = openai.AsyncOpenAI(
            api_key=self._api_key,
            base_url=self.address,
            max_retries=0,
            timeout=http.timeout,
            http_client=http,
        )
        sdk.organization = sdk.project = None
        sdk._custom_headers = self._headers
        return sdk

    async def _pages(self, sdk: openai.AsyncOpenAI) -> AsyncIterator[RawResponse]:
        yield await sdk.models.with_raw_response.list()

    def _address_hint(self, path: str) -> str:
        return "" if "/v1" in path else "it mostly ends in /v1"

    def _request(
        self, sdk: openai.AsyncOpenAI, rendered: RenderedRequest
    ) -> AbstractAsyncContextManager[RawResponse]:
        body = rendered.body
        if "input" in body:
            return sdk.responses.with_streaming_response.create(stream=True, extra_body=body)
        return sdk.chat.completions.with_streaming_response.create(
            model="", messages=(), stream=True, extra_body=body
        )


TOOLS_MAX = 128
_DESCRIPTION_CHARACTERS_MAX = 1024
# `o3-mini`, `gpt-5.6`, `codex-mini`; also behind a vendor's name, as routers write it.
_REASONS = re.compile(r"(?:.*/)?(?:o\d|gpt-(?:[5-9]|\d\d)(?!.*-chat)|codex)")
_DOES_NOT_REASON = re.compile(r"(?:.*/)?(?:gpt-[34]|chatgpt|gpt-5.*-chat)")


# By family; of an unknown one nothing is known, so it is sent what was asked for. GPT-6 Astra
# and GPT-6.1 Sol always reason.
_FAMILY = re.compile(r"(?:.*/)?(?:(o)\d|gpt-(\d+)(?:\.(\d+))?)")
_ALWAYS_REASONS = re.compile(r"(?:.*/)?gpt-(?:6-astra|6\.1-sol)")
_EFFORTS_SINCE = (
    ((5, 6), ("none", "low", "medium", "high", "xhigh", "max")),
    ((5, 2), ("none", "low", "medium", "high", "xhigh")),
    ((5, 1), ("none", "low", "medium", "high")),
    ((5, 0), ("minimal", "low", "medium", "high")),
)
_NO_EFFORT_WITH_TOOLS_SINCE = (5, 4)
_RESPONSES_SINCE = (5, 6)


def _version_of(model: str) -> tuple[int, int] | None:
    found = _FAMILY.match(model)
    return (int(found[2]), int(found[3] or 0)) if found and found[2] else None


def needs_responses(model: str) -> bool:
    """Its tools and its reasoning are not to be had together through chat completions. A
    router, which writes a vendor before the name, has ways of its own."""
    version = None if "/" in model else _version_of(model)
    return version is not None and version >= _RESPONSES_SINCE and may_reason(model)


def efforts_of(model: str) -> tuple[str, ...]:
    """Those the model takes."""
    found, version = _FAMILY.match(model), _version_of(model)
    if found and found[1]:
        return ("low", "medium", "high")
    known = next((told for since, told in _EFFORTS_SINCE if version and version >= since), EFFORTS)
    return known[1:] if _ALWAYS_REASONS.match(model) else known


def may_reason(model: str) -> bool:
    return _DOES_NOT_REASON.match(model) is None


def temperature_of(request: ModelRequest) -> float | None:
    return None if _REASONS.match(request.invocation.model) else request.temperature(2.0)


def effort_of(request: ModelRequest) -> str | None:
    """The nearest the model takes: the highest that is not above what was asked for, but no
    less than some, unless none was asked for."""
    model, wanted = request.invocation.model, request.options.get("effort")
    if not isinstance(wanted, str) or wanted not in EFFORTS or not may_reason(model):
        return None
    known = efforts_of(model)
    if wanted in known:
        return wanted
    below = EFFORTS[1 : EFFORTS.index(wanted)]
    some = [each for each in known if each != "none"]
    return next((each for each in reversed(some) if each in below), some[0])


def chat_effort_of(request: ModelRequest) -> str | None:
    """Through chat completions newer models call tools only if they don't reason."""
    model = request.invocation.model
    version = None if "/" in model else _version_of(model)
    is_bound = version is not None and version >= _NO_EFFORT_WITH_TOOLS_SINCE
    if not is_bound or not request.tools or not may_reason(model):
        return effort_of(request)
    return "none" if "none" in efforts_of(model) else None


def functions_of(tools: tuple[ToolDescription, ...]) -> list[dict[str, JsonValue]]:
    return [
        {
            "name": fitting_tool_name(tool.name),
            "description": _description(tool),
            "parameters": plain_object(well_formed(tool.parameters)),
        }
        for tool in tools[:TOOLS_MAX]
    ]


def _description(tool: ToolDescription) -> str:
    """With the schema, where that can't be sent as it is, if there is room for all of it:
    half of one would mislead."""
    description = clean_text(tool.description)[:_DESCRIPTION_CHARACTERS_MAX]
    if NOT_AT_THE_TOP.isdisjoint(tool.parameters):
        return description
    told = f"{description}\n\n{in_words(tool.parameters)}"
    return told if len(told) <= _DESCRIPTION_CHARACTERS_MAX else description


def is_openai(model: str) -> bool:
    """By its name; also behind a router."""
    return _FAMILY.match(model) is not None or _DOES_NOT_REASON.match(model) is not None


def schema_format(request: ModelRequest) -> JsonObject | None:
    """The schema of the answer, as both APIs take it."""
    if request.schema is None or (told := for_openai(request.schema)) is None:
        return None
    schema, is_strict = told
    return {"name": "answer", "schema": schema, "strict": is_strict}


def seqs_of_user_step(step: UserStep) -> list[tuple[int, ...]]:
    """Of each message a step of the user becomes: its results, then its texts as one."""
    seqs: list[tuple[int, ...]] = [(result.seq,) if result.seq else () for result in step.results]
    if step.texts:
        seqs.append(tuple(dict.fromkeys(filter(None, step.text_seqs))))
    return seqs


def without_nulls(options: JsonObject) -> JsonObject:
    return {name: value for name, value in options.items() if value is not None}


def count_of(figures: JsonValue, name: str) -> int:
    count = figures.get(name) if isinstance(figures, dict) else None
    return max(count, 0) if isinstance(count, int) else 0


def usage_of(usage: JsonObject, *, sent: str, said: str) -> UsageReport:
    """The APIs have different names for what was sent and what was said."""
    details = usage.get(f"{sent}_tokens_details")
    return UsageReport(
        input_tokens=count_of(usage, f"{sent}_tokens"),
        output_tokens=count_of(usage, f"{said}_tokens"),
        cached_tokens=count_of(details, "cached_tokens"),
        cache_write_tokens=count_of(details, "cache_write_tokens"),
    )
