"""Prompts that end beside the turns: whoever comes after them finds them ended."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import anyio
import anyio.lowlevel
from tests.server.conversations import Stage, conversation_of
from tests.server.failing_store import FailingStore
from tests.server.services import Clock, EventRecorder, make_services, model_of

from nplt_protocol.messages import TurnFinished
from nplt_server.context.messages import ModelInputMessage, ToolResultsMessage
from nplt_server.conversations.broadcast import BroadcastEvent
from nplt_server.providers import ModelOutputDelta, ModelRequest, Stopped, TextPiece, ToolCallPiece
from nplt_storage.entries import FaultEntry
from nplt_storage.memory import MemoryStore
from nplt_storage.store import ConversationStore


class Play(Stage):
    """With a model that looks at the clock before it answers, once it may."""

    def __init__(self) -> None:
        self.requests: list[ModelRequest] = []
        self.ended_before: list[list[str]] = []
        self.may_answer = anyio.Event()
        self.store = FailingStore(MemoryStore(Clock()))

    async def answer(self, request: ModelRequest) -> AsyncGenerator[ModelOutputDelta, None]:
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
        store = cast(ConversationStore, play.store)
        services = make_services(tasks, model_of(play.answer), store=store)
        profile = services.histories.default
        Stage.__init__(
            play, conversation_of("s1", user="local", services=services, profile=profile)
        )
        yield play
        tasks.cancel_scope.cancel()


class CancelsWhenEnded(EventRecorder):
    def __init__(self, play: Play, *, ended: str, cancels: str) -> None:
        super().__init__()
        self._play, self._ended, self._cancels = play, ended, cancels

    def deliver(self, event: BroadcastEvent) -> None:
        if isinstance(event.event, TurnFinished) and event.event.turn_id == self._ended:
            assert self._play.conversation.cancel(self._cancels)


def shown(request: ModelRequest) -> list[str]:
    said = (m.content if isinstance(m, ModelInputMessage) else m.seq for m in request.context)
    return [str(one) for one in said]


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
