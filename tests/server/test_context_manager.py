"""What models are shown turn after turn, and what can be asked about it."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from itertools import pairwise

import anyio
import pytest
from msgspec.structs import replace
from tests.server.conversations import Stage, conversation_of
from tests.server.services import make_services

from nplt_protocol.errors import RequestError
from nplt_protocol.json_text import JsonObject
from nplt_server.context.messages import ContextMessage, ModelInputMessage, ToolResultsMessage
from nplt_server.conversations import operations, redaction
from nplt_server.conversations.context_report import context_report
from nplt_server.conversations.conversation import Conversation
from nplt_server.conversations.operations import compact
from nplt_server.conversations.services import Compressible, ContextServices, OverThreshold
from nplt_server.errors import ProviderUnavailable
from nplt_server.providers import (
    LlmRequest,
    ModelCatalog,
    ModelFacts,
    ModelOutputDelta,
    Stopped,
    TextPiece,
    ToolCallPiece,
    UsageReport,
)
from nplt_server.providers.offline import ScriptedProvider
from nplt_server.tokens import CharacterCounter, TokenCounting
from nplt_server.usage import ModelPrices
from nplt_server.widgets import default_widgets
from nplt_storage.entries import (
    CompactionEntry,
    Entry,
    EpochEntry,
    ModelOutputEntry,
    SystemInstructionEntry,
    ToolResultsEntry,
)

MODEL = "test/model"
SMALL = ModelFacts(context_tokens=8_192, output_tokens=1_024, prices=ModelPrices.of(1.0, 2.0))
COUNT = cache(CharacterCounter().count)
"""Of texts that come again with every request."""


class Play:
    """A conversation whose model remembers every request it got."""

    def __init__(self) -> None:
        self.requests: list[LlmRequest] = []
        self.summaries: list[LlmRequest] = []
        self.summary: str | None = "They spoke of many things."
        self.stage: Stage
        self.context: ContextServices

    @property
    def conversation(self) -> Conversation:
        return self.stage.conversation

    @property
    def entries(self) -> Sequence[Entry]:
        return self.conversation.history.entries

    def epochs(self) -> list[EpochEntry]:
        return [entry for entry in self.entries if isinstance(entry, EpochEntry)]

    async def answer(self, request: LlmRequest) -> AsyncGenerator[ModelOutputDelta, None]:
        if request.invocation.model == "summarizer":
            self.summaries.append(request)
            if self.summary is None:
                raise ProviderUnavailable("nobody home")
            yield TextPiece(text=self.summary)
            yield UsageReport(input_tokens=50, output_tokens=7)
            yield Stopped(reason="end")
            return
        self.requests.append(request)
        last = request.context[-1]
        input_text = last.content if isinstance(last, ModelInputMessage) else ""
        if input_text.startswith("note "):
            note = f'{{"action": "append", "text": "{input_text[5:]}"}}'
            yield ToolCallPiece(index=0, tool_name="notebook", arguments=note)
        else:
            yield TextPiece(text="An answer with some words in it. " * 20)
        yield UsageReport(input_tokens=_tokens(request), output_tokens=100)
        yield Stopped(reason="tool_calls" if input_text.startswith("note ") else "end")

    async def account(self, text: str | None = None) -> JsonObject:
        given = await context_report(
            self.conversation.context, model=MODEL, text=text, bytes_max=2**20
        )
        return {"entries": list(given.entries), **given.totals, "begins": given.begins_epoch}


def _tokens(request: LlmRequest) -> int:
    return sum(COUNT(str(_sent(message))) for message in request.context)


def _sent(message: ContextMessage) -> object:
    """What of a message reaches the model."""
    if isinstance(message, ModelInputMessage):
        return message.text
    if isinstance(message, ToolResultsMessage):
        return message.texts
    return getattr(message, "instruction", None) or (
        getattr(message, "content", ""),
        getattr(message, "tool_calls", ()),
    )


@asynccontextmanager
async def playing(facts: ModelFacts = SMALL, **choices: object) -> AsyncIterator[Play]:
    play = Play()
    provider = ScriptedProvider(play.answer, provider_id="test", models=("model", "summarizer"))
    context_services = ContextServices(
        counting=TokenCounting(CharacterCounter()),
        models=ModelCatalog({MODEL: facts}),
        **choices,  # type: ignore[arg-type]
    )
    tools = tuple(tool for widget in default_widgets() for tool in widget.tools)
    async with anyio.create_task_group() as tasks:
        services = make_services(
            tasks, provider, context_services=context_services, tools=tools, allowed=("notebook",)
        )
        profile = services.histories.default
        play.context = context_services
        play.stage = Stage(conversation_of("s1", user="local", services=services, profile=profile))
        yield play
        tasks.cancel_scope.cancel()


async def test_each_request_extends_the_last_or_an_epoch_says_why_not() -> None:
    async with playing(ModelFacts(context_tokens=32_768)) as play:
        for number in range(200):
            words = f"note {number}" if number % 5 == 0 else f"prompt {number} " + "word " * 40
            assert (await play.stage.play(words)).state == "completed"
        epoch_of = [
            entry.sent.epoch_seq
            for entry in play.entries
            if isinstance(entry, ModelOutputEntry) and entry.sent is not None
        ]
        assert len(epoch_of) == len(play.requests) == 240
        contexts = [[_sent(message) for message in request.context] for request in play.requests]
        tokens = [_tokens(request) for request in play.requests]
        repeated = 0
        for number, (before, after) in enumerate(pairwise(play.requests)):
            first, second = contexts[number : number + 2]
            extends = second[: len(first)] == first and before.tools == after.tools
            assert extends == (epoch_of[number] == epoch_of[number + 1])
            repeated += tokens[number] if extends else 0
        sent = sum(tokens[1:])
        assert {epoch.reason for epoch in play.epochs()} == {"budget"}
        assert repeated / sent >= 0.95


async def test_the_context_report_matches_the_request_that_is_then_sent() -> None:
    async with playing() as play:
        for number in range(40):
            text = f"note {number}" if number % 7 == 3 else f"prompt {number} " + "word " * 60
            account = await play.account(text)
            rows = account["entries"]
            assert isinstance(rows, list)
            assert sum(row["tokens"] for row in rows) == account["tokens"]  # type: ignore[index, call-overload, misc]
            before = len(play.epochs())
            first = len(play.requests)
            await play.stage.play(text)
            assert (len(play.epochs()) > before) == (account["begins"] is not None)
            detail_rows = [row for row in rows if isinstance(row, dict) and "detail" in row]
            detail_rows.sort(key=lambda row: (row.get("reason") != "head", row["seq"]))
            got = play.requests[first].context
            assert [_detail_of(row) for row in detail_rows] == [_sent(message) for message in got]


def _detail_of(row: JsonObject) -> object:
    if "results" in row:
        results = row["results"]
        assert isinstance(results, list)
        return tuple(result["result"] for result in results if isinstance(result, dict))
    if row["role"] != "assistant":
        return row["content"]
    return _Answer(row)


class _Answer:
    """An answer as the account tells it, equal to one as a provider gets it."""

    def __init__(self, row: JsonObject) -> None:
        self._row = row

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, tuple)
        content, calls = other
        detail_rows = self._row.get("tool_calls", [])
        assert isinstance(detail_rows, list)
        return content == self._row["content"] and [call.raw_arguments for call in calls] == [
            call["arguments"] for call in detail_rows if isinstance(call, dict)
        ]


async def test_a_changed_instruction_begins_an_epoch_and_is_never_slipped_in() -> None:
    async with playing() as play:
        await play.stage.play("one")
        await play.conversation.append_entry(SystemInstructionEntry(content="Be brief."))
        await play.stage.play("two")
        (epoch,) = play.epochs()
        assert epoch.reason == "system"
        assert _sent(play.requests[-1].context[0]) == "Be brief."


async def test_a_cleared_conversation_begins_an_epoch_that_shows_nothing_older() -> None:
    async with playing() as play:
        await play.stage.play("one")
        await operations.clear(play.conversation)
        await play.stage.play("two")
        assert [epoch.reason for epoch in play.epochs()] == ["clear"]
        assert [_sent(message) for message in play.requests[-1].context] == ["two"]


async def test_a_redaction_begins_an_epoch_without_the_erased_text() -> None:
    async with playing() as play:
        await play.stage.play("my secret")
        await redaction.redact(play.conversation, 1)
        assert [epoch.reason for epoch in play.epochs()] == ["redaction"]
        await play.stage.play("two")
        assert "secret" not in str(play.requests[-1].context)


async def test_compacting_shows_less_and_a_rollback_shows_it_all_again() -> None:
    async with playing() as play:
        for number in range(12):
            await play.stage.play(f"prompt {number} " + "word " * 60)
        before = await play.account("and now?")
        head = play.conversation.history.head_seq
        done = await compact(play.conversation)
        assert done.tokens_after < done.tokens_before * 2 / 3
        assert isinstance(play.entries[done.epoch - 1], EpochEntry)
        await operations.roll_back(play.conversation, head)
        after = await play.account("and now?")
        assert after["tokens"] == before["tokens"]
        assert all(not isinstance(e, CompactionEntry) for e in play.conversation.history.active)


async def test_compacting_a_short_conversation_is_refused_and_writes_nothing() -> None:
    async with playing() as play:
        await play.stage.play("hi")
        head = play.conversation.history.head_seq
        with pytest.raises(RequestError, match="would not make the context shorter"):
            await compact(play.conversation)
        assert play.conversation.history.head_seq == head


async def test_a_summarizer_writes_what_stands_for_the_older_turns() -> None:
    async with playing(summarizer="test/summarizer") as play:
        for number in range(12):
            await play.stage.play(f"prompt {number} " + "word " * 60)
        done = await compact(play.conversation)
        assert done.compaction is not None
        compaction = play.entries[done.compaction - 1]
        assert isinstance(compaction, CompactionEntry)
        assert compaction.content == "They spoke of many things."
        assert "prompt 0" in str(_sent(play.summaries[0].context[-1]))
        await play.stage.play("and now?")
        assert "They spoke of many things." in str(_sent(play.requests[-1].context[0]))
        usage = await play.conversation.get_token_usage()
        models = usage.billed["models"]
        assert isinstance(models, list)
        assert [model["model"] for model in models if isinstance(model, dict)] == [
            MODEL,
            "test/summarizer",
        ]


async def test_a_summarizer_that_fails_is_logged_and_the_conversation_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with playing(summarizer="test/summarizer") as play:
        play.summary = None
        with caplog.at_level(logging.WARNING):
            for number in range(20):
                assert (await play.stage.play(f"{number} " + "word " * 200)).state == "completed"
        assert play.epochs()
        assert play.summaries
        assert "nobody home" in caplog.text


async def test_a_listener_that_fails_is_logged_and_the_context_fits_all_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def broken(event: OverThreshold, conversation: Compressible) -> None:
        raise RuntimeError("a bug")

    async with playing(on_compression=broken) as play:
        for number in range(20):
            assert (await play.stage.play(f"{number} " + "word " * 200)).state == "completed"
        assert play.epochs() == []
        assert "a bug" in caplog.text
        assert all(_tokens(request) <= SMALL.budget_tokens for request in play.requests)


async def test_usage_keeps_what_was_billed_apart_from_what_the_next_call_takes() -> None:
    async with playing() as play:
        for number in range(3):
            await play.stage.play(f"prompt {number}")
        usage = await play.conversation.get_token_usage()
        charged = sum(_tokens(request) for request in play.requests)
        assert usage.billed["input_tokens"] == charged
        assert usage.billed["output_tokens"] == 300
        assert usage.occupancy["tokens"] == _tokens(play.requests[-1]) + 100
        assert usage.cost == {"amount": _dollars(charged, 300), "currency": "USD"}


def _dollars(read: int, written: int) -> str:
    return f"{(read + 2 * written) / 1_000_000:.6f}".rstrip("0")


async def test_a_prompt_larger_than_the_window_is_cut_and_answered() -> None:
    async with playing() as play:
        play.stage.conversation.services.on_too_long = "cut"
        finished = await play.stage.play("begin " + "word " * 20_000 + "end")
        assert finished.state == "completed"
        (message,) = play.requests[0].context
        assert _tokens(play.requests[0]) <= SMALL.budget_tokens
        shown = str(_sent(message))
        assert shown.startswith("begin ")
        assert shown.endswith("end")


async def test_the_same_prompts_with_the_same_clock_and_ids_make_the_same_record() -> None:
    records: list[list[Entry]] = []
    for _ in range(2):
        async with playing(summarizer="test/summarizer") as play:
            for number in range(15):
                text = f"note {number}" if number % 4 == 1 else f"prompt {number} " + "word " * 80
                await play.stage.play(text)
            await compact(play.conversation)
            records.append([_without_durations(entry) for entry in play.entries])
    assert records[0] == records[1]
    assert len(records[0]) > 30


def _without_durations(entry: Entry) -> Entry:
    """How long a tool took is measured, not told by the clock that is handed in."""
    if not isinstance(entry, ToolResultsEntry):
        return entry
    return replace(entry, results=tuple(replace(one, duration=0.0) for one in entry.results))


async def test_usage_is_reported_when_the_context_no_longer_fits() -> None:
    async with playing() as play:
        await play.stage.play("one")
        await play.conversation.append_entry(SystemInstructionEntry(content="word " * 50_000))
        usage = await play.conversation.get_token_usage()
        assert usage.billed["calls"] == 1
        assert (await play.stage.play("two")).state == "failed"


async def test_an_epoch_after_a_summary_omits_only_turns_that_the_summary_covers() -> None:
    async with playing(summarizer="test/summarizer") as play:
        play.summary = "a long summary of apples " * 90
        for number in range(8):
            await play.stage.play(f"prompt {number}")
        done = await compact(play.conversation)
        assert done.compaction is not None
        compaction, epoch = play.entries[done.compaction - 1], play.entries[done.epoch - 1]
        assert isinstance(compaction, CompactionEntry)
        assert isinstance(epoch, EpochEntry)
        assert epoch.omitted_through <= compaction.through_seq
