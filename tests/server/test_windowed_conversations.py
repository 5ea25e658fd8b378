"""A long conversation is opened at its end: what was promised long before holds."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import anyio
import anyio.lowlevel
from tests.server.services import Clock, make_services, model_of
from tests.storage.conversations import REMEMBERED_APPROVAL

from nplt_server.conversations import operations
from nplt_server.conversations.conversation import Conversation
from nplt_server.conversations.session_manager import SessionManager
from nplt_server.providers import LlmRequest, ModelOutputDelta, Stopped
from nplt_storage.entries import (
    ClearEntry,
    DebugEntry,
    Entry,
    ForkedEntry,
    NotebookEntry,
    RollbackEntry,
)
from nplt_storage.history import ConversationHistory
from nplt_storage.opening import StoreConfig, open_store
from nplt_storage.store import Origin

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
MORE_THAN_IS_HELD: tuple[Entry, ...] = (
    *[DebugEntry(category="pad", content="…")] * 400,
    ClearEntry(),
)
"""After a clear, a sixteenth of what else would be enough is."""


async def silence(request: LlmRequest) -> AsyncGenerator[ModelOutputDelta, None]:
    yield Stopped(reason="end")


@asynccontextmanager
async def opened(directory: Path, *drafts: Entry) -> AsyncIterator[Conversation]:
    history = ConversationHistory("s1")
    for draft in drafts:
        history.add(history.stamp(draft, id=f"e{history.head_seq}", timestamp=BEGAN))
    store = await open_store(StoreConfig(), data_dir=directory, clock=Clock())
    async with store.build("s1", Origin(user="local", created_at=BEGAN)) as builder:
        await builder.add(list(history.entries))
    async with anyio.create_task_group() as tasks:
        conversation = await SessionManager(
            make_services(tasks, model_of(silence), store=store)
        ).get("s1", "local")
        assert not conversation.history.holds_all
        yield conversation
        await conversation.record.close()
        tasks.cancel_scope.cancel()
    await store.close()


async def test_a_remembered_approval_beyond_the_loaded_entries_is_found(tmp_path: Path) -> None:
    async with opened(
        tmp_path, NotebookEntry(content=""), REMEMBERED_APPROVAL, *MORE_THAN_IS_HELD
    ) as here:
        assert await here.approvals.remembered() == {"write": "allow"}
        await operations.roll_back(here, 1)
        assert await here.approvals.remembered() == {}


async def test_a_rolled_back_remembered_approval_is_not_found(tmp_path: Path) -> None:
    taken_back = (NotebookEntry(content=""), REMEMBERED_APPROVAL, RollbackEntry(to_seq=1))
    async with opened(tmp_path, *taken_back, *MORE_THAN_IS_HELD) as here:
        assert await here.approvals.remembered() == {}


async def test_a_fork_has_no_remembered_approvals_after_a_rollback(
    tmp_path: Path,
) -> None:
    copied = (
        REMEMBERED_APPROVAL,
        ForkedEntry(from_session_id="other", at_seq=1),
        RollbackEntry(to_seq=1),
    )
    async with opened(tmp_path, *copied) as here:
        assert await here.approvals.remembered() == {}


async def test_a_history_can_be_read_during_a_far_rollback(tmp_path: Path) -> None:
    seen: list[int] = []

    async def look(conversation: Conversation) -> None:
        while conversation.record.is_stored:
            await anyio.lowlevel.checkpoint()
        seen.append(conversation.history.active[-1].seq)

    long = (NotebookEntry(content=""), REMEMBERED_APPROVAL, *MORE_THAN_IS_HELD)
    async with opened(tmp_path, *long) as here, anyio.create_task_group() as clients:
        clients.start_soon(look, here)
        await operations.roll_back(here, 1)
        assert [entry.seq for entry in here.history.active] == [1]
    assert seen == [len(long)]
