"""`offline/echo` and its `!` prompts."""

from __future__ import annotations

import asyncio
import sys

import pytest
from msgspec.structs import replace

from nplt_server.context.messages import (
    ContextMessage,
    ModelInputMessage,
    SystemMessage,
    ToolResultsMessage,
)
from nplt_server.errors import ProviderError, ProviderRefused
from nplt_server.providers import (
    LlmRequest,
    ModelOutputDelta,
    ReasoningPiece,
    Stopped,
    TextPiece,
    ToolCallPiece,
    UsageReport,
)
from nplt_server.providers.offline import OfflineProvider, Script, WordCounts, write_script
from nplt_storage.entries import ModelInvocationDescriptor


def script(*contents: str | ContextMessage) -> Script:
    context = tuple(ModelInputMessage(content=s) if isinstance(s, str) else s for s in contents)
    written = write_script(context, context_tokens=asyncio.run(WordCounts().of(context)))
    played = replace(written, deltas=tuple(written.deltas))
    assert len(list(played.deltas)) == played.length
    return played


def deltas_of(played: Script) -> list[ModelOutputDelta]:
    return list(played.deltas)


def text_of(played: Script) -> str:
    return "".join(delta.text for delta in played.deltas if isinstance(delta, TextPiece))


def test_it_answers_with_the_prompt_word_by_word() -> None:
    played = script("to be  or\nnot to be ")
    words = [delta.text for delta in played.deltas if isinstance(delta, TextPiece)]
    assert words == ["to ", "be  ", "or\n", "not ", "to ", "be "]
    assert Stopped(reason="end") in played.deltas
    assert deltas_of(played)[-1] == UsageReport(input_tokens=6, output_tokens=6)


def test_slow_spreads_the_given_text_or_fifty_words() -> None:
    assert script("!slow 3 one two").seconds == 3
    assert text_of(script("!slow 3 one two")) == "one two"
    assert len(text_of(script("!slow 0.5")).split()) == 50


@pytest.mark.parametrize("prompt", ["!slow", "!slow soon", "!slow -1", "!slow nan", "!slow 1e9"])
def test_slow_without_a_sensible_number_is_refused(prompt: str) -> None:
    with pytest.raises(ProviderRefused):
        script(prompt)


def test_fail_fails_as_a_provider_does() -> None:
    with pytest.raises(ProviderError):
        script("!fail")


def test_tool_calls_the_tool_and_then_answers_with_its_result() -> None:
    played = script('!tool now {"timezone": "UTC"}')
    assert deltas_of(played)[0] == ToolCallPiece(
        index=0, tool_name="now", arguments='{"timezone": "UTC"}'
    )
    assert "(the tool said nothing)" in text_of(script("x", ToolResultsMessage(results=())))


def test_think_reasons_first() -> None:
    played = script("!think about it")
    kinds = [type(delta) for delta in played.deltas]
    assert kinds == [ReasoningPiece, ReasoningPiece, TextPiece, TextPiece, Stopped, UsageReport]


async def test_at_full_speed_a_book_is_read_back_whole() -> None:
    book = " ".join(f"word{n}" for n in range(50_000))
    request = LlmRequest(
        invocation=ModelInvocationDescriptor(
            provider="offline", specification="offline", model="echo"
        ),
        context=(ModelInputMessage(content=book),),
    )
    contents = []
    async with OfflineProvider(words_per_second=0).call_model(request) as deltas:
        async for delta in deltas:
            if isinstance(delta, TextPiece):
                contents.append(delta.text)
    assert "".join(contents) == book


async def test_counting_words_forgets_contexts_that_are_not_used() -> None:
    words = WordCounts()
    message = ModelInputMessage(content="a word")
    unused = sys.getrefcount(message)
    await words.of([message])
    for number in range(100):
        await words.of([ModelInputMessage(content=f"another {number}")])
    assert sys.getrefcount(message) == unused


async def test_a_context_that_grew_is_counted_as_one_that_is_new() -> None:
    system = SystemMessage(instruction="be brief and kind")
    words = WordCounts()
    context: list[ContextMessage] = [system]
    for number in range(20):
        context.append(ModelInputMessage(content="a word " * number))
        assert await words.of(context) == await WordCounts().of(context)
    assert await words.of([system, ModelInputMessage(content="shorter")]) == 5
    replaced: list[ContextMessage] = [system]
    replaced += [ModelInputMessage(content="other words") for _ in context]
    assert await words.of(replaced) == 4 + 2 * len(context)
