"""Idle conversations are closed, busy ones are not (`limits.idle_conversation_seconds_max`)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
from tests.server.approvals import asking
from tests.server.services import EventRecorder, echo_or_wait, make_services, model_of

from nplt_protocol.messages import Prompt
from nplt_server.conversations.conversation import Conversation
from nplt_server.conversations.session_manager import SessionManager
from nplt_server.settings import Limits

LONG_AGO = 1e6
"""Seconds."""


@asynccontextmanager
async def manager(idle_seconds_max: float) -> AsyncIterator[SessionManager]:
    async with anyio.create_task_group() as tasks:
        limits = Limits(idle_conversation_seconds_max=idle_seconds_max)
        yield SessionManager(make_services(tasks, model_of(echo_or_wait), limits=limits))
        tasks.cancel_scope.cancel()


async def prompt(conversation: Conversation, text: str) -> None:
    await conversation.accept(Prompt(text=text), receipt=lambda receipt: None)


async def is_closed_by(sessions: SessionManager, conversation: Conversation) -> bool:
    """Whether the sweep that runs every second closes it after a long time."""
    conversation.record.used_at -= LONG_AGO
    await sessions.close_unused()
    assert conversation.record.is_closed == (conversation not in list(sessions))
    return conversation.record.is_closed


@pytest.mark.parametrize(("idle_seconds", "is_closed"), [(4.0, False), (6.0, True)])
async def test_an_idle_conversation_is_closed_after_the_seconds_of_the_settings(
    idle_seconds: float, is_closed: bool
) -> None:
    async with manager(5.0) as sessions:
        conversation = sessions.new("local")
        await prompt(conversation, "hello")
        await conversation.activity.quiet()
        conversation.record.used_at -= idle_seconds
        await sessions.close_unused()
        assert conversation.record.is_closed is is_closed


async def test_a_conversation_with_an_attached_client_is_not_closed() -> None:
    async with manager(1.0) as sessions:
        conversation = sessions.new("local")
        client = EventRecorder()
        conversation.broadcast.join(client)
        await prompt(conversation, "hello")
        await conversation.activity.quiet()
        assert not await is_closed_by(sessions, conversation)
        conversation.broadcast.leave(client)
        assert await is_closed_by(sessions, conversation)


async def test_a_conversation_with_a_running_turn_is_not_closed() -> None:
    async with manager(1.0) as sessions:
        conversation = sessions.new("local")
        await prompt(conversation, "wait")
        assert not await is_closed_by(sessions, conversation)
        conversation.queue.cancel_all("enough")
        await conversation.activity.quiet()
        assert await is_closed_by(sessions, conversation)


async def test_a_conversation_with_queued_prompts_is_not_closed() -> None:
    async with manager(1.0) as sessions:
        conversation = sessions.new("local")
        conversation.queue.block()  # nothing runs, as before a hand-over
        await prompt(conversation, "hello")
        assert conversation.queue.waiting
        assert conversation.queue.running is None
        assert not await is_closed_by(sessions, conversation)


async def test_a_conversation_with_an_open_approval_is_not_closed() -> None:
    async with asking(wait_when_alone=True) as asked:
        (question,) = await asked.ask("write")
        asked.conversation.broadcast.leave(asked.ear)
        assert not await is_closed_by(asked.session_manager, asked.conversation)
        await asked.answer(question.approval_id, "allow")
        await asked.conversation.activity.quiet()
        assert await is_closed_by(asked.session_manager, asked.conversation)
