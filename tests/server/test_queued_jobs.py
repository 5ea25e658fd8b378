"""Chores among the turns: nobody waits for one that nobody needs any more."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import anyio
import anyio.lowlevel
from tests.server.conversations import Stage
from tests.server.failing_store import FailingStore
from tests.server.services import Clock, make_services, model_of

from nplt_protocol.codes import ErrorCode
from nplt_protocol.errors import RequestError
from nplt_server.conversations import operations
from nplt_server.conversations.conversation import Conversation
from nplt_server.conversations.services import Services
from nplt_server.conversations.session_manager import SessionManager
from nplt_server.providers import LlmRequest, ModelOutputDelta, Stopped, TextPiece
from nplt_storage.entries import ClearEntry
from nplt_storage.memory import MemoryStore
from nplt_storage.store import ConversationStore


async def brief(request: LlmRequest) -> AsyncGenerator[ModelOutputDelta, None]:
    yield TextPiece(text="yes")
    yield Stopped(reason="end")


class Jobs:
    """Hands in chores that take for ever, and hears what came of each."""

    def __init__(self, services: Services, store: FailingStore) -> None:
        self.services = services
        self.store = store
        self.session_manager = SessionManager(services)
        self.conversation: Conversation = self.session_manager.new("local")
        self.events: list[object] = []
        self.begun: list[str] = []

    def hand_in(self, name: str) -> None:
        async def for_ever() -> None:
            self.begun.append(name)
            await anyio.sleep_forever()

        self.conversation.add_job(for_ever, done=self.events.append, failed=self.events.append)

    async def until_begun(self) -> None:
        while not self.begun:
            await anyio.lowlevel.checkpoint()

    @property
    def refusals(self) -> list[ErrorCode | str]:
        return [error.code for error in self.events if isinstance(error, RequestError)]


@asynccontextmanager
async def running_jobs() -> AsyncIterator[Jobs]:
    async with anyio.create_task_group() as tasks:
        store = FailingStore(MemoryStore(Clock()))
        services = make_services(tasks, model_of(brief), store=cast(ConversationStore, store))
        yield Jobs(services, store)
        tasks.cancel_scope.cancel()


async def test_deleting_a_conversation_drops_queued_jobs() -> None:
    async with running_jobs() as here:
        await Stage(here.conversation).play()
        here.hand_in("one")
        here.hand_in("two")
        await here.until_begun()
        with anyio.fail_after(60):
            await here.session_manager.delete(here.conversation.session_id, "local")
        assert here.refusals == [ErrorCode.NOT_FOUND] * 2
        assert len(here.events) == 2
        assert here.begun == ["one"]


async def test_a_shutdown_drops_queued_jobs_and_keeps_prompts() -> None:
    async with running_jobs() as here:
        stage = Stage(here.conversation)
        here.hand_in("one")
        await stage.prompt("later")
        here.hand_in("two")
        await here.until_begun()
        here.services.draining = True
        here.conversation.interrupt("the server is shutting down")
        with anyio.fail_after(60):
            await here.conversation.activity.quiet()
        assert here.refusals == [ErrorCode.SHUTTING_DOWN] * 2
        assert len(here.conversation.queue.waiting) == 1
        assert stage.finished == []


async def test_a_job_whose_entry_is_being_written_is_finished() -> None:
    async with running_jobs() as here:
        conversation = here.conversation
        await Stage(conversation).play()
        here.store.append_seconds = 0.002
        cleared: list[object] = []

        async def clear() -> None:
            here.begun.append("clear")
            await operations.clear(conversation)

        conversation.add_job(clear, done=cleared.append, failed=here.events.append)
        await here.until_begun()
        conversation.interrupt("the server is shutting down")
        await conversation.activity.quiet()
        assert isinstance(conversation.history.entries[-1], ClearEntry)
        assert (len(cleared), here.events) == (1, [])


async def test_a_job_dropped_before_its_first_step_never_runs() -> None:
    async with running_jobs() as here:
        here.hand_in("one")
        here.conversation.interrupt("the server is shutting down")
        here.conversation.interrupt("once more")
        await here.conversation.activity.quiet()
        assert (here.begun, here.refusals) == ([], [ErrorCode.SHUTTING_DOWN])
        assert (await Stage(here.conversation).play()).state == "completed"


async def test_a_conversation_is_busy_while_a_job_runs_or_waits() -> None:
    async with running_jobs() as here:
        assert not here.conversation.queue.is_busy
        here.hand_in("one")
        assert here.conversation.queue.is_busy
        await here.until_begun()
        assert here.conversation.queue.is_busy
        assert here.conversation.queue.state == "idle"
        here.conversation.interrupt("enough")
        await here.conversation.activity.quiet()
        assert not here.conversation.queue.is_busy
