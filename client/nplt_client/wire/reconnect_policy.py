"""Decides when to reconnect, when to ping, and when to give up. No I/O: the caller passes the time.

`Patience` is the caller's policy, `Backoff` computes its delays, `Liveness` checks a silent
connection; `Online`, `Reconnecting` and `Offline` are the states shown to people.
`wire.wire_session` uses them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

from msgspec import Struct

from nplt_client.errors import CannotConnect, ConnectionLost, LimitExceeded, NpltError, TimedOut

STEADY_SECONDS = 10.0
"""A connection that lasted this long resets the delays."""


class Patience(Struct, frozen=True, kw_only=True):
    first_seconds: float = 0.5
    most_seconds: float = 30.0
    give_up_seconds: float | None = None
    """How long attempts may fail before the client gives up; `None` for ever."""
    from_the_start: bool = False
    """Whether the first connection is retried too. By default it is tried once."""


class Backoff:
    """Computes delays that grow from `first_seconds` to `most_seconds`, with jitter, so that the
    clients of a crashed server don't reconnect all at once. A connection that is soon lost again
    does not reset the delays."""

    def __init__(
        self, patience: Patience, *, chance: Callable[[float, float], float] | None = None
    ) -> None:
        self.attempt = 0
        self._patience = patience
        self._chance = chance
        self._delay = 0.0
        self._lost_at: float | None = None
        self._found_at: float | None = None

    def lost(self, now: float) -> None:
        """Notes that the connection was lost, or that another attempt failed."""
        if self._lost_at is not None and self._found_at is None:
            return
        if self._found_at is None or now - self._found_at >= STEADY_SECONDS:
            self._delay = 0.0
        self.attempt = 0
        self._lost_at = now
        self._found_at = None

    def found(self, now: float) -> None:
        if self._found_at is None:
            self._found_at = now

    def next_delay(self, now: float) -> float | None:
        """Returns the seconds until the next attempt, or `None` to give up."""
        patience = self._patience
        waited = now - (self._lost_at if self._lost_at is not None else now)
        if patience.give_up_seconds is not None and waited >= patience.give_up_seconds:
            return None
        self.attempt += 1
        longest = max(patience.first_seconds, 3 * self._delay)
        drawn = (self._chance or _uniform)(patience.first_seconds, longest)
        self._delay = min(patience.most_seconds, drawn)
        if patience.give_up_seconds is not None:
            return min(self._delay, max(0.0, patience.give_up_seconds - waited))
        return self._delay


def _uniform(low: float, high: float) -> float:
    from random import uniform  # slow to load, and rarely needed

    return uniform(low, high)


def is_retryable(error: NpltError) -> bool:
    """Whether another attempt may succeed. A refused token or another protocol is final."""
    return isinstance(error, CannotConnect | ConnectionLost | TimedOut | LimitExceeded)


class Liveness:
    """Detects a dead connection. After `silence_seconds` without a byte, a PING is sent; after the
    same time again, the connection counts as lost."""

    __slots__ = ("_pinged_at", "_received_at", "silence_seconds")

    def __init__(self, silence_seconds: float, *, now: float) -> None:
        self.silence_seconds = silence_seconds
        self._received_at = now
        self._pinged_at: float | None = None

    def bytes_received(self, when: float) -> None:
        if when > self._received_at:
            self._received_at = when
            self._pinged_at = None

    @property
    def due(self) -> float:
        """The time at which `check` will return "ping" or "lost"."""
        since = self._received_at if self._pinged_at is None else self._pinged_at
        return since + self.silence_seconds

    def check(self, now: float) -> Literal["wait", "ping", "lost"]:
        if now < self.due:
            return "wait"
        if self._pinged_at is not None:
            return "lost"
        self._pinged_at = now
        return "ping"


class Online(Struct, frozen=True, kw_only=True):
    """Connected, and attached to the conversation."""


class Reconnecting(Struct, frozen=True, kw_only=True):
    """The next `attempt` starts in `in_seconds`; 0 means that it is in progress."""

    attempt: int
    in_seconds: float
    reason: str


class Offline(Struct, frozen=True, kw_only=True):
    """The final state: closed, given up, or refused."""

    reason: str
    was_closed: bool = False
    """Whether this client closed the connection itself."""


ConnectionState: TypeAlias = Online | Reconnecting | Offline
