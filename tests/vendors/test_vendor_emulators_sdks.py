"""The official clients take the emulators for the real thing.

They stream, call tools, finish the round trip, and raise on each failure what their
documentation says. Some failures they do not see; that is told here as well, for whoever
builds on them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest
from tests.vendors import faults
from tests.vendors.answers import (
    Answer,
    Call,
    Refusal,
    Text,
    Thinking,
    ToolCall,
    UnknownItem,
    say,
)
from tests.vendors.emulator import Emulator, emulator
from tests.vendors.sse import Wire

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    import anthropic
    import httpx2
    import openai
else:

    class Lazily:
        """Seconds of import, which only who runs these tests should wait for."""

        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, attribute: str) -> object:
            if not attribute[0].isupper():  # pytest looks into everything it finds
                raise AttributeError(attribute)
            return getattr(import_module(self._name), attribute)

    anthropic, httpx2, openai = (Lazily(name) for name in ("anthropic", "httpx2", "openai"))

GPT = "gpt-5.2"
CLAUDE = "claude-opus-4-5"
PROMPT: Any = [{"role": "user", "content": "hello there"}]
SCHEMA: dict[str, object] = {"type": "object", "properties": {"at": {"type": "string"}}}
CHAT_TOOLS: Any = [{"type": "function", "function": {"name": "look", "parameters": SCHEMA}}]
CLAUDE_TOOLS: Any = [{"name": "look", "input_schema": SCHEMA}]
RESPONSES_TOOLS: Any = [{"type": "function", "name": "look", "parameters": SCHEMA}]


@pytest.fixture
async def vendors() -> AsyncIterator[Emulator]:
    async with emulator() as opened:
        yield opened


@pytest.fixture
async def gpt(vendors: Emulator) -> AsyncIterator[openai.AsyncOpenAI]:
    http = httpx2.AsyncClient(verify=False)  # a certificate store is slow to load
    async with openai.AsyncOpenAI(
        base_url=vendors.openai_url, api_key=vendors.key, max_retries=0, http_client=http
    ) as client:
        yield client


@pytest.fixture
async def claude(vendors: Emulator) -> AsyncIterator[anthropic.AsyncAnthropic]:
    http = httpx2.AsyncClient(verify=False)
    async with anthropic.AsyncAnthropic(
        base_url=vendors.anthropic_url, api_key=vendors.key, max_retries=0, http_client=http
    ) as client:
        yield client


async def chatted(client: openai.AsyncOpenAI, **fields: Any) -> list[Any]:
    """All chunks of a streamed chat completion."""
    asked = {"model": GPT, "messages": PROMPT, **fields}
    return [each async for each in await client.chat.completions.create(stream=True, **asked)]


async def responded(client: openai.AsyncOpenAI, **fields: Any) -> list[Any]:
    asked = {"model": GPT, "input": PROMPT, **fields}
    return [each async for each in await client.responses.create(stream=True, **asked)]


async def messaged(client: anthropic.AsyncAnthropic, **fields: Any) -> list[Any]:
    asked = {"model": CLAUDE, "max_tokens": 2000, "messages": PROMPT, **fields}
    return [each async for each in await client.messages.create(stream=True, **asked)]


def text_of_chat(chunks: list[Any]) -> str:
    return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)


def text_of_messages(events: list[Any]) -> str:
    deltas = [each.delta for each in events if each.type == "content_block_delta"]
    return "".join(delta.text for delta in deltas if delta.type == "text_delta")


def text_of_responses(events: list[Any]) -> str:
    return "".join(each.delta for each in events if each.type == "response.output_text.delta")


# Answers


async def test_every_emulated_api_echoes_the_prompt_by_default_whole_and_streamed(
    gpt: openai.AsyncOpenAI, claude: anthropic.AsyncAnthropic
) -> None:
    whole = await gpt.chat.completions.create(model=GPT, messages=PROMPT)
    response = await gpt.responses.create(model=GPT, input=PROMPT)
    message = await claude.messages.create(model=CLAUDE, max_tokens=9, messages=PROMPT)
    assert whole.choices[0].message.content == response.output_text == "hello there"
    assert message.content[0].model_dump()["text"] == "hello there"
    assert text_of_chat(await chatted(gpt)) == "hello there"
    assert text_of_responses(await responded(gpt)) == "hello there"
    assert text_of_messages(await messaged(claude)) == "hello there"


async def test_usage_of_a_chat_is_sent_at_the_end_and_only_on_request(
    gpt: openai.AsyncOpenAI,
) -> None:
    assert [chunk.usage for chunk in await chatted(gpt)] == [None] * 4
    *before, last = await chatted(gpt, stream_options={"include_usage": True})
    assert [chunk.usage for chunk in before] == [None] * 4
    assert last.choices == []
    assert last.usage.prompt_tokens > 0
    assert last.usage.completion_tokens == 3


async def test_parallel_calls_in_pieces_go_round_through_chat(
    vendors: Emulator, gpt: openai.AsyncOpenAI
) -> None:
    calls = (ToolCall("look", '{"at": "élan"}'), ToolCall("look", "{}"))
    vendors.script = lambda call: (
        Answer(parts=calls, piece_characters=1) if call.number == 1 else say("seen")
    )
    pieces: dict[int, dict[str, str]] = {}
    chunks = await chatted(gpt, tools=CHAT_TOOLS)
    for chunk in chunks:
        for piece in chunk.choices[0].delta.tool_calls or []:
            known = pieces.setdefault(piece.index, {"id": piece.id, "arguments": ""})
            known["arguments"] += piece.function.arguments
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    assert [each["arguments"] for each in pieces.values()] == ['{"at": "élan"}', "{}"]
    called = [
        {
            "id": each["id"],
            "type": "function",
            "function": {"name": "look", "arguments": each["arguments"]},
        }
        for each in pieces.values()
    ]
    results = [{"role": "tool", "tool_call_id": c["id"], "content": "a cat"} for c in called]
    asked = [*PROMPT, {"role": "assistant", "tool_calls": called}, *results]
    assert text_of_chat(await chatted(gpt, messages=asked, tools=CHAT_TOOLS)) == "seen"
    assert vendors.rejections == []


async def test_thinking_and_calls_go_round_through_messages(
    vendors: Emulator, claude: anthropic.AsyncAnthropic
) -> None:
    thoughtful = Answer(parts=(Thinking("well"), Text("I look."), ToolCall("look", '{"at": "x"}')))
    vendors.script = lambda call: thoughtful if call.number == 1 else say("seen")
    asked: dict[str, Any] = {
        "model": CLAUDE,
        "max_tokens": 2000,
        "tools": CLAUDE_TOOLS,
        "thinking": {"type": "enabled", "budget_tokens": 1024},
    }
    async with claude.messages.stream(messages=PROMPT, **asked) as stream:
        message = await stream.get_final_message()
    thinking, _, called = message.content
    assert thinking.type == "thinking"
    assert thinking.thinking == "well"
    assert called.type == "tool_use"
    assert called.input == {"at": "x"}
    assert message.stop_reason == "tool_use"
    result = {"type": "tool_result", "tool_use_id": called.id, "content": "a cat"}
    following = [*PROMPT, message.to_param(), {"role": "user", "content": [result]}]
    done = await claude.messages.create(messages=following, **asked)
    assert done.content[0].model_dump()["text"] == "seen"


async def test_reasoning_and_calls_go_round_through_responses(
    vendors: Emulator, gpt: openai.AsyncOpenAI
) -> None:
    thoughtful = Answer(parts=(Thinking("well"), ToolCall("look", '{"at": "x"}')))
    vendors.script = lambda call: thoughtful if call.number == 1 else say("seen")
    asked: dict[str, Any] = {
        "tools": RESPONSES_TOOLS,
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "reasoning": {"summary": "auto"},
    }
    *_, last = await responded(gpt, **asked)
    assert last.type == "response.completed"
    reasoning, called = (each.model_dump(exclude_none=True) for each in last.response.output)
    assert reasoning["summary"] == [{"type": "summary_text", "text": "well"}]
    output = {"type": "function_call_output", "call_id": called["call_id"], "output": "a cat"}
    events = await responded(gpt, **asked, input=[*PROMPT, reasoning, called, output])
    assert text_of_responses(events) == "seen"


@pytest.mark.parametrize(
    ("answer", "chat", "responses", "messages"),
    [
        (say("a"), "stop", "completed", "end_turn"),
        (Answer(parts=(Text("a"),), stop="length"), "length", "incomplete", "max_tokens"),
        (Answer(parts=(Text("a"),), stop="filter"), "content_filter", "incomplete", "refusal"),
        (Answer(parts=(Refusal("no"),)), "stop", "completed", "refusal"),
        (Answer(parts=(ToolCall("look"),)), "tool_calls", "completed", "tool_use"),
    ],
)
async def test_each_api_has_its_word_for_why_the_model_stopped(
    vendors: Emulator,
    gpt: openai.AsyncOpenAI,
    claude: anthropic.AsyncAnthropic,
    answer: Answer,
    chat: str,
    responses: str,
    messages: str,
) -> None:
    vendors.script = lambda call: answer
    assert (await chatted(gpt))[-1].choices[0].finish_reason == chat
    assert (await responded(gpt))[-1].response.status == responses
    stops = [each for each in await messaged(claude) if each.type == "message_delta"]
    assert [each.delta.stop_reason for each in stops] == [messages]


async def test_models_and_token_counts_are_served(
    gpt: openai.AsyncOpenAI, claude: anthropic.AsyncAnthropic
) -> None:
    assert GPT in [model.id async for model in gpt.models.list()]
    assert CLAUDE in [model.id async for model in claude.models.list()]
    counted = await claude.messages.count_tokens(model=CLAUDE, messages=PROMPT)
    message = await claude.messages.create(model=CLAUDE, max_tokens=9, messages=PROMPT)
    assert counted.input_tokens == message.usage.input_tokens


# Errors


async def test_errors_have_the_vendors_shape(
    vendors: Emulator, gpt: openai.AsyncOpenAI, claude: anthropic.AsyncAnthropic
) -> None:
    with pytest.raises(openai.BadRequestError) as chat:
        await chatted(gpt, messages=[*PROMPT, {"role": "tool", "tool_call_id": "a", "content": ""}])
    assert chat.value.param == "messages.[1].role"
    assert chat.value.type == "invalid_request_error"
    with pytest.raises(anthropic.BadRequestError) as messages:
        await messaged(claude, messages=[{"role": "user", "content": ""}])
    assert messages.value.type == "invalid_request_error"
    assert (messages.value.api_message or "").startswith("messages.0: ")
    assert messages.value.request_id
    assert [each.status for each in vendors.rejections] == [400, 400]


async def test_keys_and_models_are_checked(
    vendors: Emulator, gpt: openai.AsyncOpenAI, claude: anthropic.AsyncAnthropic
) -> None:
    with pytest.raises(openai.AuthenticationError, match="Incorrect API key"):
        await chatted(gpt.with_options(api_key="sk-other"))
    with pytest.raises(anthropic.AuthenticationError, match="invalid x-api-key"):
        await messaged(claude.with_options(api_key="sk-other"))
    with pytest.raises(openai.NotFoundError):
        await responded(gpt, model="gpt-nobody")
    with pytest.raises(anthropic.NotFoundError):
        await messaged(claude, model="claude-nobody")


@pytest.mark.parametrize("retry_after", ["7", "Wed, 21 Oct 2026 07:28:00 GMT", None])
async def test_429_carries_retry_after(
    vendors: Emulator,
    gpt: openai.AsyncOpenAI,
    claude: anthropic.AsyncAnthropic,
    retry_after: str | None,
) -> None:
    fault = faults.Status(status=429, retry_after=retry_after)
    vendors.fail_next(fault, fault, fault)
    with pytest.raises(openai.RateLimitError) as chat:
        await chatted(gpt)
    with pytest.raises(openai.RateLimitError):
        await responded(gpt)
    with pytest.raises(anthropic.RateLimitError) as messages:
        await messaged(claude)
    assert chat.value.response.headers.get("retry-after") == retry_after
    assert messages.value.response.headers.get("retry-after") == retry_after
    assert vendors.rejections == []
    assert text_of_chat(await chatted(gpt)) == "hello there"


@pytest.mark.parametrize("status", [500, 503, 529])
async def test_a_server_error_has_its_own_class(
    vendors: Emulator, gpt: openai.AsyncOpenAI, claude: anthropic.AsyncAnthropic, status: int
) -> None:
    fault = faults.Status(status=status)
    vendors.fail_next(fault, fault)
    with pytest.raises(openai.InternalServerError) as chat:
        await chatted(gpt)
    with pytest.raises(anthropic.APIStatusError) as messages:
        await messaged(claude)
    assert chat.value.status_code == messages.value.status_code == status
    assert messages.value.type == ("overloaded_error" if status == 529 else "api_error")


async def test_a_closed_port_refuses_and_serves_again_when_it_is_open(
    vendors: Emulator, gpt: openai.AsyncOpenAI, claude: anthropic.AsyncAnthropic
) -> None:
    await vendors.close()
    with pytest.raises(openai.APIConnectionError):
        await chatted(gpt)
    with pytest.raises(anthropic.APIConnectionError):
        await messaged(claude)
    await vendors.open()
    assert text_of_messages(await messaged(claude)) == "hello there"


@pytest.mark.parametrize("fault", [faults.Cut(), faults.HangUp()])
async def test_a_cut_is_a_connection_error(
    vendors: Emulator,
    gpt: openai.AsyncOpenAI,
    claude: anthropic.AsyncAnthropic,
    fault: faults.Fault,
) -> None:
    vendors.fail_next(fault, fault, fault)
    with pytest.raises(openai.APIConnectionError):
        await chatted(gpt)
    with pytest.raises(openai.APIConnectionError):
        await responded(gpt)
    # Anthropic's client does not translate what happens once the stream has begun.
    begun = isinstance(fault, faults.Cut)
    with pytest.raises(httpx2.RemoteProtocolError if begun else anthropic.APIConnectionError):
        await messaged(claude)


async def test_a_stall_lasts_until_it_is_released(
    vendors: Emulator, gpt: openai.AsyncOpenAI
) -> None:
    vendors.fail_next(faults.Stall(after=2))
    stream = await gpt.chat.completions.create(model=GPT, messages=PROMPT, stream=True)
    first = [await anext(stream), await anext(stream)]
    waiting = asyncio.ensure_future(anext(stream))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not waiting.done()
    vendors.release()
    rest = [await waiting, *[each async for each in stream]]
    assert text_of_chat([*first, *rest]) == "hello there"


async def test_an_error_after_200_is_raised(
    vendors: Emulator, gpt: openai.AsyncOpenAI, claude: anthropic.AsyncAnthropic
) -> None:
    vendors.fail_next(*[faults.ErrorEvent()] * 3, faults.ErrorEvent(failed=True))
    with pytest.raises(openai.APIError, match="The server had an error"):
        await chatted(gpt)
    with pytest.raises(openai.APIError, match="The server had an error"):
        await responded(gpt)
    with pytest.raises(anthropic.APIStatusError) as messages:
        await messaged(claude)
    assert messages.value.type == "overloaded_error"
    assert (await responded(gpt))[-1].type == "response.failed"


async def test_broken_json_in_an_event_is_raised(
    vendors: Emulator, gpt: openai.AsyncOpenAI, claude: anthropic.AsyncAnthropic
) -> None:
    vendors.fail_next(*[faults.BrokenJson()] * 3)
    with pytest.raises(json.JSONDecodeError):
        await chatted(gpt)
    with pytest.raises(json.JSONDecodeError):
        await responded(gpt)
    with pytest.raises(json.JSONDecodeError):
        await messaged(claude)


async def test_an_answer_without_an_end_looks_like_any_other_to_them(
    vendors: Emulator, gpt: openai.AsyncOpenAI, claude: anthropic.AsyncAnthropic
) -> None:
    vendors.fail_next(*[faults.NoEnd()] * 3)
    chunks = await chatted(gpt)
    assert text_of_chat(chunks) == "hello there"
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * 3
    assert (await responded(gpt))[-1].type == "response.output_item.done"
    assert (await messaged(claude))[-1].type == "content_block_stop"


# What they must bear


@pytest.mark.parametrize(
    "wire",
    [
        Wire(line_end="\r\n", split_bytes=True),
        Wire(comments=True, pings=True),
        Wire(unknown_events=True, extra_fields=True),
        Wire(empty_choices=True, late_usage=True, reasoning_field="reasoning_content"),
    ],
    ids=["crlf_in_single_bytes", "comments_and_pings", "strangers", "habits_of_compatible_ones"],
)
async def test_the_answer_is_the_same_on_any_wire(
    vendors: Emulator,
    gpt: openai.AsyncOpenAI,
    claude: anthropic.AsyncAnthropic,
    wire: Wire,
) -> None:
    vendors.wire = wire
    vendors.script = lambda call: Answer(parts=(Thinking("hm"), Text("naïve 👋")))
    assert text_of_chat(await chatted(gpt)) == "naïve 👋"
    assert text_of_responses(await responded(gpt)) == "naïve 👋"
    events = await messaged(claude)
    assert text_of_messages(events) == "naïve 👋"
    usage = next(each.usage for each in events if each.type == "message_delta")
    assert usage.input_tokens > 0


async def test_an_unknown_block_is_passed_on(
    vendors: Emulator, gpt: openai.AsyncOpenAI, claude: anthropic.AsyncAnthropic
) -> None:
    stranger = UnknownItem({"type": "hologram", "of": "a cat"})
    vendors.script = lambda call: Answer(parts=(stranger, Text("meow")))
    assert text_of_messages(await messaged(claude)) == "meow"
    assert text_of_responses(await responded(gpt)) == "meow"


async def test_every_request_is_kept_with_its_headers_and_what_was_cached(
    vendors: Emulator, gpt: openai.AsyncOpenAI
) -> None:
    seen: list[Call] = []
    vendors.script = lambda call: seen.append(call) or say("ok")  # type: ignore[func-returns-value]
    long: Any = [{"role": "user", "content": "x" * 8000}]
    await chatted(gpt, messages=long)
    whole = await gpt.chat.completions.create(model=GPT, messages=long)
    assert whole.usage is not None
    assert whole.usage.prompt_tokens_details is not None
    assert whole.usage.prompt_tokens_details.cached_tokens == 1920
    assert [each.body for each in vendors.received] == [each.body for each in seen]
    assert vendors.received[1].usage is not None
    assert vendors.received[1].usage.read_tokens == 1920
    assert vendors.received[0].headers["authorization"] == f"Bearer {vendors.key}"
