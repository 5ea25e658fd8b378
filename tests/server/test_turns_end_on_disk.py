"""Prompts that end beside the turns: whoever comes after them finds them ended."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import cast

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import TaskGroup
from tests.server.conversations import Stage, conversation_of
from tests.server.failing_store import FailingStore
from tests.server.services import Clock, EventRecorder, make_services, model_of

from nplt_protocol.errors import RequestError
from nplt_protocol.messages import Cleared, TurnFinished
from nplt_server.context.messages import ModelInputMessage, ToolResultsMessage
from nplt_server.conversations import operations
from nplt_server.conversations.broadcast import BroadcastEvent
from nplt_server.providers import LlmRequest, ModelOutputDelta, Stopped, TextPiece, ToolCallPiece
from nplt_storage.entries import FaultEntry
from nplt_storage.memory import MemoryStore
from nplt_storage.store import ConversationStore


class Play(Stage):
    """With a model that looks at the clock before it answers, once it may."""

    def __init__(self) -> None:
        self.requests: list[LlmRequest] = []
        self.ended_before: list[list[str]] = []
        self.may_answer = anyio.Event()
        self.store = FailingStore(MemoryStore(Clock()))

    def begin(self, tasks: TaskGroup) -> None:
        store = cast(ConversationStore, self.store)
        services = make_services(tasks, model_of(self.answer), store=store)
        profile = services.histories.default
        super().__init__(conversation_of("s1", user="local", services=services, profile=profile))

    async def answer(self, request: LlmRequest) -> AsyncGenerator[ModelOutputDelta, None]:
        self.requests.append(request)
        self.ended_before.append(self.faults)
        await self.may_answer.wait()
        if isinstance(request.context[-1], ToolResultsMessage):
            yield TextPiece(text="now I know")
        else:
            yield ToolCallPiece(index=0, tool_name="now", arguments="{}")
        yield Stopped(reason="end")

    @property
    def faults(self) -> list[str]:
        entries = self.conversation.history.entries
        return [e.turn_id or "" for e in entries if isinstance(e, FaultEntry)]

    async def first_call(self) -> None:
        while not self.requests:
            await anyio.lowlevel.checkpoint()


@asynccontextmanager
async def playing() -> AsyncIterator[Play]:
    play = Play()
    async with anyio.create_task_group() as tasks:
        play.begin(tasks)
        yield play
        tasks.cancel_scope.cancel()


class CancelsWhenEnded(EventRecorder):
    def __init__(self, play: Play, *, ended: str, cancels: str) -> None:
        super().__init__()
        self._play, self._ended, self._cancels = play, ended, cancels

    def deliver(self, event: BroadcastEvent) -> None:
        if isinstance(event.event, TurnFinished) and event.event.turn_id == self._ended:
            assert self._play.conversation.cancel(self._cancels)


def shown(request: LlmRequest) -> list[str]:
    contents = (m.content if isinstance(m, ModelInputMessage) else m.seq for m in request.context)
    return [str(one) for one in contents]


async def test_a_prompt_cancelled_at_the_end_of_the_previous_turn_is_in_no_later_context() -> None:
    async with playing() as play:
        first = await play.prompt("first")
        second = await play.prompt("second")
        await play.prompt("third")
        play.conversation.broadcast.join(
            CancelsWhenEnded(play, ended=first.turn_id, cancels=second.turn_id)
        )
        play.store.append_seconds = 0.002
        play.may_answer.set()
        await play.conversation.activity.quiet()
        one, two = (shown(request) for request in play.requests[-2:])
        assert "second" not in one + two
        assert two[: len(one)] == one
        assert [event.state for event in play.finished] == ["completed", "interrupted", "completed"]


async def test_an_unwritten_turn_end_is_written_before_the_next_turn_builds_its_context() -> None:
    async with playing() as play:
        await play.prompt("first")
        second = await play.prompt("second")
        await play.prompt("third")
        await play.first_call()
        play.store.full_for = ("fault",)
        play.conversation.cancel(second.turn_id)
        while not play.finished:
            await anyio.lowlevel.checkpoint()
        play.store.full_for = ()
        play.may_answer.set()
        await play.conversation.activity.quiet()
        assert play.ended_before == [[], [], [second.turn_id], [second.turn_id]]


async def test_an_unwritten_turn_end_is_written_once_by_concurrent_prompts() -> None:
    async with playing() as play:
        play.may_answer.set()
        await play.prompt("first")
        cancelled = await play.prompt("second")
        play.store.full_for = ("fault",)
        play.conversation.cancel(cancelled.turn_id)
        await play.conversation.activity.quiet()
        play.store.full_for = ()
        play.store.append_seconds = 0.002
        async with anyio.create_task_group() as clients:
            for text in ("third", "fourth", "fifth"):
                clients.start_soon(play.prompt, text)
        await play.conversation.activity.quiet()
        assert play.faults == [cancelled.turn_id]
        assert [event.state for event in play.finished].count("completed") == 4


async def a_turn_that_could_not_end(play: Play) -> None:
    play.may_answer.set()
    play.store.full_for = ("model_output", "tool_results", "fault")
    finished = await play.play("first")
    assert finished.state == "failed"


async def test_rollback_after_a_full_disk_is_busy_until_the_turns_end_can_be_written() -> None:
    async with playing() as play:
        await a_turn_that_could_not_end(play)
        with pytest.raises(RequestError, match="no space left") as refused:
            await operations.roll_back(play.conversation, 0)
        assert (refused.value.code, refused.value.retryable) == ("busy", True)
        play.store.full_for = ()
        await operations.roll_back(play.conversation, 0)
        assert len(play.faults) == 1


async def test_jobs_after_a_full_disk_are_busy_until_the_turns_end_can_be_written() -> None:
    async with playing() as play:
        await a_turn_that_could_not_end(play)
        reported: list[object] = []
        for is_full in (True, False):
            play.store.full_for = ("fault",) if is_full else ()
            play.conversation.add_job(
                partial(operations.clear, play.conversation),
                done=reported.append,
                failed=reported.append,
            )
            await play.conversation.activity.quiet()
        refused, cleared = reported
        assert isinstance(refused, RequestError)
        assert (refused.code, refused.retryable) == ("busy", True)
        assert isinstance(cleared, Cleared)


async def test_an_unwritten_end_is_written_as_soon_as_there_is_room_without_a_request() -> None:
    async with playing() as play:
        await a_turn_that_could_not_end(play)
        assert play.conversation.queue.unwritten_ends
        assert play.faults == []
        play.store.full_for = ()
        with anyio.fail_after(60):
            while not play.faults:
                await anyio.sleep(0.01)
        await play.conversation.activity.quiet()
        assert not play.conversation.queue.unwritten_ends


async def test_nothing_tries_to_write_an_end_to_a_record_that_was_closed() -> None:
    play = Play()
    async with anyio.create_task_group() as tasks:  # ends only when its tasks have
        play.begin(tasks)
        await a_turn_that_could_not_end(play)
        await play.conversation.record.close()
        tasks.cancel_scope.deadline = anyio.current_time() + 60
    assert not tasks.cancel_scope.cancelled_caught
