"""A conversation's record is created once, whoever needs it first, and known to all."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import anyio
import anyio.lowlevel
import pytest
from tests.server.conversations import Stage
from tests.server.failing_store import FailingStore
from tests.server.services import Clock, make_services, model_of

from nplt_protocol.errors import RequestError
from nplt_server.conversations.session_manager import SessionManager
from nplt_server.providers import LlmRequest, ModelOutputDelta, Stopped, TextPiece
from nplt_storage.memory import MemoryStore
from nplt_storage.store import ConversationStore, Record


async def brief(request: LlmRequest) -> AsyncGenerator[ModelOutputDelta, None]:
    yield TextPiece(text="yes")
    yield Stopped(reason="end")


class SlowToCreate(FailingStore):
    def __init__(self) -> None:
        super().__init__(MemoryStore(Clock()))
        self.asked = anyio.Event()
        self.may_go_on = anyio.Event()

    async def create(self, session_id: str, *, user: str) -> Record:
        record = await super().create(session_id, user=user)
        self.asked.set()
        await self.may_go_on.wait()
        return record


class Visit:
    def __init__(self, session_manager: SessionManager, store: SlowToCreate) -> None:
        self.session_manager = session_manager
        self.store = store
        self.stage = Stage(session_manager.new("local"))
        self.conversation = self.stage.conversation


@asynccontextmanager
async def visiting() -> AsyncIterator[Visit]:
    async with anyio.create_task_group() as tasks:
        store = SlowToCreate()
        services = make_services(tasks, model_of(brief), store=cast(ConversationStore, store))
        yield Visit(SessionManager(services), store)
        tasks.cancel_scope.cancel()


async def test_an_upload_and_a_prompt_at_once_are_stored_in_the_same_record() -> None:
    async with visiting() as here:
        async with anyio.create_task_group() as clients:
            clients.start_soon(here.conversation.record.open)
            clients.start_soon(here.stage.prompt)
            await anyio.wait_all_tasks_blocked()
            here.store.may_go_on.set()
        await here.conversation.activity.quiet()
        assert [event.state for event in here.stage.finished] == ["completed"]


async def test_a_record_is_opened_although_the_first_caller_was_cancelled() -> None:
    async with visiting() as here:
        async with anyio.create_task_group() as client:
            client.start_soon(here.conversation.record.open)
            await here.store.asked.wait()
            client.cancel_scope.cancel()
            here.store.may_go_on.set()
        assert here.conversation.record.is_stored
        assert (await here.stage.play()).state == "completed"


async def test_nothing_is_left_of_a_record_created_while_its_conversation_was_deleted() -> None:
    async with visiting() as here, anyio.create_task_group() as client:

        async def upload() -> None:
            with pytest.raises(RequestError):
                await here.conversation.record.open()

        client.start_soon(upload)
        await here.store.asked.wait()
        await here.session_manager.delete(here.conversation.session_id, "local")
        here.store.may_go_on.set()
        await anyio.wait_all_tasks_blocked()
        assert await here.store.count("local") == 0
        assert not here.conversation.record.is_stored
