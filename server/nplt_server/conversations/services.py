"""The services that all conversations of a server share: `Services`, built once by `app`.

`ContextServices` is the part of it that decides what models are shown: facts about models,
token counting, widgets, rules, and the listener that is called when a context gets too long.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import Protocol, TypeAlias

import anyio

from nplt_server.conversations.due_times import DueTimes
from nplt_server.counters import Counters
from nplt_server.histories import Histories, HistoryFiles
from nplt_server.hooks import Hooks
from nplt_server.providers import ModelCatalog
from nplt_server.providers.router import ProviderRouter
from nplt_server.quotas import Quotas
from nplt_server.redacted_prompts import RedactedPrompts
from nplt_server.settings import (
    ApprovalSettings,
    ContextSettings,
    Limits,
    OnTooLong,
    SessionSettings,
)
from nplt_server.tasks import Activity, HeavyWork, Spawn, TurnSlots
from nplt_server.tokens import TokenCounting
from nplt_server.tools.executor import ToolExecutor
from nplt_server.tools.mcp import McpServers
from nplt_server.widgets import Widget, default_widgets
from nplt_storage.attachments import AttachmentFiles
from nplt_storage.entries import EpochEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class OverThreshold:
    """The compression event: the next context would exceed the threshold of its budget.

    A listener may begin a new epoch, ask a model for a summary, or do nothing: the context
    is then shortened to fit. An exception in a listener is logged, and the turn continues.
    """

    session_id: str
    turn_id: str
    draft: EpochEntry
    """A draft of the epoch that would make room."""


class Compressible(Protocol):
    """The part of a conversation that a compression listener may use."""

    async def begin_epoch(self, draft: EpochEntry) -> EpochEntry: ...

    def start_summary(self, prompt_ref: str | None, epoch: EpochEntry) -> None: ...


CompressionListener: TypeAlias = Callable[[OverThreshold, Compressible], Awaitable[None]]


async def begin_epoch_and_summarize(event: OverThreshold, conversation: Compressible) -> None:
    """The built-in listener: begins the epoch at once, and starts a summary in the
    background."""
    epoch = await conversation.begin_epoch(event.draft)
    conversation.start_summary(event.turn_id, epoch)


_widgets_once = cache(default_widgets)
"""The default widgets, created when they are first needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextServices:
    counting: TokenCounting = field(default_factory=TokenCounting)
    models: ModelCatalog = field(default_factory=ModelCatalog)
    rules: ContextSettings = field(default_factory=ContextSettings)
    widgets: Callable[[], tuple[Widget, ...]] = _widgets_once
    on_compression: CompressionListener = begin_epoch_and_summarize
    summarizer: str | None = None
    namer: str | None = None
    """The model that names conversations. Without one, the name is the first words of the first
    prompt."""

    def summary_tokens_max(self, budget_tokens: int) -> int:
        """The length limit of a summary: a quarter of what a new epoch fills."""
        return int(budget_tokens * self.rules.keep / 4)


@dataclass(slots=True, kw_only=True)
class Services:
    histories: Histories
    files: AttachmentFiles
    kept_files: HistoryFiles
    router: ProviderRouter
    tools: ToolExecutor
    limits: Limits
    context: ContextServices
    clock: Callable[[], datetime]
    new_session_id: Callable[[], str]
    new_entry_id: Callable[[], str]
    spawn: Spawn
    slots: TurnSlots
    quotas: Quotas
    hooks: Hooks | None = None
    redacted_prompts: RedactedPrompts = field(default_factory=RedactedPrompts)
    approvals: ApprovalSettings = field(default_factory=ApprovalSettings)
    sessions: SessionSettings = field(default_factory=SessionSettings)
    on_too_long: OnTooLong = "ask"
    counters: dict[str, Counters] = field(default_factory=lambda: defaultdict(Counters))
    """The counters by user."""
    activity: Activity = field(default_factory=Activity)
    mcp_servers: McpServers = field(default_factory=lambda: McpServers(()))
    heavy: HeavyWork = field(default_factory=HeavyWork)
    importing: anyio.Lock = field(default_factory=anyio.Lock)
    """Held while a document is imported."""
    due_times: DueTimes = field(init=False)
    draining: bool = False
    """The server is shutting down: no new turn or conversation begins."""

    def __post_init__(self) -> None:
        self.due_times = DueTimes(self.limits, self.clock)
