"""Before anything is said, an account knows what will be written with the first line."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from msgspec.structs import replace
from tests.server.conversations import Stage, conversation_of
from tests.server.services import make_services, model_of
from tests.server.test_turns import two_words

from nplt_protocol.messages import ContextAccount
from nplt_server.conversations.context_report import context_report
from nplt_server.conversations.services import ContextServices
from nplt_server.tokens import CharacterCounter, TokenCounting
from nplt_storage.entries import ModelOutputEntry

MODEL = "test/model"
INSTRUCTION = "You are a pirate. " * 30


@asynccontextmanager
async def _instructed() -> AsyncIterator[Stage]:
    context_services = ContextServices(counting=TokenCounting(CharacterCounter()))
    async with anyio.create_task_group() as tasks:
        services = make_services(tasks, model_of(two_words), context_services=context_services)
        profile = replace(services.histories.default, system_message=INSTRUCTION)
        conversation = conversation_of("s1", user="local", services=services, profile=profile)
        yield Stage(conversation)
        tasks.cancel_scope.cancel()


async def _account(stage: Stage, text: str | None) -> ContextAccount:
    return await context_report(stage.conversation.context, model=MODEL, text=text, bytes_max=2**20)


async def test_the_context_report_shows_the_profiles_instruction_before_the_first_call() -> None:
    async with _instructed() as stage:
        account = await _account(stage, "hello")
        system, asked = (row for row in account.entries if "detail" in row)
        assert (system["seq"], system["content"]) == (1, INSTRUCTION)
        assert (asked["seq"], asked["content"]) == (2, "hello")
        await stage.play("hello")
        answer = stage.conversation.history.entries[-1]
        assert isinstance(answer, ModelOutputEntry)
        assert answer.sent is not None
        assert answer.sent.tokens == account.totals["tokens"]


async def test_the_estimate_of_the_first_call_counts_the_instruction() -> None:
    async with _instructed() as stage:
        account = await _account(stage, None)
        usage = await stage.conversation.get_token_usage()
        assert usage.estimate["tokens"] == account.totals["tokens"]
        assert len(account.entries) == 2


async def test_asking_for_an_account_writes_nothing() -> None:
    async with _instructed() as stage:
        await _account(stage, "hello")
        assert stage.conversation.history.head_seq == 0
        assert not stage.conversation.record.is_stored
