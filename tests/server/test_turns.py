"""However a turn goes, it ends once, on disk, and leaves a history that can go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import anyio
import orjson
import pytest
from msgspec.structs import replace
from tests.server.conversations import Stage, conversation_of, staged
from tests.server.services import Model, make_services, model_of

from nplt_protocol.json_text import JsonObject
from nplt_protocol.messages import EVENT_TYPES, EncodedEntryAdded, TextDelta
from nplt_server.context.messages import ToolResultsMessage
from nplt_server.conversations.services import Compressible, ContextServices, OverThreshold
from nplt_server.errors import ProviderUnavailable
from nplt_server.providers import (
    LlmRequest,
    ModelCatalog,
    ModelFacts,
    ModelOutputDelta,
    ReasoningPiece,
    Stopped,
    TextPiece,
    ToolCallPiece,
    UsageReport,
)
from nplt_server.settings import Limits
from nplt_server.tokens import CharacterCounter, TokenCounting
from nplt_server.tools import Tool, ToolDescription, ToolHost, offer_of
from nplt_server.tools.executor import ToolExecutor
from nplt_storage.entries import FaultEntry, ModelOutputEntry, ToolResultsEntry


async def two_words(request: LlmRequest) -> AsyncGenerator[ModelOutputDelta, None]:
    yield TextPiece(text="two ")
    await anyio.sleep(0)
    yield TextPiece(text="words")
    yield UsageReport(input_tokens=3, output_tokens=2)
    yield Stopped(reason="end")


async def test_an_answer_is_streamed_stored_and_finished() -> None:
    async with staged(two_words) as stage:
        finished = await stage.play()
        assert (finished.state, finished.usage) == (
            "completed",
            {"input_tokens": 3, "output_tokens": 2},
        )
        assert stage.answer_text == "two words"
        answer = stage.conversation.history.entries[-1]
        assert isinstance(answer, ModelOutputEntry)
        assert answer.content == "two words"
        assert answer.seq == finished.seq
        assert answer.invocation is not None
        assert answer.invocation.model == "model"


async def test_deltas_of_one_tick_are_one_event() -> None:
    async def chatter(request: LlmRequest) -> AsyncGenerator[ModelOutputDelta, None]:
        for _ in range(1_000):
            yield TextPiece(text="x")
        yield Stopped(reason="end")

    async with staged(chatter) as stage:
        await stage.play()
        deltas = [event for event in stage.ear.received if isinstance(event, TextDelta)]
        assert len(deltas) == 1
        assert stage.answer_text == "x" * 1_000


async def nothing(request: LlmRequest) -> AsyncGenerator[ModelOutputDelta, None]:
    yield Stopped(reason="end")


async def cut(request: LlmRequest) -> AsyncGenerator[ModelOutputDelta, None]:
    yield TextPiece(text="half an ans")


async def failing(request: LlmRequest) -> AsyncGenerator[ModelOutputDelta, None]:
    yield ReasoningPiece(text="hm")
    raise ProviderUnavailable("nobody home")


async def failing_midway(request: LlmRequest) -> AsyncGenerator[ModelOutputDelta, None]:
    yield TextPiece(text="half an ans")
    raise ProviderUnavailable("went away")


async def buggy(request: LlmRequest) -> AsyncGenerator[ModelOutputDelta, None]:
    yield TextPiece(text="half an ans")
    raise KeyError("a secret of the provider")


@pytest.mark.parametrize(
    ("model", "kept"),
    [
        (nothing, ""),
        (cut, "half an ans"),
        (failing, "hm"),
        (failing_midway, "half an ans"),
        (buggy, "half an ans"),
    ],
)
async def test_a_failure_ends_the_turn_once_and_keeps_what_was_shown(
    model: Model, kept: str
) -> None:
    async with staged(model) as stage:
        finished = await stage.play()
        assert finished.state == "failed"
        assert finished.error is not None
        assert "secret" not in str(finished.error)
        end = stage.conversation.history.entries[-1]
        if kept:
            assert isinstance(end, ModelOutputEntry)
            assert (end.reasoning + end.content, end.state) == (kept, "failed")
        else:
            assert isinstance(end, FaultEntry)
        again = await stage.play("and now?")
        assert again.state == "failed"
        assert len(stage.finished) == 2


async def test_an_answer_that_is_too_long_is_cut_and_failed() -> None:
    async def endless(request: LlmRequest) -> AsyncGenerator[ModelOutputDelta, None]:
        while True:
            yield TextPiece(text="x" * 100)
            await anyio.sleep(0)

    async with staged(endless, Limits(answer_bytes_max=1_000)) as stage:
        finished = await stage.play()
        assert finished.error is not None
        assert finished.error["code"] == "too_large"
        end = stage.conversation.history.entries[-1]
        assert isinstance(end, ModelOutputEntry)
        assert end.content == stage.answer_text == "x" * 1_000


async def test_a_call_beyond_its_time_limit_is_cancelled() -> None:
    async def silent(request: LlmRequest) -> AsyncGenerator[ModelOutputDelta, None]:
        yield TextPiece(text="wait")
        await anyio.sleep_forever()

    async with staged(silent, Limits(call_seconds_max=0.05)) as stage:
        finished = await stage.play()
        assert finished.error is not None
        assert finished.error["message"] == "the model did not finish within 0.05 s"


async def test_a_timeout_of_the_provider_is_not_reported_as_ours() -> None:
    async def impatient(request: LlmRequest) -> AsyncGenerator[ModelOutputDelta, None]:
        yield TextPiece(text="half an ans")
        raise TimeoutError

    async with staged(impatient) as stage:
        finished = await stage.play()
        assert finished.error is not None
        assert finished.error["message"] == "the provider failed: TimeoutError"


async def test_tools_of_a_turn_that_timed_out_have_a_result_that_says_so() -> None:
    async def calling(request: LlmRequest) -> AsyncGenerator[ModelOutputDelta, None]:
        for number in range(6):  # more than run at once
            yield ToolCallPiece(index=number, tool_name="giant", arguments="{}")
        yield Stopped(reason="tool_calls")

    async def for_ever(arguments: JsonObject, host: ToolHost) -> str:
        await anyio.sleep_forever()
        raise AssertionError

    endless = replace(tool_that_gives(""), run=for_ever)
    async with staged(calling, Limits(turn_seconds_max=1.5), tools=(endless,)) as stage:
        await stage.play()
        entries = stage.conversation.history.entries
        (entry,) = [e for e in entries if isinstance(e, ToolResultsEntry)]
        why = "the answer was not complete within 1.5 s; ask for less at a time"
        assert {result.status for result in entry.results} == {"failed", "skipped"}
        assert all(result.result.endswith(why) for result in entry.results)


async def test_a_tool_that_comes_while_an_epoch_begins_is_sent_with_the_next_call() -> None:
    tools = [tool_that_gives("one")]
    requests: list[LlmRequest] = []

    async def model(request: LlmRequest) -> AsyncGenerator[ModelOutputDelta, None]:
        requests.append(request)
        yield TextPiece(text="word " * 100)
        yield Stopped(reason="end")

    async def slow_listener(event: OverThreshold, conversation: Compressible) -> None:
        late = replace(tools[0].description, name="late")
        tools[1:] = [replace(tools[0], description=late)]
        await conversation.begin_epoch(event.draft)

    context_services = ContextServices(
        counting=TokenCounting(CharacterCounter()),
        models=ModelCatalog({"test/model": ModelFacts(context_tokens=2_000, output_tokens=500)}),
        on_compression=slow_listener,
    )
    async with anyio.create_task_group() as tasks:
        services = make_services(tasks, model_of(model), context_services=context_services)
        services.tools = ToolExecutor(tools, clock=services.clock)
        profile = services.histories.default
        stage = Stage(conversation_of("s1", user="local", services=services, profile=profile))
        while len(tools) == 1:
            await stage.play("word " * 100)
        await stage.play()
        outputs = [e for e in stage.conversation.history.entries if isinstance(e, ModelOutputEntry)]
        sent = [offer_of(request.tools).digest for request in requests]
        assert [output.sent and output.sent.tools_digest for output in outputs] == sent
        assert [len(request.tools) for request in requests[-2:]] == [1, 2]
        tasks.cancel_scope.cancel()


async def test_a_model_that_only_calls_tools_is_stopped_at_calls_max() -> None:
    async def restless(request: LlmRequest) -> AsyncGenerator[ModelOutputDelta, None]:
        yield ToolCallPiece(index=0, tool_name="now", arguments="{}")
        yield Stopped(reason="tool_calls")

    async with staged(restless, Limits(calls_max=3)) as stage:
        finished = await stage.play()
        assert finished.state == "failed"
        results = [e for e in stage.conversation.history.entries if isinstance(e, ToolResultsEntry)]
        assert len(results) == 3


async def test_lone_surrogates_in_a_delta_are_replaced() -> None:
    async def surrogates(request: LlmRequest) -> AsyncGenerator[ModelOutputDelta, None]:
        yield TextPiece(text="a\ud800b")
        yield Stopped(reason="end")

    async with staged(surrogates) as stage:
        assert (await stage.play()).state == "completed"
        assert stage.answer_text == "a\ufffdb"


async def many_tools(request: LlmRequest) -> AsyncGenerator[ModelOutputDelta, None]:
    """Talks, calls two tools (one in pieces), talks again."""
    if isinstance(request.context[-1], ToolResultsMessage):
        for word in ("now ", "I ", "know"):
            await anyio.sleep(0.0005)
            yield TextPiece(text=word)
        yield Stopped(reason="end")
        return
    yield TextPiece(text="let me see ")
    await anyio.sleep(0.0005)
    yield ToolCallPiece(index=0, tool_name="now", arguments='{"time')
    yield ToolCallPiece(index=1, tool_name="now")
    await anyio.sleep(0.0005)
    yield ToolCallPiece(index=0, arguments='zone": "UTC"}')
    yield Stopped(reason="tool_calls")


async def test_tool_calls_in_pieces_run_and_their_results_come_in_call_order() -> None:
    async with staged(many_tools) as stage:
        assert (await stage.play()).state == "completed"
        entries = stage.conversation.history.entries
        asked, results = entries[1], entries[2]
        assert isinstance(asked, ModelOutputEntry)
        assert isinstance(results, ToolResultsEntry)
        assert [call.arguments for call in asked.tool_calls] == [{"timezone": "UTC"}, {}]
        assert [r.tool_call_id for r in results.results] == [
            call.tool_call_id for call in asked.tool_calls
        ]


async def test_events_come_in_the_order_they_were_recorded() -> None:
    async with staged(many_tools) as stage:
        for number in range(5):
            await stage.prompt(f"prompt {number}")
        await stage.conversation.activity.quiet()
        added = [event for event in stage.ear.received if isinstance(event, EncodedEntryAdded)]
        entries = [orjson.loads(bytes(event.entry))["seq"] for event in added]
        assert entries == list(range(1, len(stage.conversation.history.entries) + 1))
        assert len(stage.finished) == 5


async def test_a_subscriber_that_fails_is_removed_and_the_turn_continues() -> None:
    class Deaf:
        was_called = False

        def deliver(self, event: object) -> None:
            raise RuntimeError("no ears")

        def dropped(self) -> None:
            self.was_called = True

    async with staged(two_words) as stage:
        deaf = Deaf()
        stage.conversation.broadcast.join(deaf)
        assert (await stage.play()).state == "completed"
        assert len(stage.conversation.broadcast) == 1
        assert deaf.was_called


def test_events_carry_their_session_id() -> None:
    assert all("session_id" in kind.__struct_fields__ for kind in EVENT_TYPES.values())


def tool_that_gives(result: str) -> Tool:
    async def run(arguments: JsonObject, host: ToolHost) -> str:
        return result

    description = ToolDescription(name="giant", description="Gives a lot.", parameters={})
    return Tool(description=description, run=run)


async def test_a_giant_tool_result_is_stored_as_a_blob_and_cut_in_the_record() -> None:
    async def calling(request: LlmRequest) -> AsyncGenerator[ModelOutputDelta, None]:
        if isinstance(request.context[-1], ToolResultsMessage):
            yield TextPiece(text="done")
        else:
            yield ToolCallPiece(index=0, tool_name="giant", arguments="{}")
        yield Stopped(reason="end")

    whole = "漢" * 40_000
    async with anyio.create_task_group() as tasks:
        services = make_services(tasks, model_of(calling), tools=(tool_that_gives(whole),))
        profile = services.histories.default
        conversation = conversation_of("s1", user="local", services=services, profile=profile)
        await Stage(conversation).play()
        (entry,) = [e for e in conversation.history.entries if isinstance(e, ToolResultsEntry)]
        (result,) = entry.results
        assert len(result.result.encode()) <= 32 * 1024
        assert whole.startswith(result.result)
        assert result.blob is not None
        data = await profile.store.blob("s1", result.blob.blob_id, 0, result.blob.size)
        assert data.decode() == whole
        tasks.cancel_scope.cancel()


async def cancelling_itself(request: LlmRequest) -> AsyncGenerator[ModelOutputDelta, None]:
    yield TextPiece(text="half an ans")
    raise asyncio.CancelledError


async def leaving(request: LlmRequest) -> AsyncGenerator[ModelOutputDelta, None]:
    yield TextPiece(text="half an ans")
    raise SystemExit(3)


@pytest.mark.parametrize("model", [cancelling_itself, leaving])
async def test_a_provider_that_gives_up_ends_its_turn_and_nothing_else(model: Model) -> None:
    async with staged(model) as stage:
        finished = await stage.play()
        assert finished.state == "failed"
        assert stage.answer_text == "half an ans"
        assert (await stage.play("again")).state == "failed"


async def test_malformed_usage_of_a_provider_does_not_lose_the_answer() -> None:
    async def boasting(request: LlmRequest) -> AsyncGenerator[ModelOutputDelta, None]:
        yield TextPiece(text="hi")
        yield UsageReport(input_tokens=-5, output_tokens=10**30)
        yield Stopped(reason="end")

    async with staged(boasting) as stage:
        finished = await stage.play()
        assert finished.state == "completed"
        assert finished.usage == {"input_tokens": 0, "output_tokens": 2**53 - 1}


async def test_what_a_provider_says_in_an_exception_is_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with staged(buggy) as stage:
        await stage.play()
    assert "KeyError" in caplog.text
    assert "a secret of the provider" not in caplog.text.replace('KeyError("a secret', "")
