"""Taking back more than is in memory: the record knows, and is read again."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from tests.server.conversations import Stage
from tests.server.services import Clock, make_services, model_of

from nplt_server.context.messages import ModelInputMessage
from nplt_server.conversations import operations
from nplt_server.conversations.conversation import Conversation
from nplt_server.conversations.session_manager import SessionManager
from nplt_server.providers import LlmRequest, ModelOutputDelta, Stopped, TextPiece
from nplt_storage.entries import ClearEntry, Entry, ModelInputEntry, ModelOutputEntry, NotebookEntry
from nplt_storage.history import ConversationHistory
from nplt_storage.opening import StoreConfig, open_store
from nplt_storage.store import ConversationStore, Origin

pytestmark = pytest.mark.slow

TURNS = 3_000
"""Twice as many entries: more than a conversation is opened with."""
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


async def write_long_conversation(store: ConversationStore) -> None:
    history = ConversationHistory("s1")

    def stamped(draft: Entry) -> Entry:
        number = history.head_seq + 1
        when = BEGAN + timedelta(seconds=number)
        entry = history.stamp(draft, id=f"e{number}", timestamp=when)
        history.add(entry)
        return entry

    entries = [stamped(NotebookEntry(content="milk"))]
    for turn in range(TURNS):
        entries.append(stamped(ModelInputEntry(turn_id=f"t{turn}", content=f"prompt {turn}")))
        entries.append(stamped(ModelOutputEntry(turn_id=f"t{turn}", content=f"answer {turn}")))
    async with store.build("s1", Origin(user="local", created_at=BEGAN)) as builder:
        await builder.add(entries)


async def upload_while_it_is_read_again(conversation: Conversation) -> None:
    while conversation.record.is_stored:
        await anyio.lowlevel.checkpoint()
    # Whoever looks meanwhile sees what stood before.
    assert conversation.history.recent(1)[0].content == f"answer {TURNS - 1}"
    assert conversation.history.active[-1].seq == conversation.history.head_seq
    await conversation.record.open()


async def test_a_rollback_beyond_the_loaded_entries_changes_the_context(
    tmp_path: Path,
) -> None:
    requests: list[LlmRequest] = []

    async def answer(request: LlmRequest) -> AsyncGenerator[ModelOutputDelta, None]:
        requests.append(request)
        yield TextPiece(text="well")
        yield Stopped(reason="end")

    store = await open_store(StoreConfig(), data_dir=tmp_path, clock=Clock())
    await write_long_conversation(store)
    async with anyio.create_task_group() as tasks:
        session_manager = SessionManager(make_services(tasks, model_of(answer), store=store))
        conversation = await session_manager.get("s1", "local")
        assert conversation.history.first_seq > 1_000
        async with anyio.create_task_group() as clients:
            clients.start_soon(upload_while_it_is_read_again, conversation)
            done = await operations.roll_back(conversation, 5)
            assert done.head_seq == 2 * TURNS + 2
        assert [message.content for message in conversation.history.recent(9)] == [
            "prompt 0",
            "answer 0",
            "prompt 1",
            "answer 1",
        ]
        assert conversation.history.notebook == "milk"
        await Stage(conversation).play("go on")
        contents = [m.content for m in requests[0].context if isinstance(m, ModelInputMessage)]
        assert contents[-3:] == ["prompt 0", "prompt 1", "go on"]
        await conversation.record.close()
        tasks.cancel_scope.cancel()
    await store.close()


async def test_a_clear_during_a_far_rollback_is_written_after_it(tmp_path: Path) -> None:
    async def silent(request: LlmRequest) -> AsyncGenerator[ModelOutputDelta, None]:
        yield Stopped(reason="end")

    store = await open_store(StoreConfig(), data_dir=tmp_path, clock=Clock())
    await write_long_conversation(store)
    async with anyio.create_task_group() as tasks:
        session_manager = SessionManager(make_services(tasks, model_of(silent), store=store))
        conversation = await session_manager.get("s1", "local")
        cleared: list[int] = []

        async def clear_while_it_is_read_again() -> None:
            while conversation.record.is_stored:
                await anyio.lowlevel.checkpoint()
            cleared.append(await conversation.clear_messages())

        async with anyio.create_task_group() as clients:
            clients.start_soon(clear_while_it_is_read_again)
            await operations.roll_back(conversation, 5)
        assert cleared == [conversation.history.head_seq - 1]
        assert isinstance(conversation.history.entries[-1], ClearEntry)
        await conversation.record.close()
        tasks.cancel_scope.cancel()
    await store.close()
