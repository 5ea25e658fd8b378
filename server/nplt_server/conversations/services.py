"""Holds what all conversations of a server share.

The router, the tools, the histories, token counting, context rules, limits, turn slots,
threads for long computations, counters and the flag that the server is shutting down.
Built once by `app`. The token counter is loaded in a thread when it is first needed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import Final, Protocol, TypeAlias, TypeVar

import anyio
from anyio import to_thread

from nplt_server.histories import Histories
from nplt_server.providers import ModelFacts
from nplt_server.providers.router import ProviderRouter
from nplt_server.quotas import Quotas
from nplt_server.settings import ApprovalSettings, ContextSettings, Limits, SessionSettings
from nplt_server.tokens import Correction, TokenCounter, best_counter
from nplt_server.tools import ToolOffer
from nplt_server.tools.mcp import McpServers
from nplt_server.tools.runner import ToolRunner
from nplt_server.widgets import Widget, default_widgets
from nplt_storage.attachments import AttachmentFiles
from nplt_storage.entries import EpochEntry
from nplt_storage.errors import StorageUnavailable
from nplt_storage.store import Shared

log = logging.getLogger(__name__)

_T = TypeVar("_T")
Spawn = Callable[[Callable[[], Awaitable[object]]], None]
"""Starts a background task, which is cancelled when the server stops."""
_CANCEL_AGAIN_SECONDS: Final = 0.5


class BackgroundTasks:
    """The server's tasks: one per connection, one per running turn. Leaving the block cancels
    those that are left and waits for them. They are asyncio's own, because a task in a group
    of anyio's costs an idle connection two kilobytes more."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Callable[[], Awaitable[object]]) -> None:
        task = asyncio.get_running_loop().create_task(self._guarded(work()))
        self._tasks.add(task)

    async def __aenter__(self) -> BackgroundTasks:
        return self

    async def __aexit__(self, *_: object) -> None:
        with anyio.CancelScope(shield=True):
            while self._tasks:
                for task in self._tasks:
                    task.cancel()  # again and again: what it waits for now may be its cleaning up
                await asyncio.wait(self._tasks, timeout=_CANCEL_AGAIN_SECONDS)
                # A task that was cancelled before its first step has not removed itself.
                self._tasks -= {task for task in self._tasks if task.done()}

    async def _guarded(self, work: Awaitable[object]) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            await work
        except Exception:
            # A bug in one task must not end the others.
            log.exception("a task failed")
        finally:
            self._tasks.discard(task)


class Activity:
    """Counts operations in progress, so that a caller can wait until there are none."""

    __slots__ = ("_count", "_part_of", "_rest", "is_quiet")

    def __init__(self, part_of: Activity | None = None) -> None:
        self._part_of = part_of
        self._count = 0
        self._rest: anyio.Event | None = None
        self.is_quiet = True

    def begin(self) -> None:
        self._count += 1
        if self.is_quiet:  # as a part, what goes on in here counts as one
            self.is_quiet = False
            if self._part_of is not None:
                self._part_of.begin()

    def end(self) -> None:
        self._count -= 1
        if self._count:
            return
        self.is_quiet = True
        if self._rest is not None:
            self._rest.set()
            self._rest = None
        if self._part_of is not None:
            self._part_of.end()

    async def quiet(self) -> None:
        while self._count:
            if self._rest is None:
                self._rest = anyio.Event()
            await self._rest.wait()


_UNKNOWN_MODEL: Final = ModelFacts()


@dataclass(frozen=True, slots=True, kw_only=True)
class OverThreshold:
    """The compression event: the next context would exceed the threshold of its budget.

    A listener may begin a new epoch, ask a model for a summary, or do nothing: the context
    is then shortened to fit. An exception in a listener is logged, and the turn goes on.
    """

    session_id: str
    turn_id: str
    draft: EpochEntry
    """A draft of the epoch that would make room."""


class Compressible(Protocol):
    """The part of a conversation that a compression listener may use."""

    async def begin_epoch(self, draft: EpochEntry) -> EpochEntry: ...

    def summarize_beside(self, prompt_ref: str | None, epoch: EpochEntry) -> None: ...


CompressionListener: TypeAlias = Callable[[OverThreshold, Compressible], Awaitable[None]]


async def begin_epoch_and_summarize(event: OverThreshold, conversation: Compressible) -> None:
    """The built-in listener: begins the epoch at once, and starts a summary in the
    background."""
    epoch = await conversation.begin_epoch(event.draft)
    conversation.summarize_beside(event.turn_id, epoch)


TOOL_TOKENS: Final = 8
"""For the format around each tool."""

_COUNTED_CHARACTERS_MAX: Final = 50_000

_widgets_once = cache(default_widgets)
"""The default widgets, made when they are first needed."""


