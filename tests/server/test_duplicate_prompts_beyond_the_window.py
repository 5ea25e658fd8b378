"""What is sent twice runs once, also when the first is no longer in memory."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest
from tests.server.conversations import Stage
from tests.server.services import Clock, make_services, model_of

from nplt_protocol.errors import RequestError
from nplt_protocol.messages import Prompt, Receipt
from nplt_server.conversations import operations
from nplt_server.conversations.conversation import Conversation
from nplt_server.conversations.session_manager import SessionManager
from nplt_server.providers import LlmRequest, ModelOutputDelta, Stopped, TextPiece
from nplt_storage.entries import ClearEntry, Entry, FaultEntry, ModelInputEntry, ModelOutputEntry
from nplt_storage.history import ConversationHistory
from nplt_storage.opening import StoreConfig, open_store
from nplt_storage.sent_before import SentBefore
from nplt_storage.store import ConversationStore, Origin

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
MORE_THAN_IS_READ = "x" * 600_000
"""After a clear, half a megabyte is enough to go on with."""


def named(number: int) -> ModelInputEntry:
    return ModelInputEntry(turn_id=f"t{number}", content=f"ask {number}", message_id=f"m{number}")


LONG: tuple[Entry, ...] = (
    named(1),
    ModelOutputEntry(turn_id="t1", content="said"),
    named(2),
    FaultEntry(turn_id="t2", content="no", code="cancelled", state="interrupted"),
    named(3),
    FaultEntry(turn_id="t3", content="no", code="provider_refused", state="failed"),
    ClearEntry(),
    named(4),
    ModelOutputEntry(turn_id="t4", content=MORE_THAN_IS_READ),
)


async def answer(request: LlmRequest) -> AsyncGenerator[ModelOutputDelta, None]:
    yield TextPiece(text="well")
    yield Stopped(reason="end")


async def write(store: ConversationStore, *drafts: Entry, to_seq: int | None = None) -> None:
    history = ConversationHistory("s1")
    steps = list(drafts)
    for number, draft in enumerate(steps):
        when = BEGAN + timedelta(seconds=number)
        history.add(history.stamp(draft, id=f"e{number}", timestamp=when))
    if to_seq is not None:
        rollback = history.rollback_to(to_seq)
        history.add(history.stamp(rollback, id="back", timestamp=BEGAN))
    async with store.build("s1", Origin(user="local", created_at=BEGAN)) as builder:
        await builder.add(list(history.entries))


@asynccontextmanager
async def reopened(store: ConversationStore) -> AsyncIterator[Conversation]:
    """As after a restart."""
    async with anyio.create_task_group() as tasks:
        session_manager = SessionManager(make_services(tasks, model_of(answer), store=store))
        conversation = await session_manager.get("s1", "local")
        assert not conversation.history.holds_all
        yield conversation
        await conversation.record.close()
        tasks.cancel_scope.cancel()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[ConversationStore]:
    store = await open_store(StoreConfig(), data_dir=tmp_path, clock=Clock())
    yield store
    await store.close()


async def send(conversation: Conversation, number: int, text: str | None = None) -> Receipt:
    receipts: list[Receipt] = []
    prompt = Prompt(text=text or f"ask {number}", message_id=f"m{number}")
    await conversation.accept(prompt, receipt=receipts.append)
    await conversation.activity.quiet()
    return receipts[0]


async def test_a_duplicate_message_id_older_than_the_loaded_entries_gets_its_receipt_again(
    store: ConversationStore,
) -> None:
    await write(store, *LONG)
    async with reopened(store) as conversation:
        assert conversation.history.prompt_by_message_id("m1") is None
        receipts = [await send(conversation, number) for number in (1, 2, 3)]
        assert conversation.history.head_seq == len(LONG)
    assert [(r.seq, r.turn_id, r.state) for r in receipts] == [
        (1, "t1", "completed"),
        (3, "t2", "interrupted"),
        (5, "t3", "failed"),
    ]
    assert all(r.duplicate and r.position == 0 for r in receipts)
    assert [r.message_id for r in receipts] == ["m1", "m2", "m3"]


async def test_a_duplicate_message_id_with_another_text_is_a_conflict(
    store: ConversationStore,
) -> None:
    await write(store, *LONG)
    async with reopened(store) as conversation:
        with pytest.raises(RequestError, match="another text"):
            await send(conversation, 1, "something else")
        assert conversation.history.head_seq == len(LONG)


async def test_a_duplicate_message_id_of_a_rolled_back_prompt_is_recognized(
    store: ConversationStore,
) -> None:
    short = (named(1), ModelOutputEntry(turn_id="t1", content="said"), *LONG[2:4])
    await write(store, *short, to_seq=2)
    async with reopened(store) as conversation:
        assert conversation.history.first_seq == 1
        receipt = await send(conversation, 2)
        assert (receipt.seq, receipt.state, receipt.duplicate) == (3, "interrupted", True)
        assert conversation.history.head_seq == 5


async def test_a_duplicate_message_id_of_a_rolled_back_turn_reports_its_state(
    store: ConversationStore,
) -> None:
    await write(store, *LONG)
    async with reopened(store) as conversation:
        await send(conversation, 5)
        await operations.roll_back(conversation, len(LONG))
        assert (await send(conversation, 5)).state == "completed"


async def test_of_two_concurrent_duplicate_message_ids_one_runs(store: ConversationStore) -> None:
    await write(store, *LONG)
    async with reopened(store) as conversation:
        stage = Stage(conversation)
        receipts: list[Receipt] = []

        async def send_one() -> None:
            receipts.append(await send(conversation, 9))

        async with anyio.create_task_group() as clients:
            for _ in range(3):
                clients.start_soon(send_one)
        assert sorted(bool(receipt.duplicate) for receipt in receipts) == [False, True, True]
        assert len({receipt.turn_id for receipt in receipts}) == 1
        assert len(stage.finished) == 1


class SlowToAnswer:
    """Much may happen until the store has answered what it was asked first."""

    def __init__(self, store: ConversationStore) -> None:
        self.store = store
        self.asked = anyio.Event()
        self.go_on = anyio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    async def prompt_by_message_id(self, session_id: str, message_id: str) -> SentBefore | None:
        is_first = not self.asked.is_set()
        self.asked.set()
        found = await self.store.prompt_by_message_id(session_id, message_id)
        if is_first:
            await self.go_on.wait()
        return found


async def test_a_duplicate_message_id_is_not_written_during_the_lookup(
    store: ConversationStore,
) -> None:
    await write(store, *LONG)
    slow = SlowToAnswer(store)
    async with reopened(cast(ConversationStore, slow)) as conversation:
        stage = Stage(conversation)
        receipts: list[Receipt] = []

        async def send_one() -> None:
            receipts.append(await send(conversation, 9))

        async with anyio.create_task_group() as clients:
            clients.start_soon(send_one)
            await slow.asked.wait()
            clients.start_soon(send_one)
            await anyio.wait_all_tasks_blocked()
            assert conversation.history.prompt_by_message_id("m9") is None
            slow.go_on.set()
        assert sorted(bool(receipt.duplicate) for receipt in receipts) == [False, True]
        assert len({receipt.turn_id for receipt in receipts}) == 1
        assert len(stage.finished) == 1
