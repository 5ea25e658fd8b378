"""What all conversations of one server share: the tools of the trade, no state of theirs.

Handed around instead of a dozen parameters; built once by `app`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

import anyio

from nplt_server.conversations.activity import Activity, Spawn
from nplt_server.conversations.library import Library
from nplt_server.conversations.thinking import Thinking
from nplt_server.conversations.turn import TurnLimits
from nplt_server.providers.router import ProviderRouter
from nplt_server.tools.runner import ToolRunner
from nplt_storage.attachments import AttachmentFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationLimits:
    waiting_prompts_max: int = 16
    turns_per_user_max: int = 8
    turns_max: int = 64
    message_bytes_max: int = 1024 * 1024
    replay_entries_max: int = 1_000
    replay_bytes_max: int = 4 * 1024 * 1024


@dataclass(slots=True, kw_only=True)
class Counters:
    """For STATUS: what happened since the start."""

    turns_started: int = 0
    turns_finished: dict[str, int] = field(default_factory=lambda: defaultdict(int))


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRules:
    seconds_max: float = 300.0
    """Until a question nobody answers is taken for a no."""
    wait_when_alone: bool = False
    """Whether a question waits for someone to come, where nobody is there to answer."""


class TurnPlaces:
    """How many turns may run at once, for a user and in all."""

    def __init__(self, limits: ConversationLimits) -> None:
        self._all = anyio.Semaphore(limits.turns_max)
        self._of_user: dict[str, anyio.Semaphore] = defaultdict(
            lambda: anyio.Semaphore(limits.turns_per_user_max)
        )

    async def take(self, user: str) -> None:
        await self._of_user[user].acquire()
        try:
            await self._all.acquire()
        except BaseException:
            self._of_user[user].release()
            raise

    def give_back(self, user: str) -> None:
        self._all.release()
        self._of_user[user].release()


class Seat:
    """The place of one turn; it stands up while it waits for people."""

    __slots__ = ("_is_taken", "_places", "_user")

    def __init__(self, places: TurnPlaces, user: str) -> None:
        self._places = places
        self._user = user
        self._is_taken = False

    async def take(self) -> None:
        """Waits until there is one; nothing if it is seated already."""
        if not self._is_taken:
            await self._places.take(self._user)
            self._is_taken = True

    def give_back(self) -> None:
        if self._is_taken:
            self._is_taken = False
            self._places.give_back(self._user)


@dataclass(slots=True, kw_only=True)
class Household:
    library: Library
    files: AttachmentFiles
    router: ProviderRouter
    tools: ToolRunner
    limits: ConversationLimits
    turn_limits: TurnLimits
    thinking: Thinking
    clock: Callable[[], datetime]
    new_session_id: Callable[[], str]
    new_entry_id: Callable[[], str]
    spawn: Spawn
    places: TurnPlaces
    approvals: ApprovalRules = ApprovalRules()
    counters: Counters = field(default_factory=Counters)
    activity: Activity = field(default_factory=Activity)
    importing: anyio.Lock = field(default_factory=anyio.Lock)
    """Held by whoever takes in a document."""
    draining: bool = False
