"""Long computations run in threads: nobody waits for somebody else's."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
from tests.server.conversations import conversation_of
from tests.server.services import make_services, model_of
from tests.server.test_context_manager import MODEL, Play

from nplt_protocol.messages import Prompt
from nplt_server.conversations import operations, redaction
from nplt_server.conversations.context_report import context_report
from nplt_server.conversations.conversation import Conversation
from nplt_server.conversations.services import ContextServices
from nplt_server.tasks import HeavyWork
from nplt_server.tokens import TokenCounting
from nplt_storage.active_entries import ActiveEntries
from nplt_storage.entries import ModelInputEntry, ModelOutputEntry, RollbackEntry
from nplt_storage.history import ConversationHistory

PATIENCE_SECONDS = 20.0
T = TypeVar("T")
ENTRIES = 400


class ThreadCounter:
    """Counts words, and notes whether the event loop's thread did."""

    name = "threads"

    def __init__(self) -> None:
        self.loop = threading.current_thread()
        self.counted_in_loop = 0

    def count(self, text: str, /) -> int:
        self.counted_in_loop += threading.current_thread() is self.loop
        return len(text.split())


async def _counted_in_loop(work: Callable[[Conversation], Awaitable[object]]) -> int:
    """How many texts of a long conversation the event loop counted itself meanwhile."""
    counter = ThreadCounter()
    play = Play()
    async with anyio.create_task_group() as tasks:
        services = make_services(
            tasks,
            model_of(play.answer),
            context_services=ContextServices(counting=TokenCounting(counter)),
        )
        conversation = conversation_of(
            "s1", user="local", services=services, profile=services.histories.default
        )
        for number in range(ENTRIES // 2):
            turn_id = f"t{number}"
            await conversation.record.append(ModelInputEntry(turn_id=turn_id, content="what"))
            await conversation.record.append(ModelOutputEntry(turn_id=turn_id, content="that"))
        counter.counted_in_loop = 0
        await work(conversation)
        await conversation.activity.quiet()
        tasks.cancel_scope.cancel()
    return counter.counted_in_loop


TOOLS = 1
"""The tools on offer are few, and are counted where they are needed."""


async def test_the_loop_counts_nothing_for_a_report_on_a_long_conversation() -> None:
    async def report(conversation: Conversation) -> None:
        account = await context_report(
            conversation.context, model=MODEL, text="and", bytes_max=1 << 20
        )
        assert account.totals["shown"]

    assert await _counted_in_loop(report) <= TOOLS


async def test_the_loop_counts_nothing_for_usage_compact_and_redact() -> None:
    async def three(conversation: Conversation) -> None:
        await conversation.get_token_usage()
        await operations.compact(conversation)
        await redaction.redact(conversation, 3)

    assert await _counted_in_loop(three) <= TOOLS


async def test_the_loop_counts_nothing_for_a_turn_in_a_long_conversation() -> None:
    async def turn(conversation: Conversation) -> None:
        await conversation.accept(Prompt(text="and now"), receipt=lambda receipt: None)

    assert await _counted_in_loop(turn) <= TOOLS


async def test_a_further_turn_in_a_long_conversation_needs_no_thread() -> None:
    works: list[str] = []

    class Watched(HeavyWork):
        async def run(self, user: str, work: Callable[[], T]) -> T:
            works.append(user)
            return await super().run(user, work)

    async def two_turns(conversation: Conversation) -> None:
        conversation.services.heavy = Watched()
        for is_first in (True, False):
            await conversation.accept(Prompt(text="and now"), receipt=lambda receipt: None)
            await conversation.activity.quiet()
            assert bool(works) is is_first
            works.clear()

    new_texts = ["that", "and now"]
    assert await _counted_in_loop(two_turns) <= TOOLS + len(new_texts)


async def test_a_long_rollback_is_computed_outside_the_loop() -> None:
    threads: list[threading.Thread] = []

    class Watched(ConversationHistory):
        def active_after(self, rollback: RollbackEntry) -> ActiveEntries | None:
            threads.append(threading.current_thread())
            return super().active_after(rollback)

    async def roll_back(conversation: Conversation) -> None:
        conversation.history.__class__ = Watched
        await operations.roll_back(conversation, 2)
        assert [message.content for message in conversation.get_messages()] == ["what", "that"]

    await _counted_in_loop(roll_back)
    assert threads
    assert threading.current_thread() not in threads


async def test_one_user_with_many_long_requests_delays_another_by_none() -> None:
    heavy, is_over = HeavyWork(), threading.Event()
    done: list[str] = []

    async def ask(user: str, work: Callable[[], object]) -> None:
        await heavy.run(user, work)
        done.append(user)

    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(ask, "ada", lambda: is_over.wait(PATIENCE_SECONDS))
        await anyio.wait_all_tasks_blocked()
        await ask("bob", lambda: None)
        assert done == ["bob"]
        is_over.set()
    assert done == ["bob", *["ada"] * 5]
