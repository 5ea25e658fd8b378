"""A conversation on stage: with a model, someone who prompts and someone who listens."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from tests.server.household import Ear, Model, make_household, model_of

from nplt_protocol.events import TextDelta, TurnFinished
from nplt_protocol.replies import Receipt
from nplt_protocol.requests import Prompt
from nplt_server.conversations.conversation import Conversation
from nplt_server.conversations.thinking import Thinking
from nplt_server.conversations.turn import TurnLimits
from nplt_server.tools.base import Tool


class Stage:
    """A conversation with a model, someone who prompts and someone who listens."""

    def __init__(self, conversation: Conversation) -> None:
        self.conversation = conversation
        self.ear = Ear()
        conversation.audience.join(self.ear)

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
        return [event for event in self.ear.heard if isinstance(event, TurnFinished)]

    @property
    def said(self) -> str:
        return "".join(e.text for e in self.ear.heard if isinstance(e, TextDelta))


@asynccontextmanager
async def staged(
    model: Model,
    limits: TurnLimits | None = None,
    *,
    thinking: Thinking | None = None,
    tools: tuple[Tool, ...] | None = None,
    allowed: tuple[str, ...] = (),
) -> AsyncIterator[Stage]:
    async with anyio.create_task_group() as tasks:
        household = make_household(
            tasks,
            model_of(model),
            limits=limits,
            thinking=thinking,
            tools=tools,
            allowed=allowed,
        )
        yield Stage(
            Conversation("s1", user="local", household=household, profile=household.library.default)
        )
        tasks.cancel_scope.cancel()
