"""Circuit breakers: a provider that keeps failing is not called for a while.

Each model has a breaker, and each provider has one. A provider's breaker counts only failures
that all its models share: it can't be reached, or the key is wrong. Five prompts in a row that fail
open a breaker for 30 s, however often each of them was retried; then one call, the probe, is let
through. If the probe fails, the breaker opens for twice as long, up to 300 s. While the breaker
is open, calls fail at once, so that a fallback can be tried.

The breaker of a provider also closes when a cheap request (for its list of models) succeeds, which
is tried when somebody wants to call it, at most four times a second: a server that was started in
the meantime answers at once.

A failure with a retry time does not count, since callers obey that time; only if the time
exceeds `patience_seconds` does the breaker open until then. Refusals (of a key, of a request,
by a rate limit) do not count either.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import anyio

from nplt_server.errors import ProviderPaused

FAILURES_MAX: Final = 5
OPEN_SECONDS: Final = 30.0
OPEN_SECONDS_MAX: Final = 300.0
_CHECK_SECONDS: Final = 0.25
_PROBE_SECONDS: Final = 1.0
"""Retry time of other calls while a probe is running."""

BreakerState: TypeAlias = Literal["closed", "open", "half_open"]


@dataclass(frozen=True, slots=True, eq=False)
class BreakerPermit:
    """Names one call that the breaker has let through."""

    openings: int
    """The number of times the breaker had opened when the call was let through."""


class Breaker:
    """Lets calls through, and takes a report of how each went. For a call that began before the
    breaker opened, a success closes the breaker, but a failure is ignored: the breaker has opened
    already."""

    def __init__(
        self,
        *,
        patience_seconds: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
        of_provider: bool = False,
    ) -> None:
        """`patience_seconds`: the longest wait before a retry."""
        self.clock = clock
        self.patience_seconds = patience_seconds
        self._of_provider = of_provider
        self._why = ""
        self._reason = "unavailable"
        self._checking = anyio.Lock()
        self._checked_at: float | None = None
        self._failures = 0
        self._open_seconds = OPEN_SECONDS
        self.open_until: float | None = None
        """`None`: closed. The breaker alone changes it."""
        self._openings = 0
        self._probe: BreakerPermit | None = None

    @property
    def state(self) -> BreakerState:
        if self.open_until is None:
            return "closed"
        return "open" if self.clock() < self.open_until else "half_open"

    @property
    def seconds_left(self) -> float:
        """Seconds until a call is let through."""
        return 0.0 if self.open_until is None else max(0.0, self.open_until - self.clock())

    def admit(self) -> BreakerPermit:
        """Lets a call through, or raises `ProviderPaused`."""
        permit = BreakerPermit(self._openings)
        if self.open_until is None:
            return permit
        if self.state == "open" or self._probe is not None:
            seconds = self.seconds_left if self.state == "open" else _PROBE_SECONDS
            raise ProviderPaused(
                retry_after=seconds,
                of_provider=self._of_provider,
                why=self._why,
                reason=self._reason,
            )
        self._probe = permit
        return permit

    async def check_again(self, is_back: Callable[[], Awaitable[bool]]) -> None:
        """Closes an open breaker if `is_back` returns true. Concurrent callers share one check."""
        async with self._checking:
            now = self.clock()
            is_due = self._checked_at is None or now - self._checked_at >= _CHECK_SECONDS
            if self.state != "open" or not is_due:
                return
            is_there = await is_back()
            self._checked_at = self.clock()
            if is_there:
                self.succeeded()

    def began(self) -> None:
        """The provider has begun to answer. Other calls are let through without waiting for
        the end, which may take minutes. The outcome is still reported at the end."""
        self.open_until = None
        self._probe = None

    def succeeded(self) -> None:
        """The provider answered; a refusal counts as an answer."""
        self._failures = 0
        self._open_seconds = OPEN_SECONDS
        self.began()

    def failed(
        self,
        permit: BreakerPermit,
        *,
        retry_after: float | None = None,
        why: str = "",
        reason: str = "unavailable",
        is_retry: bool = False,
    ) -> None:
        """`retry_after`: seconds to wait, if the provider named a time. `is_retry`: the failure
        before it was one of the same prompt, and is counted already."""
        self._why, self._reason = why, reason
        was_probe = self._probe is permit
        if retry_after is not None:
            if was_probe or retry_after > self.patience_seconds:
                self._open(min(retry_after, OPEN_SECONDS_MAX))
            return
        if permit.openings != self._openings:
            return  # the breaker has opened since the call began
        if not is_retry:
            self._failures += 1
        if was_probe:
            self._open_seconds = min(self._open_seconds * 2, OPEN_SECONDS_MAX)
        if was_probe or (self._failures >= FAILURES_MAX and self.open_until is None):
            self._open(self._open_seconds)

    def abandoned(self, permit: BreakerPermit) -> None:
        """The call ended without an outcome, for example by cancellation. Counts as neither
        success nor failure."""
        if self._probe is permit:
            self._probe = None

    def _open(self, seconds: float) -> None:
        self.open_until = max(self.clock() + seconds, self.open_until or 0.0)
        self._openings += 1
        self._probe = None
