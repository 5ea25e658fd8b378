"""The form of a request: OpenAI's two APIs, reasoning sent back, the effort, the cache key."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec import structs
from tests.server.conversations import Stage
from tests.server.providers.openai_stage import request
from tests.server.providers.poison_stage import conversation_with
from tests.support.vendor_models import rendered_in
from tests.vendors.answers import Answer, Call, Text, Thinking, ToolCall, say
from tests.vendors.emulator import Emulator, emulator
from tests.vendors.models import GPT_MODELS
from tests.vendors.rejections import Rejection
from tests.vendors.sse import Wire

from nplt_protocol.messages import AgentThought
from nplt_server.errors import ProviderRefused
from nplt_server.providers import Patience, ProviderClient
from nplt_server.providers.build import ProviderBuilder
from nplt_server.providers.client import VendorProvider
from nplt_server.providers.openai_chat import ChatApi
from nplt_server.providers.openai_responses import ResponsesApi
from nplt_server.request_form import RequestForm
from nplt_server.settings import OpenAISettings
from nplt_storage.entries import ModelOutputEntry

# What a deployment takes nobody knows by its name.
NAMED = [each.name for each in GPT_MODELS if each.vendor == "openai" and "gpt" in each.name]
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


@asynccontextmanager
async def provider_of(
    vendors: Emulator, *models: str, **more: Any
) -> AsyncIterator[ProviderClient]:
    settings = OpenAISettings(
        id="box", base_url=vendors.openai_url, api_key_env="KEY", models=models, **more
    )
    builder = ProviderBuilder(environ={"KEY": vendors.key}, models={}, patience=Patience())
    provider = builder.build(settings)
    try:
        yield provider
    finally:
        await provider.aclose()


def calls_a_tool(call: Call) -> Answer:
    asked = call.body["input"] if call.api == "responses" else call.body["messages"]
    is_first = not any("call_id" in each or each.get("role") == "tool" for each in asked)
    return Answer(parts=(ToolCall("now"),)) if is_first else say("done")


def called(vendors: Emulator) -> list[str | None]:
    return [each.api for each in vendors.received]


def specifications(stage: Stage) -> list[str]:
    entries = stage.conversation.history.entries
    outputs = [each for each in entries if isinstance(each, ModelOutputEntry)]
    return [each.invocation.specification for each in outputs if each.invocation]


@pytest.mark.parametrize("model", ["gpt-5.6", "gpt-6-luna", "gpt-6.1-sol"])
async def test_models_that_need_responses_for_tools_get_it_at_any_address(model: str) -> None:
    async with (
        emulator(calls_a_tool) as vendors,
        provider_of(vendors, model) as provider,
        conversation_with([], provider) as stage,
    ):
        assert (await stage.play("what time is it?")).state == "completed"
    assert called(vendors) == ["responses", "responses"]


async def test_the_api_is_learned_from_a_refusal_once_and_the_record_names_it() -> None:
    async with (
        emulator(calls_a_tool) as vendors,
        provider_of(vendors, "deployment-of-mine") as provider,
        conversation_with([], provider) as stage,
    ):
        assert (await stage.play("what time is it?")).state == "completed"
        vendors.script = lambda call: say("again")
        assert (await stage.play("and now?")).state == "completed"
        assert specifications(stage) == ["openai-responses"] * 3
    assert called(vendors) == ["chat", "responses", "responses", "responses"]


async def test_a_server_that_has_no_responses_is_asked_through_chat() -> None:
    def only_chat(call: Call) -> Answer:
        if call.api == "responses":
            raise Rejection("Not Found", status=404)
        return say("hello")

    async with (
        emulator(only_chat) as vendors,
        provider_of(vendors, "gpt-6-luna") as provider,
        conversation_with([], provider) as stage,
    ):
        for text in ("one", "two"):
            assert (await stage.play(text)).state == "completed"
        assert specifications(stage) == ["openai-chat"] * 2
    assert called(vendors) == ["responses", "chat", "chat"]


async def test_an_api_that_is_set_is_kept_and_tools_are_called_without_reasoning() -> None:
    async with (
        emulator(calls_a_tool) as vendors,
        provider_of(vendors, "gpt-5.6", api="chat") as provider,
        conversation_with([], provider) as stage,
    ):
        assert (await stage.play("what time is it?")).state == "completed"
    assert called(vendors) == ["chat", "chat"]
    assert vendors.rejections == []


async def test_another_api_is_tried_without_an_event_a_log_line_or_a_failure_in_the_metrics(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with (
        emulator(calls_a_tool) as vendors,
        provider_of(vendors, "deployment-of-mine") as provider,
        conversation_with([], provider) as stage,
    ):
        assert (await stage.play("what time is it?")).state == "completed"
        metrics = stage.conversation.services.router.route_of("box/deployment-of-mine").metrics
    assert called(vendors) == ["chat", "responses", "responses"]
    assert "retrying" not in [e.type for e in stage.ear.received if isinstance(e, AgentThought)]
    assert (metrics.calls, metrics.retries, metrics.failures) == (2, 0, {})
    assert [record.message for record in caplog.records if record.levelname != "DEBUG"] == []


async def test_if_both_apis_are_refused_the_first_refusal_ends_the_turn() -> None:
    def neither(call: Call) -> Answer:
        raise Rejection(f"there is no {call.api} here", status=404)

    async with (
        emulator(neither) as vendors,
        provider_of(vendors, "gpt-4o-mini") as provider,
        conversation_with([], provider) as stage,
    ):
        finished = await stage.play("hello")
    assert called(vendors) == ["chat", "responses"]
    assert finished.error is not None
    assert "there is no chat here" in str(finished.error["message"])


async def test_if_the_other_api_refuses_something_else_that_refusal_ends_the_turn() -> None:
    def picky(call: Call) -> Answer:
        if call.api == "chat":
            raise Rejection("This model is only supported in v1/responses.", status=404)
        raise Rejection("the temperature is too high", param="temperature")

    async with (
        emulator(picky) as vendors,
        provider_of(vendors, "gpt-4o-mini") as provider,
        conversation_with([], provider) as stage,
    ):
        finished = await stage.play("hello")
    assert called(vendors) == ["chat", "responses"]
    assert finished.error is not None
    assert "the temperature is too high" in str(finished.error["message"])


async def test_a_refusal_offers_each_form_once() -> None:
    def picky(call: Call) -> Answer:
        body = call.body
        if "response_format" in body or "text" in body:
            raise Rejection("response_format is not supported", param="response_format")
        raise Rejection("Not Found", status=404)

    asked = request(model="gpt-4o-mini", tools=(), options={"schema": {"type": "object"}})
    offered: list[RequestForm | None] = []
    async with (
        emulator(picky) as vendors,
        provider_of(vendors, "gpt-4o-mini") as provider,
    ):
        while not offered or offered[-1] is not None:
            form = offered[-1] if offered else None
            with pytest.raises(ProviderRefused) as caught:
                async with provider.call_model(structs.replace(asked, form=form)) as deltas:
                    assert [delta async for delta in deltas] == []
            offered.append(caught.value.instead)
    without_schema = RequestForm(without_schema=True)
    elsewhere = RequestForm(specification="openai-responses", without_schema=True)
    assert offered == [without_schema, elsewhere, None]
    assert called(vendors) == ["chat", "chat", "responses"]


async def test_a_wrong_url_is_reported_as_it_is_and_changes_no_choice_of_api() -> None:
    def unreachable(call: Call) -> Answer:
        raise Rejection("Not Found", status=404)

    async with (
        emulator(unreachable) as vendors,
        provider_of(vendors, "gpt-4o-mini") as provider,
        conversation_with([], provider) as stage,
    ):
        assert (await stage.play("one")).state == "failed"
        vendors.script = lambda call: Answer(parts=(Text("here"),))
        assert (await stage.play("two")).state == "completed"
    assert called(vendors) == ["chat", "responses", "chat"]


@pytest.mark.parametrize("effort", EFFORTS)
@pytest.mark.parametrize("model", NAMED)
@pytest.mark.parametrize("api", ["chat", "responses"])
def test_every_effort_is_one_the_model_takes(api: str, model: str, effort: str) -> None:
    vendor_api = ChatApi() if api == "chat" else ResponsesApi()
    tools = () if api == "chat" else request().tools
    asked = request(vendor_api=vendor_api, model=model, tools=tools, options={"effort": effort})
    body = rendered_in(vendor_api, asked).body
    Emulator().api("chat" if api == "chat" else "responses").admit(body)


@pytest.mark.parametrize(
    ("model", "asked", "sent"),
    [
        ("gpt-6-luna", "minimal", "low"),
        ("gpt-6.1-sol", "none", "low"),
        ("gpt-5.2", "max", "xhigh"),
        ("gpt-5.1", "xhigh", "high"),
        ("gpt-5-mini", "none", "minimal"),
        ("o3", "max", "high"),
        ("openai/gpt-6-luna", "minimal", "low"),
        ("qwen3:8b", "minimal", "minimal"),
    ],
)
def test_an_effort_a_model_lacks_becomes_the_nearest(model: str, asked: str, sent: str) -> None:
    body = rendered_in(
        ResponsesApi(), request(vendor_api=ResponsesApi(), model=model, options={"effort": asked})
    ).body
    assert body["reasoning"]["effort"] == sent


# Reasoning that goes back, or does not


def thinks_and_calls_a_tool(call: Call) -> Answer:
    rounds = sum(each.get("role") == "tool" for each in call.body["messages"])
    parts = (Thinking("the sky first"), ToolCall("now"))
    return Answer(parts=parts) if rounds % 2 == 0 else say("done")


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ("acme-thinker", "must be passed back to the API"),
        ("deepseek-distilled", "reasoning_content"),
    ],
)
async def test_whether_a_model_wants_its_reasoning_back_is_learned_from_its_refusal(
    model: str, sentence: str
) -> None:
    async with (
        emulator(thinks_and_calls_a_tool) as vendors,
        provider_of(vendors, model) as provider,
        conversation_with([], provider) as stage,
    ):
        vendors.wire = Wire(reasoning_field="reasoning_content")
        assert (await stage.play("what time is it?")).state == "completed"
        (refused,) = vendors.rejections
        assert sentence in refused.message
        assert (await stage.play("and now?")).state == "completed"
    assert vendors.rejections == [refused]  # once


async def test_a_repeated_refusal_of_reasoning_is_reported_unchanged() -> None:
    def refuses(call: Call) -> Answer:
        raise Rejection("The `reasoning_content` must be passed back.")

    async with (
        emulator(refuses) as vendors,
        provider_of(vendors, "acme-thinker") as provider,
        conversation_with([], provider) as stage,
    ):
        finished = await stage.play("hello")
    assert finished.state == "failed"
    assert len(vendors.rejections) == 2


# The key of the prompt's cache


@pytest.mark.parametrize("model", ["gpt-5.2", "gpt-6-luna"])
async def test_all_calls_of_a_conversation_have_one_cache_key_that_tells_nothing(
    model: str,
) -> None:
    async with (
        emulator(calls_a_tool) as vendors,
        provider_of(vendors, model, cache_key=True) as provider,
        conversation_with([], provider) as stage,
    ):
        await stage.play("what time is it?")
        await stage.play("and now?")
    keys: set[Any] = {each.body["prompt_cache_key"] for each in vendors.received}  # type: ignore[index]
    (key,) = keys
    assert len(vendors.received) == 3
    assert len(key) == 32
    assert stage.conversation.session_id not in key


async def test_other_servers_get_no_cache_key_unless_they_are_known_to_take_it() -> None:
    azure = OpenAISettings.model_validate({"type": "azure", "base_url": "https://x/openai/v1"})
    assert azure.cache_key
    async with (
        emulator() as vendors,
        provider_of(vendors, "gpt-5.2") as provider,
        conversation_with([], provider) as stage,
    ):
        await stage.play("hello")
    (received,) = vendors.received
    assert isinstance(received.body, dict)
    assert "prompt_cache_key" not in received.body


async def test_openai_itself_gets_a_cache_key() -> None:
    builder = ProviderBuilder(environ={"OPENAI_API_KEY": "sk"}, models={}, patience=Patience())
    provider = builder.build(OpenAISettings())
    assert isinstance(provider, VendorProvider)
    asked = structs.replace(request(model="gpt-6.1-sol"), cache_key="k" * 32)
    api = provider._api_in(RequestForm(), "gpt-6.1-sol")
    body = rendered_in(api, asked).body
    assert body["prompt_cache_key"] == "k" * 32