class TokenCounting:
    """Counts tokens, and learns a correction from the counts that providers report."""

    def __init__(self, own: TokenCounter | None = None) -> None:
        self._loading = anyio.Lock()
        self._counter = own
        self._tools: tuple[str, int] = ("", 0)
        self.correction = Correction()

    async def counter(self) -> TokenCounter:
        if self._counter is None:
            async with self._loading:
                if self._counter is None:
                    self._counter = await to_thread.run_sync(best_counter)
        return self._counter

    @property
    def now(self) -> TokenCounter:
        """The counter, once it is loaded."""
        assert self._counter is not None
        return self._counter

    def estimate(self, text: str) -> int:
        """Of a long text by its beginning."""
        counted = text[:_COUNTED_CHARACTERS_MAX]
        return self.now.count(counted) * len(text) // len(counted) if counted else 0

    def tokens_of_tools(self, offer: ToolOffer) -> int:
        digest, tokens = self._tools
        if digest != offer.digest:
            tokens = sum(TOOL_TOKENS + self.now.count(text) for text in offer.texts)
            self._tools = (offer.digest, tokens)
        return tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextServices:
    counting: TokenCounting = field(default_factory=TokenCounting)
    models: Mapping[str, ModelFacts] = field(default_factory=dict)
    windows: dict[str, int] = field(default_factory=dict)
    """Window sizes in tokens that providers named when they refused a longer request."""
    rules: ContextSettings = field(default_factory=ContextSettings)
    widgets: Callable[[], tuple[Widget, ...]] = _widgets_once
    on_compression: CompressionListener = begin_epoch_and_summarize
    summarizer: str | None = None
    namer: str | None = None
    """The model that names conversations; without one the name is the first words of the
    first prompt."""

    def learn(self, model: str, *, counted: int, real: int) -> None:
        """Learns from the number of input tokens that a provider reports."""
        if self.facts(model).counts_tokens:
            self.counting.correction = self.counting.correction.observe(model, counted, real)

    def learn_window(self, model: str, tokens: int) -> bool:
        """Notes a window that is smaller than the known one. False: it is not smaller."""
        is_news = tokens < self.facts(model).context_tokens
        if is_news:
            self.windows[model] = tokens
        return is_news

    def facts(self, model: str) -> ModelFacts:
        try:
            known = self.models[model]  # it may find out
        except KeyError:
            known = _UNKNOWN_MODEL
        window = self.windows.get(model)
        return known if window is None else known.within(window)

    def summary_tokens_max(self, budget_tokens: int) -> int:
        """The length limit of a summary: a quarter of what a new epoch fills."""
        return int(budget_tokens * self.rules.keep / 4)


@dataclass(slots=True, kw_only=True)
class Counters:
    """Counts of one user's turns since the server started, for STATUS."""

    turns_started: int = 0
    turns_finished: dict[str, int] = field(default_factory=lambda: defaultdict(int))


_TRY_AGAIN_SECONDS: Final = 0.2


class TurnSlots:
    """Limits how many turns run at once, for each user and in all. Where servers share a
    history, a user's limit holds for all of them together, and the other one for each. While
    the history can't be asked, each server counts its own."""

    def __init__(self, limits: Limits, shared: Shared | None = None) -> None:
        self._shared = shared
        self._per_user_max = limits.turns_per_user_max
        self._all = anyio.Semaphore(limits.turns_max, fast_acquire=True)
        self._of_user: dict[str, anyio.Semaphore] = defaultdict(
            lambda: anyio.Semaphore(limits.turns_per_user_max, fast_acquire=True)
        )

    async def take(self, user: str, turn_id: str) -> None:
        await self._of_user[user].acquire()
        try:
            if (shared := self._shared) is not None:
                with suppress(StorageUnavailable):
                    while not await shared.take_turn(user, turn_id, self._per_user_max):  # noqa: ASYNC110
                        await anyio.sleep(_TRY_AGAIN_SECONDS)
            await self._all.acquire()
        except BaseException:
            self._of_user[user].release()
            self._end_shared(user, turn_id)
            raise

    def _end_shared(self, user: str, turn_id: str) -> None:
        if self._shared is not None:
            self._shared.end_turn(user, turn_id)

    def take_now(self, user: str) -> bool:
        """Takes a slot without waiting. False: no slot is free, other turns wait, or the
        other servers must be asked."""
        of_user = self._of_user[user]
        if self._shared is not None or not (of_user.value and self._all.value):
            return False
        of_user.acquire_nowait()
        self._all.acquire_nowait()
        return True

    def give_back(self, user: str, turn_id: str) -> None:
        self._all.release()
        self._of_user[user].release()
        self._end_shared(user, turn_id)


_THREADS_MAX: Final = 2
"""Threads share the interpreter with the event loop: each one more delays everybody."""


class HeavyWork:
    """Runs long computations in threads: one at a time for each user, a few in all. A user's
    computations queue behind each other, not in front of other users'."""

    def __init__(self) -> None:
        self._threads = anyio.CapacityLimiter(_THREADS_MAX)
        self._of_user: dict[str, anyio.Lock] = {}

    async def run(self, user: str, work: Callable[[], _T]) -> _T:
        async with self._of_user.setdefault(user, anyio.Lock()):
            return await to_thread.run_sync(work, limiter=self._threads)


@dataclass(slots=True, kw_only=True)
class Services:
    histories: Histories
    files: AttachmentFiles
    router: ProviderRouter
    tools: ToolRunner
    limits: Limits
    context: ContextServices
    clock: Callable[[], datetime]
    new_session_id: Callable[[], str]
    new_entry_id: Callable[[], str]
    spawn: Spawn
    slots: TurnSlots
    quotas: Quotas
    approvals: ApprovalSettings = field(default_factory=ApprovalSettings)
    sessions: SessionSettings = field(default_factory=SessionSettings)
    counters: dict[str, Counters] = field(default_factory=lambda: defaultdict(Counters))
    """By user."""
    activity: Activity = field(default_factory=Activity)
    mcp_servers: McpServers = field(default_factory=lambda: McpServers(()))
    heavy: HeavyWork = field(default_factory=HeavyWork)
    importing: anyio.Lock = field(default_factory=anyio.Lock)
    """Held while a document is imported."""
    draining: bool = False
    """The server is shutting down: no new turn or conversation begins."""
