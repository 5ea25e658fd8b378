"""A conversation that another server creates between the lookup and the creation here."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
from tests.server.approvals import obedient
from tests.server.services import Clock, make_services, model_of

from nplt_protocol.errors import RequestError
from nplt_server.conversations.operations import find_or_create
from nplt_server.conversations.session_manager import SessionManager
from nplt_storage.memory import MemoryStore


class Overtaken(SessionManager):
    """After the first lookup, another server creates the conversation for this user."""

    creator: str | None = None

    async def lookup(self, wanted: str, user: str, *, by_prefix: bool = False) -> str | None:
        found = await super().lookup(wanted, user, by_prefix=by_prefix)
        if self.creator is not None:
            creator, self.creator = self.creator, None
            store = self._services.histories.default.store
            await (await store.create(wanted, user=creator)).close()
        return found


@asynccontextmanager
async def overtaken_by(creator: str) -> AsyncIterator[SessionManager]:
    async with anyio.create_task_group() as tasks:
        services = make_services(tasks, model_of(obedient), store=MemoryStore(Clock()))
        session_manager = Overtaken(services)
        session_manager.creator = creator
        yield session_manager
        tasks.cancel_scope.cancel()


async def test_a_conversation_that_another_server_has_just_created_is_entered() -> None:
    async with overtaken_by("local") as session_manager:
        conversation = await find_or_create(session_manager, "chosen", "local")
        assert conversation.session_id == "chosen"


async def test_a_conversation_that_another_user_has_just_created_is_not_found() -> None:
    async with overtaken_by("bob") as session_manager:
        with pytest.raises(RequestError, match="no conversation"):
            await find_or_create(session_manager, "chosen", "local")
