"""A fuse before each provider: who failed again and again is left alone for a while.

Five failures in a row that are the provider's open it for half a minute; then one call
is let through. If that fails too, it stays open twice as long, up to five minutes.
While it is open, calls fail at once, so that another provider can be asked at once.

A failure that comes with the time when the provider will be back counts for nothing
here: it is alive, and whoever asks again obeys it. Only where that time is longer than
anybody waits is the fuse open until then, for every call before would be refused too.
What a provider refuses for good reason (a key, a request) it refuses in good health.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Literal, TypeAlias

from nplt_server.errors import ProviderPaused

FAILURES_MAX: Final = 5
OPEN_SECONDS: Final = 30.0
OPEN_SECONDS_MAX: Final = 300.0
_PROBE_SECONDS: Final = 1.0
"""When to look again while another call finds out how the provider is."""

BreakerState: TypeAlias = Literal["closed", "open", "half_open"]


class Breaker:
    __slots__ = (
        "_clock",
        "_failures",
        "_open_seconds",
        "_open_until",
        "_patience_seconds",
        "_probing",
    )

    def __init__(
        self, *, patience_seconds: float = 30.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`patience_seconds`: how long somebody who asks again waits at the most."""
        self._clock = clock
        self._patience_seconds = patience_seconds
        self._failures = 0
        self._open_seconds = OPEN_SECONDS
        self._open_until: float | None = None
        self._probing = False

    @property
    def state(self) -> BreakerState:
        if self._open_until is None:
            return "closed"
        return "open" if self._clock() < self._open_until else "half_open"

    @property
    def seconds_left(self) -> float:
        """Until a call is let through."""
        return 0.0 if self._open_until is None else max(0.0, self._open_until - self._clock())

    def admit(self) -> None:
        """Before a call. Whoever is let through says how it went, by one of the others."""
        match self.state:
            case "open":
                raise ProviderPaused(retry_after=self.seconds_left)
            case "half_open" if self._probing:
                raise ProviderPaused(retry_after=_PROBE_SECONDS)
            case "half_open":
                self._probing = True
            case "closed":
                pass

    def spoke(self) -> None:
        """It has begun to answer, which may take minutes: others need not wait for the
        end. How it ends is counted all the same."""
        self._open_until = None
        self._probing = False

    def succeeded(self) -> None:
        """It answered, be it with a refusal."""
        self._failures = 0
        self._open_seconds = OPEN_SECONDS
        self._open_until = None
        self._probing = False

    def failed(self, *, retry_after: float | None = None) -> None:
        """`retry_after`: when the provider says it will be back."""
        was_probing, self._probing = self._probing, False
        if retry_after is not None:
            if was_probing or retry_after > self._patience_seconds:
                self._open(min(retry_after, OPEN_SECONDS_MAX))
            return
        self._failures += 1
        if was_probing:
            self._open_seconds = min(self._open_seconds * 2, OPEN_SECONDS_MAX)
        if was_probing or (self._failures >= FAILURES_MAX and self._open_until is None):
            self._open(self._open_seconds)

    def given_up(self) -> None:
        """Whoever asked went away before it was known: that says nothing."""
        self._probing = False

    def _open(self, seconds: float) -> None:
        self._open_until = self._clock() + seconds
