"""A household without sockets or files, and a model that is a Python function."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

import anyio
import anyio.abc
import anyio.lowlevel

from nplt_protocol.events import Event
from nplt_server.conversations.audience import Said
from nplt_server.conversations.household import ConversationLimits, Household, TurnPlaces
from nplt_server.conversations.library import HistoryProfile, Library
from nplt_server.conversations.thinking import Counting, Thinking
from nplt_server.conversations.turn import TurnLimits
from nplt_server.deltas import ModelOutputDelta
from nplt_server.providers.base import ModelRequest, Provider
from nplt_server.providers.retrying import RetryPolicy
from nplt_server.providers.router import ProviderRouter
from nplt_server.providers.scripted import ScriptedProvider
from nplt_server.tokens.characters import CharacterCounter
from nplt_server.tools.base import Tool
from nplt_server.tools.builtin import now_tool
from nplt_server.tools.runner import ToolRunner
from nplt_storage.attachments import AttachmentFiles
from nplt_storage.memory import MemoryStore
from nplt_storage.store import ConversationStore

Model = Callable[[ModelRequest], AsyncGenerator[ModelOutputDelta, None]]


def model_of(model: Model) -> ScriptedProvider:
    """Whatever the function yields is what the model says."""
    return ScriptedProvider(model, provider_id="test")


async def _no_time(seconds: float) -> None:
    """Nobody waits here."""
    await anyio.lowlevel.checkpoint()


class Clock:
    """A second passes whenever someone looks."""

    def __init__(self) -> None:
        self._now = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        self._now += timedelta(seconds=1)
        return self._now


class Ear:
    """A listener that remembers everything."""

    def __init__(self) -> None:
        self.heard: list[Event] = []

    def hear(self, said: Said) -> None:
        assert said.frames
        self.heard.append(said.event)

    def dropped(self) -> None:
        raise AssertionError("it listens well")


def make_household(
    tasks: anyio.abc.TaskGroup,
    provider: Provider,
    *,
    tools: tuple[Tool, ...] | None = None,
    limits: TurnLimits | None = None,
    store: ConversationStore | None = None,
    thinking: Thinking | None = None,
    allowed: tuple[str, ...] = (),
    router: ProviderRouter | None = None,
) -> Household:
    """`router`: instead of one that knows the provider alone."""
    clock = Clock()
    numbers = count(1)

    def spawn(work: Callable[[], Awaitable[None]]) -> None:
        async def run() -> None:
            await work()

        tasks.start_soon(run)

    conversation_limits = ConversationLimits()
    return Household(
        library=Library([HistoryProfile(id="main", store=store or MemoryStore(clock))]),
        files=AttachmentFiles(Path("nowhere")),
        router=router or ProviderRouter([provider], retries=RetryPolicy(sleep=_no_time)),
        tools=ToolRunner(
            tools or (now_tool(clock),), clock=clock, policies=dict.fromkeys(allowed, "allow")
        ),
        limits=conversation_limits,
        turn_limits=limits or TurnLimits(),
        thinking=thinking or Thinking(counting=Counting(CharacterCounter)),
        clock=clock,
        new_session_id=lambda: f"session{next(numbers)}",
        new_entry_id=lambda: f"id{next(numbers)}",
        spawn=spawn,
        places=TurnPlaces(conversation_limits),
    )
