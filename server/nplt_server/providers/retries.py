"""When a failed call is repeated, and after how long.

A call is retried only if the provider was unreachable or busy, or broke off, and the call did
not time out. A retry time that the provider gives is obeyed; if it is longer than
`patience_seconds`, there is no retry. The policy decides; the caller knows whether any text was
shown, waits, and announces it.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import anyio
from msgspec import Struct

from nplt_server.errors import ProviderError, ProviderPaused, ProviderUnavailable


class RetryPolicy(Struct, frozen=True, kw_only=True):
    retries_max: int = 2
    first_seconds: float = 0.5
    """The shortest first wait; each later wait is twice as long."""
    seconds_max: float = 4.0
    patience_seconds: float = 30.0
    """A provider that asks for a longer wait is not retried."""
    random: Callable[[], float] = random.random
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep

    def wait_before_retry(self, error: ProviderError, *, retries: int) -> float | None:
        """Seconds to wait before the next retry; `None` for no retry. The wait has random
        jitter, so that calls do not come back all at once, but is never shorter than the
        provider's retry time."""
        if retries >= self.retries_max or not isinstance(error, ProviderUnavailable):
            return None
        if isinstance(error, ProviderPaused) or error.timed_out:
            return None
        if error.retry_after is not None:
            if error.retry_after > self.patience_seconds:
                return None
            return error.retry_after + self.first_seconds * self.random()
        shortest = self.first_seconds * 2.0**retries
        return min(shortest * (1.0 + self.random()), self.seconds_max)
