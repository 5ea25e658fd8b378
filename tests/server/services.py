"""A services without sockets or files, and a model that is a Python function."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

import anyio
import anyio.abc
import anyio.lowlevel

from nplt_protocol.messages import Event
from nplt_server.context.messages import ModelInputMessage
from nplt_server.conversations.broadcast import BroadcastEvent
from nplt_server.conversations.services import ContextServices, Services
from nplt_server.histories import Histories, HistoryFiles, HistoryProfile
from nplt_server.providers import LlmRequest, ModelOutputDelta, ProviderClient, Stopped, TextPiece
from nplt_server.providers.offline import ScriptedProvider
from nplt_server.providers.retries import RetryPolicy
from nplt_server.providers.router import ProviderRouter
from nplt_server.quotas import Quotas
from nplt_server.settings import Limits, Settings
from nplt_server.tasks import TurnSlots
from nplt_server.tokens import CharacterCounter, TokenCounting
from nplt_server.tools import Tool
from nplt_server.tools.builtin import now_tool
from nplt_server.tools.executor import ToolExecutor
from nplt_storage.attachments import AttachmentFiles
from nplt_storage.memory import MemoryStore
from nplt_storage.store import ConversationStore

Model = Callable[[LlmRequest], AsyncGenerator[ModelOutputDelta, None]]


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


async def echo_or_wait(request: LlmRequest) -> AsyncGenerator[ModelOutputDelta, None]:
    """Echoes the prompt; the answer to `wait` never ends."""
    last = request.context[-1]
    assert isinstance(last, ModelInputMessage)
    yield TextPiece(text=last.content)
    if last.content == "wait":
        await anyio.sleep_forever()
    yield Stopped(reason="end")


class EventRecorder:
    """A subscriber that remembers everything."""

    def __init__(self) -> None:
        self.received: list[Event] = []

    def deliver(self, event: BroadcastEvent) -> None:
        assert event.frames
        self.received.append(event.event)

    def dropped(self) -> None:
        raise AssertionError("it listens well")


def make_services(
    tasks: anyio.abc.TaskGroup,
    provider: ProviderClient,
    *,
    tools: tuple[Tool, ...] | None = None,
    limits: Limits | None = None,
    store: ConversationStore | None = None,
    context_services: ContextServices | None = None,
    allowed: tuple[str, ...] = (),
    router: ProviderRouter | None = None,
) -> Services:
    """`router`: instead of one that knows the provider alone."""
    clock = Clock()
    numbers = count(1)

    def spawn(work: Callable[[], Awaitable[object]]) -> None:
        async def run() -> None:
            await work()

        tasks.start_soon(run)

    limits = limits or Limits()
    histories = Histories([HistoryProfile(id="main", store=store or MemoryStore(clock))])
    files = AttachmentFiles(Path("nowhere"))
    return Services(
        histories=histories,
        files=files,
        kept_files=HistoryFiles(histories, Settings()),
        router=router or ProviderRouter([provider], retries=RetryPolicy(sleep=_no_time)),
        tools=ToolExecutor(
            tools or (now_tool(clock),), clock=clock, policies=dict.fromkeys(allowed, "allow")
        ),
        limits=limits,
        context=context_services or ContextServices(counting=TokenCounting(CharacterCounter())),
        clock=clock,
        new_session_id=lambda: f"session{next(numbers)}",
        new_entry_id=lambda: f"id{next(numbers)}",
        spawn=spawn,
        slots=TurnSlots(turns_max=limits.turns_max, per_user_max=limits.turns_max),
        quotas=Quotas(limits=limits, histories=histories, files=files.directory),
    )
