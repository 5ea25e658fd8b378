"""Before anything is said, an account knows what will be written with the first line."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import anyio
from tests.server.household import make_household, model_of
from tests.server.stage import Stage
from tests.server.test_turns import two_words

from nplt_protocol.replies import ContextAccount
from nplt_server.conversations.accounts import account_of_context, account_of_usage
from nplt_server.conversations.conversation import Conversation
from nplt_server.conversations.thinking import Counting, Thinking
from nplt_server.tokens.characters import CharacterCounter
from nplt_storage.facts.entries import ModelOutputEntry

MODEL = "test/model"
INSTRUCTION = "You are a pirate. " * 30


@asynccontextmanager
async def _instructed() -> AsyncIterator[tuple[Stage, Thinking]]:
    thinking = Thinking(counting=Counting(CharacterCounter))
    async with anyio.create_task_group() as tasks:
        household = make_household(tasks, model_of(two_words), thinking=thinking)
        profile = replace(household.library.default, system_message=INSTRUCTION)
        conversation = Conversation("s1", user="local", household=household, profile=profile)
        yield Stage(conversation), thinking
        tasks.cancel_scope.cancel()


async def _account(stage: Stage, thinking: Thinking, text: str | None) -> ContextAccount:
    mind = stage.conversation.mind
    return await account_of_context(mind, thinking, model=MODEL, text=text, bytes_max=2**20)


async def test_the_profiles_instruction_is_told_as_the_first_call_will_get_it() -> None:
    async with _instructed() as (stage, thinking):
        told = await _account(stage, thinking, "hello")
        system, asked = (row for row in told.entries if "detail" in row)
        assert (system["seq"], system["content"]) == (1, INSTRUCTION)
        assert (asked["seq"], asked["content"]) == (2, "hello")
        await stage.play("hello")
        answer = stage.conversation.history.entries[-1]
        assert isinstance(answer, ModelOutputEntry)
        assert answer.sent is not None
        assert answer.sent.tokens == told.totals["tokens"]


async def test_the_estimate_of_the_first_call_counts_the_instruction() -> None:
    async with _instructed() as (stage, thinking):
        told = await _account(stage, thinking, None)
        usage = account_of_usage(stage.conversation.mind, thinking, model=MODEL)
        assert usage.estimate["tokens"] == told.totals["tokens"]
        assert len(told.entries) == 2


async def test_asking_for_an_account_writes_nothing() -> None:
    async with _instructed() as (stage, thinking):
        await _account(stage, thinking, "hello")
        assert stage.conversation.history.head_seq == 0
        assert not stage.conversation.is_stored
