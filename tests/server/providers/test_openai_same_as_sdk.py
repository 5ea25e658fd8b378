"""An answer read by us is the one the SDK's own objects tell."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from msgspec import structs
from tests.server.providers.openai_stage import (
    CHAT,
    RESPONSES,
    calls_of,
    deltas_of,
    provider_of,
    request,
)
from tests.support.vendor_models import rendered_in
from tests.vendors.answers import Answer, Call, Refusal, Text, Thinking, ToolCall, say
from tests.vendors.emulator import Emulator, emulator
from tests.vendors.sse import Wire

from nplt_server.providers import UsageReport
from nplt_server.providers.vendor_api import VendorApi

ANSWERS = {
    "text": say("Grüße, 世界 👋", " and more"),
    "calls": Answer(
        parts=(Thinking("hm"), Text("I will."), ToolCall("look", '{"at": "é"}'), ToolCall("look"))
    ),
    "refusal": Answer(parts=(Refusal("I won't."),)),
    "length": Answer(parts=(Text("cut sho"),), stop="length"),
}
WIRES = {
    "plain": Wire(),
    "odd": Wire(
        line_end="\r\n",
        comments=True,
        pings=True,
        extra_fields=True,
        empty_choices=True,
    ),
}
REASONS = {
    "stop": "end",
    "completed": "end",
    "max_output_tokens": "length",
}


@pytest.fixture
async def vendors() -> AsyncIterator[Emulator]:
    async with emulator() as opened:
        yield opened


@pytest.mark.parametrize("vendor_api", [CHAT, RESPONSES], ids=["chat", "responses"])
@pytest.mark.parametrize("wire", WIRES)
async def test_an_answer_is_the_same_as_through_the_sdks_objects(
    vendors: Emulator, vendor_api: VendorApi, wire: str
) -> None:
    vendors.wire = WIRES[wire]
    async with provider_of(vendors, vendor_api) as provider, _sdk(vendors) as sdk:
        for name, answer in ANSWERS.items():
            vendors.script = partial(_say_always, answer)
            asked = request(vendor_api=vendor_api)
            ours = await deltas_of(provider, asked, [])
            body: Any = rendered_in(vendor_api, asked).body
            theirs = await (_chat if vendor_api is CHAT else _response)(sdk, body)
            assert ours.usage is not None
            usage = structs.replace(ours.usage, raw=None)
            assert (ours.text, calls_of(ours), ours.stop_reason, usage) == theirs, name


def _say_always(answer: Answer, _: Call) -> Answer:
    return answer


@asynccontextmanager
async def _sdk(vendors: Emulator) -> AsyncIterator[Any]:
    import httpx2
    import openai

    async with openai.AsyncOpenAI(
        base_url=vendors.openai_url,
        api_key=vendors.key,
        max_retries=0,
        http_client=httpx2.AsyncClient(verify=False),
    ) as sdk:
        yield sdk


async def _chat(sdk: Any, body: Any) -> tuple[object, ...]:
    text, reason, refused, usage = "", "", False, None
    calls: list[list[str]] = []
    async for chunk in await sdk.chat.completions.create(**body):
        for choice in chunk.choices:
            text += (choice.delta.content or "") + (choice.delta.refusal or "")
            refused = refused or bool(choice.delta.refusal)
            reason = choice.finish_reason or reason
            for call in choice.delta.tool_calls or []:
                if call.id:
                    calls.append([call.function.name, ""])
                calls[call.index][1] += call.function.arguments
        usage = chunk.usage or usage
    assert usage is not None
    counted = UsageReport(
        input_tokens=usage.prompt_tokens,
        output_tokens=usage.completion_tokens,
        cached_tokens=usage.prompt_tokens_details.cached_tokens,
    )
    reason_sent = "refusal" if refused else REASONS.get(reason, reason)
    return text, [tuple(call) for call in calls], reason_sent, counted


async def _response(sdk: Any, body: Any) -> tuple[object, ...]:
    """Of the last event, which holds the whole answer again."""
    whole = [event async for event in await sdk.responses.create(**body)][-1].response
    contents = [part for item in whole.output if item.type == "message" for part in item.content]
    refusals = [part.refusal for part in contents if part.type == "refusal"]
    calls = [(item.name, item.arguments) for item in whole.output if item.type == "function_call"]
    counted = UsageReport(
        input_tokens=whole.usage.input_tokens,
        output_tokens=whole.usage.output_tokens,
        cached_tokens=whole.usage.input_tokens_details.cached_tokens,
    )
    reason_sent = whole.incomplete_details.reason if whole.incomplete_details else whole.status
    reason = "tool_calls" if calls else "refusal" if refusals else REASONS[reason_sent]
    return whole.output_text + "".join(refusals), calls, reason, counted
