"""Whether to ask the same provider again, and when.

Only where it may help and can't do harm: it was not there or too busy, nothing had been
said, and it had not taken all its time already. A provider that says when it is back is
not asked before; if that is longer than anybody wants to wait, it is not asked again at
all. The policy decides; whoever asks waits and tells.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import anyio

from nplt_server.errors import ProviderError, ProviderPaused, ProviderUnavailable


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    retries_max: int = 2
    first_seconds: float = 0.5
    """The shortest wait; each one after it is twice as long."""
    seconds_max: float = 4.0
    patience_seconds: float = 30.0
    """Who is to be left alone for longer is not asked again."""
    random: Callable[[], float] = random.random
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep

    def wait_before_retry(self, error: ProviderError, *, retries: int) -> float | None:
        """Seconds, after so many retries; `None`: don't. Everybody waits a little
        differently, so that not all come back at once; nobody less than was asked for."""
        if retries >= self.retries_max or not isinstance(error, ProviderUnavailable):
            return None
        if isinstance(error, ProviderPaused) or error.timed_out or not error.before_first_token:
            return None
        if error.retry_after is not None:
            if error.retry_after > self.patience_seconds:
                return None
            return error.retry_after + self.first_seconds * self.random()
        shortest = self.first_seconds * 2.0**retries
        return min(shortest * (1.0 + self.random()), self.seconds_max)
