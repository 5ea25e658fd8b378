"""How long to wait before trying again, and when to stop. Pure.

Delays grow from `first_seconds` to `most_seconds` and are jittered all the way,
so that a thousand clients of one server that died don't come back in step. A
connection that is lost again at once goes on with longer delays: a server that
welcomes everyone and drops them is not worth a try every half second.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import uniform

from nplt_client.errors import CannotConnect, ConnectionLost, LimitExceeded, NpltError, TimedOut

STEADY_SECONDS = 10.0
"""A connection that lasted so long was a good one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    first_seconds: float = 0.5
    most_seconds: float = 30.0
    give_up_seconds: float | None = None
    """Of trying in vain; `None`: never."""
    from_the_start: bool = False
    """Also before the first connection stands. Else that one is tried once."""


class Backoff:
    def __init__(
        self, patience: Patience, *, chance: Callable[[float, float], float] = uniform
    ) -> None:
        self.attempt = 0
        self._patience = patience
        self._chance = chance
        self._delay = 0.0
        self._lost_at: float | None = None
        self._found_at: float | None = None

    def lost(self, now: float) -> None:
        if self._found_at is None or now - self._found_at >= STEADY_SECONDS:
            self._delay = 0.0
        self.attempt = 0
        self._lost_at = now
        self._found_at = None

    def found(self, now: float) -> None:
        self._found_at = now

    def next_delay(self, now: float) -> float | None:
        """Before the next attempt; `None`: enough."""
        patience = self._patience
        waited = now - (self._lost_at if self._lost_at is not None else now)
        if patience.give_up_seconds is not None and waited >= patience.give_up_seconds:
            return None
        self.attempt += 1
        longest = max(patience.first_seconds, 3 * self._delay)
        drawn = self._chance(patience.first_seconds, longest)
        self._delay = min(patience.most_seconds, drawn)
        if patience.give_up_seconds is not None:
            return min(self._delay, max(0.0, patience.give_up_seconds - waited))
        return self._delay


def worth_another_try(error: NpltError) -> bool:
    """A token that is refused, or a server that speaks otherwise, will be no better
    in half a second."""
    return isinstance(error, CannotConnect | ConnectionLost | TimedOut | LimitExceeded)
