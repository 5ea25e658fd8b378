"""A fuse before each provider: who failed again and again is left alone for a while.

Five failures in a row that are the provider's open it for half a minute; then one call
is let through. If that fails too, it stays open twice as long, up to five minutes.
While it is open, calls fail at once, so that another provider can be asked at once.

A failure that comes with the time when the provider will be back counts for nothing
here: it is alive, and whoever asks again obeys it. Only where that time is longer than
anybody waits is the fuse open until then, for every call before would be refused too.
What a provider refuses for good reason (a key, a request, one request too many in a
minute) it refuses in good health.
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
        "_openings",
        "_patience_seconds",
        "_probe",
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
        self._openings = 0
        self._probe: Admission | None = None

    @property
    def state(self) -> BreakerState:
        if self._open_until is None:
            return "closed"
        return "open" if self._clock() < self._open_until else "half_open"

    @property
    def seconds_left(self) -> float:
        """Until a call is let through."""
        return 0.0 if self._open_until is None else max(0.0, self._open_until - self._clock())

    def admit(self) -> Admission:
        """Before a call. Whoever is let through says on the ticket how it went."""
        match self.state:
            case "open":
                raise ProviderPaused(retry_after=self.seconds_left)
            case "half_open" if self._probe is not None:
                raise ProviderPaused(retry_after=_PROBE_SECONDS)
            case "half_open":
                self._probe = Admission(self, self._openings)
                return self._probe
            case "closed":
                return Admission(self, self._openings)

    def _spoke(self) -> None:
        self._open_until = None
        self._probe = None

    def _succeeded(self) -> None:
        self._failures = 0
        self._open_seconds = OPEN_SECONDS
        self._spoke()

    def _failed(self, admission: Admission, retry_after: float | None) -> None:
        was_probe = self._probe is admission
        if retry_after is not None:
            if was_probe or retry_after > self._patience_seconds:
                self._open(min(retry_after, OPEN_SECONDS_MAX))
            return
        if admission.openings != self._openings:
            return  # what it tells was known when the fuse went
        self._failures += 1
        if was_probe:
            self._open_seconds = min(self._open_seconds * 2, OPEN_SECONDS_MAX)
        if was_probe or (self._failures >= FAILURES_MAX and self._open_until is None):
            self._open(self._open_seconds)

    def _given_up(self, admission: Admission) -> None:
        if self._probe is admission:
            self._probe = None

    def _open(self, seconds: float) -> None:
        self._open_until = max(self._clock() + seconds, self._open_until or 0.0)
        self._openings += 1
        self._probe = None


class Admission:
    """The ticket of one call, on which is said how it went. A call from before the fuse
    went may still tell that the provider is well again, but nothing worse: another one
    finds out by then."""

    __slots__ = ("_breaker", "openings")

    def __init__(self, breaker: Breaker, openings: int) -> None:
        self._breaker = breaker
        self.openings = openings
        """How often the fuse had gone when the call was let through."""

    def spoke(self) -> None:
        """It has begun to answer, which may take minutes: others need not wait for the
        end. How it ends is counted all the same."""
        self._breaker._spoke()

    def succeeded(self) -> None:
        """It answered, be it with a refusal."""
        self._breaker._succeeded()

    def failed(self, *, retry_after: float | None = None) -> None:
        """`retry_after`: when the provider says it will be back."""
        self._breaker._failed(self, retry_after)

    def given_up(self) -> None:
        """Whoever asked went away before it was known: that says nothing."""
        self._breaker._given_up(self)
