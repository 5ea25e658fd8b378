"""Writes that are cancelled half way, and what others see between a write and its receipt.

Tools are cancelled by asyncio itself, which no shield of anyio's holds off.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import anyio
from tests.server.conversations import conversation_of
from tests.server.failing_store import FailingRecord, FailingStore
from tests.server.services import Clock, make_services, model_of
from tests.server.test_turns import two_words

from nplt_protocol.messages import Prompt
from nplt_storage.entries import Entry, RenamedEntry
from nplt_storage.files.store import JsonFileStore
from nplt_storage.memory import MemoryStore
from nplt_storage.rows import ConversationRow
from nplt_storage.store import ConversationStore, Record


class LateStore(FailingStore):
    """Entries are stored at once, and acknowledged when the test says so."""

    def __init__(self) -> None:
        super().__init__(MemoryStore(Clock()))
        self.stored = asyncio.Event()
        self.acknowledges = asyncio.Event()

    async def create(self, session_id: str, *, user: str) -> Record:
        return cast(Record, LateRecord(self, await self.store.create(session_id, user=user)))


class LateRecord(FailingRecord):
    async def append(self, entry: Entry) -> ConversationRow:
        row = await super().append(entry)
        store = cast(LateStore, self._store)
        store.stored.set()
        await store.acknowledges.wait()
        return row


async def test_a_write_that_is_cancelled_is_finished_and_the_next_one_follows_it() -> None:
    store = LateStore()
    async with anyio.create_task_group() as tasks:
        services = make_services(tasks, model_of(two_words), store=cast(ConversationStore, store))
        profile = services.histories.default
        conversation = conversation_of("s1", user="local", services=services, profile=profile)
        writing = asyncio.create_task(conversation.record.append(RenamedEntry(name="first")))
        await store.stored.wait()
        writing.cancel()
        await asyncio.sleep(0)
        next_one = asyncio.create_task(conversation.record.append(RenamedEntry(name="second")))
        await asyncio.sleep(0)
        store.acknowledges.set()
        await asyncio.wait([writing])
        assert writing.cancelled()
        assert (await next_one).seq == 2
        names = [e.name for e in conversation.history.entries if isinstance(e, RenamedEntry)]
        assert names == ["first", "second"]
        tasks.cancel_scope.cancel()


async def test_a_prompt_is_queued_as_soon_as_it_is_in_the_history() -> None:
    """Who attaches in between would find a turn that neither runs, waits, nor has an end."""
    store = LateStore()
    async with anyio.create_task_group() as tasks:
        services = make_services(tasks, model_of(two_words), store=cast(ConversationStore, store))
        profile = services.histories.default
        conversation = conversation_of("s1", user="local", services=services, profile=profile)
        accepting = asyncio.create_task(
            conversation.accept(Prompt(text="hello"), receipt=lambda _: None)
        )
        await store.stored.wait()
        store.acknowledges.set()
        while not accepting.done():
            for prompt in conversation.history.unfinished_turns():
                assert conversation.queue.holds(prompt.turn_id or "")
            await asyncio.sleep(0)
        assert conversation.history.head_seq >= 1
        tasks.cancel_scope.cancel()


async def test_a_commit_that_is_under_way_is_finished_before_its_writer_is_cancelled(
    tmp_path: Path,
) -> None:
    store = await JsonFileStore.open_directory(tmp_path, clock=Clock())
    async with anyio.create_task_group() as tasks:
        services = make_services(tasks, model_of(two_words), store=store)
        profile = services.histories.default
        conversation = conversation_of("s1", user="local", services=services, profile=profile)
        await conversation.record.append(RenamedEntry(name="first"))
        writing = asyncio.create_task(conversation.record.append(RenamedEntry(name="second")))
        await asyncio.sleep(0)
        writing.cancel()
        writing.cancel()
        await asyncio.wait([writing])
        assert conversation.history.head_seq == 2
        assert conversation.name == "second"
        assert (await conversation.record.append(RenamedEntry(name="third"))).seq == 3
        await conversation.record.close()
        await store.close()
        tasks.cancel_scope.cancel()
