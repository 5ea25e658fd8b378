"""The same bytes read twice, by us and by the vendor's own SDK: nothing is told differently."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import orjson
import pytest
from tests.server.providers import anthropic_stage
from tests.server.providers.openai_stage import CHAT, accumulated, request
from tests.support.vendor_models import rendered_in
from tests.vendors import Answer, Emulator, Refusal, Text, Thinking, ToolCall, say
from tests.vendors.answers import ApiName
from tests.vendors.sse import Wire, dressed, encoded

from nplt_server.providers.accumulator import ModelOutputAccumulator
from nplt_server.providers.anthropic import MessageParser
from nplt_server.providers.openai_responses import ResponsesApi
from nplt_server.providers.sse import SseParser
from nplt_server.providers.vendor_api import VendorApi

Json: TypeAlias = dict[str, Any]
RESPONSES = ResponsesApi(summarizes_reasoning=True)
ANSWERS = {
    "text": say("Grüße, 世界 👋", " and more"),
    "reasoning": Answer(parts=(Thinking("first\n\nthen"), Text("so it is"))),
    "calls": Answer(
        parts=(
            Thinking("hm"),
            Text("I will."),
            ToolCall("look", '{"at": "é \\"quoted\\""}'),
            ToolCall("look", '{"at": [1.0, null]}'),
            ToolCall("look"),
        )
    ),
    "a call alone": Answer(parts=(ToolCall("look", '{"at": "x"}'),)),
    "refusal": Answer(parts=(Refusal("I won't."),)),
    "length": Answer(parts=(Text("cut sho"),), stop="length"),
}
WIRE = Wire(
    line_end="\r\n",
    comments=True,
    pings=True,
    extra_fields=True,
    empty_choices=True,
    reasoning_field="reasoning_content",
)
"""Everything an SDK must bear too."""
REASONS = {
    "stop": "end",
    "tool_calls": "tool_calls",
    "length": "length",
    "completed": "end",
    "max_output_tokens": "length",
    "end_turn": "end",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "refusal": "refusal",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """What there was in a stream."""

    text: str
    reasoning: str
    calls: list[tuple[str, str]]
    stopped: str | None
    tokens: tuple[int, int, int]
    """Sent, said, and of what was sent from the cache."""
    sealed: list[str]
    """What only the vendor can read of its thoughts."""


def recorded(name: ApiName, body: Json, answer: Answer) -> bytes:
    api = Emulator().api(name)
    events = api.events(body, answer, api.admit(body), WIRE)
    return b"".join(encoded(event, WIRE) for event in dressed(events, WIRE, stranger=api.stranger))


def as_we_read(stream: bytes, parser: Any) -> Read:
    deltas = [delta for event in SseParser().feed(stream) for delta in parser.feed(event)]
    output = accumulated(deltas)
    assert output.usage is not None
    entry = output.entry(
        turn_id="t", call=0, invocation=request().invocation, new_call_id=lambda: "c"
    )
    opaque = [part.data or {} for part in entry.parts if part.kind == "opaque"]
    seals = ("encrypted_content", "signature")
    return Read(
        text=output.text,
        reasoning=output.reasoning,
        calls=[(call.tool_name, call.raw_arguments) for call in entry.tool_calls],
        stopped=output.stop_reason,
        tokens=_tokens(output),
        sealed=[str(each[name]) for each in opaque for name in seals if name in each],
    )


def _tokens(output: ModelOutputAccumulator) -> tuple[int, int, int]:
    assert output.usage is not None
    return output.usage.input_tokens, output.usage.output_tokens, output.usage.cached_tokens


@asynccontextmanager
async def playing(stream: bytes) -> AsyncIterator[Any]:
    """What the SDKs take for the network."""
    import httpx2

    def answer(_: object) -> httpx2.Response:
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=stream)

    async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer)) as http:
        yield http


async def as_chat_of_the_sdk(stream: bytes) -> Read:
    import openai

    text = reasoning = reason = refusal = ""
    calls: list[list[str]] = []
    usage: Any = None
    async with playing(stream) as http:
        sdk = openai.AsyncOpenAI(api_key="none", base_url="http://vendor/v1", http_client=http)
        asked: Any = {"model": "m", "messages": [], "stream": True}
        async for chunk in await sdk.chat.completions.create(**asked):
            usage = chunk.usage or usage
            for choice in chunk.choices:
                text += choice.delta.content or ""
                refusal += choice.delta.refusal or ""
                reasoning += (choice.delta.model_extra or {}).get("reasoning_content") or ""
                reason = choice.finish_reason or reason
                for call in choice.delta.tool_calls or []:
                    if call.id:
                        calls.append([call.function.name, ""])
                    calls[call.index][1] += call.function.arguments
    return Read(
        text=text + refusal,
        reasoning=reasoning,
        calls=[(name, arguments) for name, arguments in calls],
        stopped="refusal" if refusal else REASONS[reason],
        tokens=(
            usage.prompt_tokens,
            usage.completion_tokens,
            usage.prompt_tokens_details.cached_tokens,
        ),
        sealed=[],
    )


async def as_response_of_the_sdk(stream: bytes) -> Read:
    import openai

    async with playing(stream) as http:
        sdk = openai.AsyncOpenAI(api_key="none", base_url="http://vendor/v1", http_client=http)
        asked: Any = {"model": "m", "input": "", "stream": True}
        whole: Any = [event async for event in await sdk.responses.create(**asked)][-1]
    final = whole.response
    contents = [part for item in final.output if item.type == "message" for part in item.content]
    refusals = [part.refusal for part in contents if part.type == "refusal"]
    calls = [(item.name, item.arguments) for item in final.output if item.type == "function_call"]
    thoughts = [item for item in final.output if item.type == "reasoning"]
    why = final.incomplete_details.reason if final.incomplete_details else final.status
    return Read(
        text=final.output_text + "".join(refusals),
        reasoning="\n\n".join(part.text for item in thoughts for part in item.summary),
        calls=calls,
        stopped="tool_calls" if calls else "refusal" if refusals else REASONS[why],
        tokens=(
            final.usage.input_tokens,
            final.usage.output_tokens,
            final.usage.input_tokens_details.cached_tokens,
        ),
        sealed=[item.encrypted_content for item in thoughts],
    )


async def as_message_of_the_sdk(stream: bytes) -> Read:
    import anthropic

    async with playing(stream) as http:
        sdk = anthropic.AsyncAnthropic(api_key="none", base_url="http://vendor", http_client=http)
        asked: Any = {"model": "m", "max_tokens": 9, "messages": []}
        async with sdk.messages.stream(**asked) as final:
            message: Any = await final.get_final_message()

    def of(kind: str) -> list[Any]:
        return [block for block in message.content if block.type == kind]

    usage = message.usage
    cached = usage.cache_read_input_tokens or 0
    sent = usage.input_tokens + cached + (usage.cache_creation_input_tokens or 0)
    explained = (message.to_dict().get("stop_details") or {}).get("explanation") or ""
    return Read(
        text="".join(block.text for block in of("text")) + explained,
        reasoning="".join(block.thinking for block in of("thinking")),
        calls=[(block.name, orjson.dumps(block.input).decode()) for block in of("tool_use")],
        stopped=REASONS[message.stop_reason],
        tokens=(sent, usage.output_tokens, cached),
        sealed=[block.signature for block in of("thinking")],
    )


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
async def test_chat_completions_read_by_us_are_those_the_sdk_reads(answer: Answer) -> None:
    await _compare("chat", CHAT, answer)


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
async def test_responses_read_by_us_are_those_the_sdk_reads(answer: Answer) -> None:
    await _compare("responses", RESPONSES, answer)


async def _compare(name: ApiName, vendor_api: VendorApi, answer: Answer) -> None:
    rendered = rendered_in(vendor_api, request(vendor_api=vendor_api, options={"effort": "high"}))
    body: Any = rendered.body
    stream = recorded(name, body, answer)
    read_by_sdk = as_chat_of_the_sdk if name == "chat" else as_response_of_the_sdk
    assert as_we_read(stream, vendor_api.parser(rendered)) == await read_by_sdk(stream)


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
async def test_messages_read_by_us_are_those_the_sdk_reads(answer: Answer) -> None:
    rendered = anthropic_stage.rendered(anthropic_stage.request(options={"effort": "high"}))
    stream = recorded("messages", rendered.body, answer)
    ours, theirs = as_we_read(stream, MessageParser({})), await as_message_of_the_sdk(stream)
    assert _with_plain_arguments(ours) == theirs


def _with_plain_arguments(read: Read) -> Read:
    """The SDK has parsed them; ours are as they came."""

    plain = [(name, orjson.dumps(orjson.loads(raw)).decode()) for name, raw in read.calls]
    return replace(read, calls=plain)
