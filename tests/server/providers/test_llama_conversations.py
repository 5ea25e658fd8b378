"""Conversations with llama.cpp's own server, by each of the three APIs it speaks."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import get_args

import pytest
from tests.server.providers.contract import PAINT, accumulated
from tests.server.providers.contract_stages import Api, provider_of
from tests.support.llama import speech
from tests.support.llama.server import MODEL, llama_server

from nplt_protocol import JsonObject
from nplt_server.context.messages import (
    ContextMessage,
    ModelInputMessage,
    ModelOutputMessage,
    SystemMessage,
    ToolResultsMessage,
)
from nplt_server.errors import RequestTooLarge
from nplt_server.providers import LlmRequest, ProviderClient
from nplt_server.providers.schemas import fault_of_answer
from nplt_server.tools import ToolDescription
from nplt_storage.entries import ModelInvocationDescriptor, ToolCallResult

EACH_API = pytest.mark.parametrize("api", get_args(Api))


class Talk:
    """Asked, answered, remembered, asked again; the API may change on the way."""

    def __init__(self) -> None:
        self.context: list[ContextMessage] = [SystemMessage(instruction="be brief")]

    async def goes_on(self, api: Api, *tools: ToolDescription) -> ModelOutputMessage:
        provider = llama(api)
        asked = ModelInvocationDescriptor(
            provider=provider.id, specification=provider.specification_of(MODEL), model=MODEL
        )
        request = LlmRequest(invocation=asked, context=tuple(self.context), tools=tools)
        try:
            async with provider.call_model(request) as deltas:
                output = accumulated([delta async for delta in deltas])
        finally:
            await provider.aclose()
        entry = output.entry(
            turn_id="t", call=0, invocation=asked, new_call_id=lambda: f"own-{self._seq}"
        )
        answer = ModelOutputMessage(
            content=entry.content,
            tool_calls=entry.tool_calls,
            invocation=asked,
            parts=entry.parts,
            seq=self._seq,
        )
        self.context.append(answer)
        return answer

    def prompt(self, text: str) -> None:
        self.context.append(ModelInputMessage(content=text, seq=self._seq))

    def runs(self, answer: ModelOutputMessage) -> None:
        results = tuple(
            ToolCallResult(
                tool_call_id=call.tool_call_id,
                tool_name=call.tool_name,
                status="success",
                result="painted",
                duration=0.1,
                timestamp=datetime(2026, 1, 1, tzinfo=UTC),
            )
            for call in answer.tool_calls
        )
        self.context.append(ToolResultsMessage(results=results, seq=self._seq))

    @property
    def _seq(self) -> int:
        return len(self.context) + 1


def llama(api: Api, model: str = MODEL) -> ProviderClient:
    return provider_of(api, model=model, key="none", url=llama_server().url)


@EACH_API
async def test_a_tool_is_called_and_its_result_is_answered(api: Api) -> None:
    talk = Talk()
    for text in ("paint it", "again"):
        talk.prompt(text)
        called = await talk.goes_on(api, PAINT)
        assert [call.arguments for call in called.tool_calls] == [{"colour": "red"}]
        talk.runs(called)
        answer = await talk.goes_on(api, PAINT)
        assert answer.content == speech.spoken(speech.SENTENCE)


async def test_one_conversation_may_take_all_three_apis_in_turn() -> None:
    talk = Talk()
    for api in (*get_args(Api), *get_args(Api)):
        talk.prompt("paint it")
        talk.runs(await talk.goes_on(api, PAINT))
        assert (await talk.goes_on(api, PAINT)).content == speech.spoken(speech.SENTENCE)
        del talk.context[1:-4]  # its window is small


@EACH_API
async def test_a_schema_is_held_to_by_chat_completions_and_harms_nowhere(api: Api) -> None:
    schema: JsonObject = {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
        "additionalProperties": False,
    }
    provider = llama(api)
    asked = ModelInvocationDescriptor(
        provider=provider.id, specification=provider.specification_of(MODEL), model=MODEL
    )
    prompt = ModelInputMessage(content="a number", seq=1)
    request = LlmRequest(invocation=asked, context=(prompt,), options={"schema": schema})
    async with provider.call_model(request) as deltas:
        output = accumulated([delta async for delta in deltas])
    await provider.aclose()
    fault = await fault_of_answer(schema, output.text)
    assert (fault is None) == (api == "chat")


@EACH_API
async def test_a_context_over_the_window_is_context_too_large(api: Api) -> None:
    talk = Talk()
    talk.prompt("word " * 1000)
    with pytest.raises(RequestTooLarge):
        await talk.goes_on(api)
