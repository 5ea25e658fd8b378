"""A conversation on stage: with a model, someone who prompts and someone who listens."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from tests.server.services import EventRecorder, Model, make_services, model_of

from nplt_protocol.messages import Prompt, Receipt, TextDelta, TurnFinished
from nplt_server.conversations.conversation import Conversation, FreshConversation
from nplt_server.conversations.services import ContextServices, Services
from nplt_server.histories import HistoryProfile
from nplt_server.settings import Limits
from nplt_server.tools import Tool
from nplt_storage.store import Opened


def conversation_of(
    session_id: str,
    *,
    user: str,
    services: Services,
    profile: HistoryProfile,
    opened: Opened | None = None,
) -> Conversation:
    return Conversation(FreshConversation(session_id, profile, services, user=user), opened)


class Stage:
    """A conversation with a model, someone who prompts and someone who listens."""

    def __init__(self, conversation: Conversation) -> None:
        self.conversation = conversation
        self.ear = EventRecorder()
        conversation.broadcast.join(self.ear)

    async def prompt(self, text: str = "hello") -> Receipt:
        receipts: list[Receipt] = []
        await self.conversation.accept(Prompt(text=text), receipt=receipts.append)
        return receipts[0]

    async def play(self, text: str = "hello") -> TurnFinished:
        receipt = await self.prompt(text)
        await self.conversation.activity.quiet()
        (finished,) = [e for e in self.finished if e.turn_id == receipt.turn_id]
        return finished

    @property
    def finished(self) -> list[TurnFinished]:
        return [event for event in self.ear.received if isinstance(event, TurnFinished)]

    @property
    def answer_text(self) -> str:
        return "".join(e.text for e in self.ear.received if isinstance(e, TextDelta))


@asynccontextmanager
async def staged(
    model: Model,
    limits: Limits | None = None,
    *,
    context_services: ContextServices | None = None,
    tools: tuple[Tool, ...] | None = None,
    allowed: tuple[str, ...] = (),
) -> AsyncIterator[Stage]:
    async with anyio.create_task_group() as tasks:
        services = make_services(
            tasks,
            model_of(model),
            limits=limits,
            context_services=context_services,
            tools=tools,
            allowed=allowed,
        )
        yield Stage(
            conversation_of(
                "s1", user="local", services=services, profile=services.histories.default
            )
        )
        tasks.cancel_scope.cancel()
