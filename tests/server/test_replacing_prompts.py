"""An edited prompt is two facts: both are written, or what stood stands."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import anyio
import pytest
from tests.server.conversations import Stage, conversation_of
from tests.server.failing_store import FailingStore
from tests.server.services import Clock, make_services, model_of

from nplt_protocol.errors import RequestError
from nplt_protocol.messages import Prompt, Receipt
from nplt_server.conversations import operations
from nplt_server.conversations.redaction import redact
from nplt_server.providers import LlmRequest, ModelOutputDelta, Stopped, TextPiece
from nplt_storage.entries import CompactionEntry, ModelInputEntry
from nplt_storage.errors import StorageUnavailable
from nplt_storage.memory import MemoryStore
from nplt_storage.store import ConversationStore


async def answer(request: LlmRequest) -> AsyncGenerator[ModelOutputDelta, None]:
    yield TextPiece(text="an answer")
    yield Stopped(reason="end")


@asynccontextmanager
async def staged() -> AsyncIterator[tuple[Stage, FailingStore]]:
    store = FailingStore(MemoryStore(Clock()))
    async with anyio.create_task_group() as tasks:
        services = make_services(tasks, model_of(answer), store=cast(ConversationStore, store))
        conversation = conversation_of(
            "s1", user="local", services=services, profile=services.histories.default
        )
        yield Stage(conversation), store
        tasks.cancel_scope.cancel()


def standing(stage: Stage) -> list[str]:
    entries = stage.conversation.history.active
    return [entry.content for entry in entries if isinstance(entry, ModelInputEntry)]


async def replace(stage: Stage, text: str, seq: int) -> Receipt:
    receipts: list[Receipt] = []
    prompt = Prompt(text=text, replace_from=seq, message_id=text)
    await stage.conversation.accept(prompt, receipt=receipts.append)
    await stage.conversation.activity.quiet()
    return receipts[0]


async def test_a_prompt_edit_that_can_not_be_written_rolls_nothing_back() -> None:
    async with staged() as (stage, store):
        await stage.play("one")
        await stage.play("two")
        store.full_for = ("model_input",)
        with pytest.raises(StorageUnavailable):
            await replace(stage, "zwei", 3)
        assert standing(stage) == ["one", "two"]
        store.full_for = ()
        await replace(stage, "zwei", 3)
        assert standing(stage) == ["one", "zwei"]


async def test_a_prompt_edit_resent_after_a_crash_between_rollback_and_prompt_is_completed() -> (
    None
):
    async with staged() as (stage, _):
        await stage.play("one")
        await stage.play("two")
        await operations.roll_back(stage.conversation, 2)  # all that a server that died had written
        receipt = await replace(stage, "zwei", 3)
        assert (standing(stage), receipt.seq) == (["one", "zwei"], 6)


async def test_of_two_edits_of_the_same_prompt_the_later_one_is_active() -> None:
    async with staged() as (stage, _):
        await stage.play("one")
        await stage.play("two")
        await replace(stage, "zwei", 3)
        await replace(stage, "deux", 3)
        assert standing(stage) == ["one", "deux"]


async def test_an_edit_can_be_edited_again() -> None:
    async with staged() as (stage, _):
        await stage.play("one")
        await stage.play("two")
        edited = await replace(stage, "zwei", 3)
        await replace(stage, "deux", edited.seq)
        assert standing(stage) == ["one", "deux"]


async def test_a_prompt_after_an_undo_can_be_edited() -> None:
    async with staged() as (stage, _):
        await stage.play("one")
        await stage.play("two")
        await operations.roll_back(stage.conversation, 2)
        asked = await stage.prompt("three")
        await stage.conversation.activity.quiet()
        await replace(stage, "drei", asked.seq)
        assert standing(stage) == ["one", "drei"]


async def test_a_summary_that_covers_a_secret_goes_with_it() -> None:
    async with staged() as (stage, _):
        await stage.play("my key is sk-1234")
        await stage.play("two")
        conversation = stage.conversation
        summary = CompactionEntry(content="They gave the key sk-1234.", from_seq=1, through_seq=2)
        await conversation.append_entry(summary)
        await conversation.append_entry(
            CompactionEntry(content="They said two.", from_seq=3, through_seq=4)
        )
        await redact(conversation, 1)
        summaries = [
            e.content for e in conversation.history.entries if isinstance(e, CompactionEntry)
        ]
        assert summaries == ["[redacted]", "They said two."]


async def test_an_entry_that_is_not_there_is_not_replaced() -> None:
    async with staged() as (stage, _):
        await stage.play("one")
        with pytest.raises(RequestError, match="no entry 3"):
            await replace(stage, "zwei", 3)
        assert standing(stage) == ["one"]
