"""Forks and imports meet deletions, other users' trash, and each other."""

from __future__ import annotations

from pathlib import Path

import anyio
import orjson
import pytest
from tests.server.services import Clock, echo_or_wait, make_services, model_of
from tests.server.test_conversation_lifecycle import OpenSessions, opened_registry

from nplt_protocol.errors import RequestError
from nplt_server.conversations.operations import OVER_THE_WIRE, fork, import_document
from nplt_server.conversations.session_manager import SessionManager
from nplt_storage.memory import MemoryStore


async def test_a_fork_of_what_is_being_deleted_is_refused_not_made_without_its_files() -> None:
    async with opened_registry() as here, anyio.create_task_group() as tasks:
        conversation = await here.begin("hello")
        session_id = conversation.session_id
        await conversation.record.close()
        del here.session_manager._open[session_id]

        async def try_to_fork() -> None:
            with pytest.raises(RequestError):
                await forked(here, session_id)

        async with here.session_manager.alone_with(session_id):  # as deleting does
            tasks.start_soon(try_to_fork)
            await anyio.wait_all_tasks_blocked()
            await here.store.delete(session_id)
        assert await here.store.count("local") == 0


async def forked(here: OpenSessions, session_id: str) -> str:
    services, session_manager = here.session_manager._services, here.session_manager
    made = await fork(
        services, session_manager, session_id=session_id, user="local", at_seq=None, name=None
    )
    return made.session_id


@pytest.mark.parametrize(
    ("messages", "why_not"),
    [
        ([{"content": "x" * OVER_THE_WIRE.bytes_max}], "at most 4 MiB"),
        ([{"content": "", "parts": [0] * 400_001}], "more than 400,000 values"),
        ([{"role": "user"}] * 20_001, "more than 20,000 messages and calls"),
        ([{"content": "", "tool_calls": [{}] * 20_000}], "more than 20,000 messages and calls"),
    ],
    ids=["bytes", "values", "messages", "calls"],
)
async def test_a_document_that_would_take_everybodys_memory_is_refused(
    tmp_path: Path, messages: list[object], why_not: str
) -> None:
    path = tmp_path / "document.json"
    path.write_bytes(orjson.dumps({"messages": messages}))
    async with anyio.create_task_group() as tasks:
        services = make_services(tasks, model_of(echo_or_wait), store=MemoryStore(Clock()))
        session_manager = SessionManager(services)
        with pytest.raises(RequestError, match=why_not):
            await import_document(services, session_manager, path, user="ada", field="document")
        tasks.cancel_scope.cancel()


async def test_one_document_is_taken_in_after_the_other(tmp_path: Path) -> None:
    path = tmp_path / "document.json"
    path.write_bytes(orjson.dumps({"session_id": "s1", "messages": [{"content": "Moin"}]}))
    async with anyio.create_task_group() as tasks:
        services = make_services(tasks, model_of(echo_or_wait), store=MemoryStore(Clock()))
        session_manager, done = SessionManager(services), anyio.Event()

        async def take_in() -> None:
            await import_document(services, session_manager, path, user="ada", field="document")
            done.set()

        async with services.importing:
            tasks.start_soon(take_in)
            await anyio.wait_all_tasks_blocked()
            assert not done.is_set()
        await done.wait()
        tasks.cancel_scope.cancel()


async def test_what_another_user_may_still_bring_back_keeps_its_id(tmp_path: Path) -> None:
    path = tmp_path / "document.json"
    path.write_bytes(orjson.dumps({"session_id": "s1", "messages": [{"content": "Moin"}]}))
    async with anyio.create_task_group() as tasks:
        services = make_services(tasks, model_of(echo_or_wait), store=MemoryStore(Clock()))
        session_manager = SessionManager(services)

        async def take_in(user: str) -> str:
            done = await import_document(
                services, session_manager, path, user=user, field="document"
            )
            return done.session_id

        adas = await take_in("ada")
        await session_manager.delete(adas, "ada")
        assert await take_in("bob") != adas
        await session_manager.undelete(adas, "ada")
        await session_manager.delete(adas, "ada")
        assert await take_in("ada") == adas, "it was her own"
        tasks.cancel_scope.cancel()
