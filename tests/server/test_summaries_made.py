"""Summaries that take their time while the conversation goes on."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
from tests.server.conversations import Stage, conversation_of
from tests.server.services import make_services
from tests.server.test_context_manager import MODEL, SMALL, Play, playing

from nplt_protocol.codes import ErrorCode
from nplt_protocol.errors import RequestError
from nplt_protocol.messages import EpochBegun
from nplt_server.context.projection import Projection
from nplt_server.conversations import operations
from nplt_server.conversations.operations import compact
from nplt_server.conversations.services import ContextServices, Services
from nplt_server.providers import (
    LlmRequest,
    ModelCatalog,
    ModelOutputDelta,
    Stopped,
    TextPiece,
    UsageReport,
)
from nplt_server.providers.offline import ScriptedProvider
from nplt_server.tokens import CharacterCounter, TokenCounting
from nplt_storage.entries import CompactionEntry, EpochEntry, QuarantineEntry

SUMMARIZER = "test/summarizer"


class SlowPlay(Play):
    """Its first summary waits until it is let go; turns can be held too."""

    def __init__(self) -> None:
        super().__init__()
        self.called = anyio.Event()
        self.go = anyio.Event()
        self.turns_go: anyio.Event | None = None
        self.services: Services

    async def answer(self, request: LlmRequest) -> AsyncGenerator[ModelOutputDelta, None]:
        if request.invocation.model != "summarizer":
            if self.turns_go is not None:
                await self.turns_go.wait()
            async for delta in super().answer(request):
                yield delta
            return
        self.summaries.append(request)
        number = len(self.summaries)
        self.called.set()
        if number == 1:
            await self.go.wait()
        yield TextPiece(text=f"Summary {number}.")
        yield UsageReport(input_tokens=50, output_tokens=7)
        yield Stopped(reason="end")

    async def play_until_asked_for_a_summary(self) -> None:
        number = 0
        while not self.called.is_set():
            await self.stage.play(f"prompt {number} " + "word " * 200)
            number += 1

    @property
    def compactions(self) -> list[CompactionEntry]:
        return [entry for entry in self.entries if isinstance(entry, CompactionEntry)]

    async def let_go(self) -> None:
        self.go.set()
        await anyio.wait_all_tasks_blocked()
        assert not self.conversation.summarizer.is_running

    async def compact(self) -> EpochBegun:
        return await compact(self.conversation)


@asynccontextmanager
async def playing_slowly() -> AsyncIterator[SlowPlay]:
    play = SlowPlay()
    provider = ScriptedProvider(play.answer, provider_id="test", models=("model", "summarizer"))
    play.context = ContextServices(
        counting=TokenCounting(CharacterCounter()),
        models=ModelCatalog({MODEL: SMALL}),
        summarizer=SUMMARIZER,
    )
    async with anyio.create_task_group() as tasks:
        play.services = services = make_services(tasks, provider, context_services=play.context)
        profile = services.histories.default
        play.stage = Stage(conversation_of("s1", user="local", services=services, profile=profile))
        yield play
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("what", ["clear", "rollback", "quarantine"])
async def test_a_rollback_discards_a_summary_begun_before(
    what: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with playing_slowly() as play:
        await play.play_until_asked_for_a_summary()
        match what:
            case "clear":
                await operations.clear(play.conversation)
            case "rollback":
                await operations.roll_back(play.conversation, 2)
            case _:
                await play.conversation.append_entry(
                    QuarantineEntry(target_seq=1, code="refused", content="no")
                )
        await play.let_go()
        assert play.compactions == []
        assert what in caplog.text
        assert "'input_tokens': 50, 'output_tokens': 7" in caplog.text


async def test_a_rename_meanwhile_hinders_no_summary() -> None:
    async with playing_slowly() as play:
        await play.play_until_asked_for_a_summary()
        await operations.rename(play.conversation, "a name")
        await play.let_go()
        assert [entry.content for entry in play.compactions] == ["Summary 1."]


async def test_a_rollback_is_refused_as_busy_during_a_compaction() -> None:
    async with playing_slowly() as play:
        for number in range(8):
            await play.stage.play(f"prompt {number} " + "word " * 60)
        done: list[object] = []
        play.conversation.add_job(play.compact, done=done.append, failed=done.append)
        await play.called.wait()
        with pytest.raises(RequestError) as refused:
            await operations.roll_back(play.conversation, 2)
        assert refused.value.code == ErrorCode.BUSY
        play.go.set()
        await play.conversation.activity.quiet()
        assert [type(given) for given in done] == [EpochBegun]


async def test_a_compaction_replaces_a_background_summary() -> None:
    async with playing_slowly() as play:
        await play.play_until_asked_for_a_summary()
        await play.stage.play("one more " + "word " * 200)
        done = await play.compact()
        await play.let_go()
        assert [(entry.seq, entry.content) for entry in play.compactions] == [
            (done.compaction, "Summary 2.")
        ]


async def test_a_summary_of_less_does_not_replace_one_of_as_much() -> None:
    async with playing_slowly() as play:
        await play.play_until_asked_for_a_summary()
        through = play.conversation.history.head_seq
        known = CompactionEntry(content="All of it.", from_seq=1, through_seq=through)
        await play.conversation.append_entry(known)
        await play.let_go()
        assert [entry.content for entry in play.compactions] == ["All of it."]


async def test_a_compaction_continues_without_a_stopped_summary() -> None:
    async with playing_slowly() as play:
        for number in range(8):
            await play.stage.play(f"prompt {number} " + "word " * 60)
        done: list[EpochBegun] = []
        play.conversation.add_job(play.compact, done=done.append, failed=lambda _: None)
        await play.called.wait()
        play.conversation.stop_summarizing()
        await play.conversation.activity.quiet()
        assert [given.compaction for given in done] == [None]
        assert play.epochs()


async def leave_and_return(play: SlowPlay, *, last: str) -> str | None:
    """The state of a prompt that waited while the server stopped and started."""
    there = play.conversation
    play.turns_go = anyio.Event()
    await play.stage.prompt("first")
    waiting = await play.stage.prompt("second, which waits")
    play.services.draining = True
    play.turns_go.set()
    await play.services.activity.quiet()
    await there.queue.note_shutdown()
    match last:
        case "summary":
            await play.let_go()
        case "instruction":
            await there.state.set_system_instruction("Be brief.")
        case _:
            await there.context.begin_epoch(EpochEntry(reason="asked"))
    await there.record.close()
    play.services.draining = False
    again = conversation_of(
        "s1",
        user="local",
        services=play.services,
        profile=there.record.profile,
        opened=await there.record.profile.store.open("s1"),
    )
    await again.queue.resume_unfinished()
    await again.activity.quiet()
    return again.history.turn_state(waiting.turn_id)


@pytest.mark.parametrize(
    ("last", "state"),
    [("summary", "completed"), ("instruction", "completed"), ("epoch", "interrupted")],
)
async def test_recovery_runs_a_queued_prompt_unless_a_call_was_recorded_after_it(
    last: str, state: str
) -> None:
    async with playing_slowly() as play:
        await play.play_until_asked_for_a_summary()
        assert await leave_and_return(play, last=last) == state


@pytest.mark.parametrize(
    ("words", "summary", "warning"),
    [
        (400, "They spoke of many different things. " * 200, "are kept"),
        (80, "They spoke of many different things. " * 1_000, "would stand for"),
    ],
)
async def test_a_summary_too_long_to_make_room_is_not_kept(
    words: int, summary: str, warning: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with playing(summarizer=SUMMARIZER) as play:
        play.summary = summary
        for number in range(8):
            await play.stage.play(f"prompt {number} " + "word " * words)
        with caplog.at_level(logging.WARNING):
            done = await compact(play.conversation)
        assert done.compaction is None
        assert warning in caplog.text
        assert "'output_tokens': 7" in caplog.text
        assert done.tokens_after < done.tokens_before


async def test_a_summarizer_gets_its_size_limit() -> None:
    async with playing(summarizer=SUMMARIZER) as play:
        for number in range(8):
            await play.stage.play(f"prompt {number} " + "word " * 60)
        await compact(play.conversation)
        (request,) = play.summaries
        words = int(play.context.summary_tokens_max(SMALL.budget_tokens) * 0.5)
        assert f"at most {words} words" in getattr(request.context[0], "instruction", "")


async def test_without_a_summarizer_nothing_is_gathered_for_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[object] = []
    monkeypatch.setattr(Projection, "summary_task", lambda *given, **_: asked.append(given))
    async with playing() as play:
        for number in range(20):
            await play.stage.play(f"{number} " + "word " * 200)
        assert play.epochs()
    assert asked == []
