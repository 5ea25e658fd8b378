"""Servers that answer 200 with a JSON body where a stream was asked for; and addresses."""

from __future__ import annotations

from typing import Any

import pytest
from tests.server.providers.anthropic_stage import deltas_of
from tests.server.providers.poison_stage import APIS, conversation_with, provider_for
from tests.vendors.answers import Answer, ApiName, Call, Text, Thinking, ToolCall, say
from tests.vendors.emulator import emulator
from tests.vendors.sse import Wire

from nplt_server.context.messages import ModelInputMessage
from nplt_server.errors import ProviderError
from nplt_server.providers import LlmRequest, Patience, ProviderClient
from nplt_server.providers.build import ProviderBuilder
from nplt_server.settings import AnthropicSettings, OpenAISettings
from nplt_storage.entries import ModelInvocationDescriptor, ModelOutputEntry

WHOLE = Wire(never_streams=True, reasoning_field="reasoning_content")


@pytest.mark.parametrize("api", APIS)
async def test_a_whole_answer_is_read_as_the_answer_it_is(api: ApiName) -> None:
    def script(call: Call) -> Answer:
        if call.number == 1:
            return Answer(parts=(Thinking("the time"), Text("I look."), ToolCall("now")))
        return say("It is noon.")

    async with (
        emulator(script) as vendors,
        provider_for(api, vendors) as provider,
        conversation_with([], provider) as stage,
    ):
        vendors.wire = WHOLE
        finished = await stage.play("what time is it?")
        entries = stage.conversation.history.entries
    assert finished.state == "completed"
    assert len(vendors.received) == 2
    first, second = (entry for entry in entries if isinstance(entry, ModelOutputEntry))
    assert (first.content, [c.tool_name for c in first.tool_calls]) == ("I look.", ["now"])
    assert (second.content, second.stop_reason) == ("It is noon.", "end")
    assert (second.usage or {})["output_tokens"]


def built(kind: str, url: str, key: str, **more: Any) -> ProviderClient:
    settings = {"id": "box", "base_url": url, "api_key_env": "KEY", "models": ("m",), **more}
    builder = ProviderBuilder(environ={"KEY": key}, models={}, patience=Patience())
    if kind == "anthropic":
        return builder.build(AnthropicSettings(**settings))
    return builder.build(OpenAISettings(**settings))


async def fails(provider: ProviderClient) -> ProviderError:
    invocation = ModelInvocationDescriptor(
        provider="box", specification=provider.specification_of("m"), model="m"
    )
    asked = LlmRequest(invocation=invocation, context=(ModelInputMessage(content="hello", seq=1),))
    try:
        with pytest.raises(ProviderError) as caught:
            await deltas_of(provider, asked)
    finally:
        await provider.aclose()
    return caught.value


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
async def test_at_a_gateway_the_key_is_where_either_kind_looks_and_headers_are_sent(
    kind: str,
) -> None:
    async with emulator() as vendors:
        url = vendors.openai_url if kind == "openai" else vendors.anthropic_url
        await fails(built(kind, url, vendors.key, headers={"X-Team": "us"}))  # no such model
        sent = vendors.received[0].headers
    assert sent["authorization"] == f"Bearer {vendors.key}"
    assert sent["x-api-key"] == vendors.key
    assert sent["x-team"] == "us"


@pytest.mark.parametrize(
    ("kind", "path", "says"),
    [("openai", "", "ends in /v1"), ("anthropic", "/v1", "without /v1")],
)
async def test_a_base_url_with_a_wrong_v1_is_reported(kind: str, path: str, says: str) -> None:
    async with emulator() as vendors:
        failure = await fails(built(kind, f"{vendors.url}{path}", vendors.key))
    assert says in str(failure)
    assert "base_url" in str(failure)
