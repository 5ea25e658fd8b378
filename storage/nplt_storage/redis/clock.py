"""The time of day by the clock of Redis, by which all servers go.

A server reads the clock of Redis now and then, and counts on from there with a clock that nobody
sets. So nothing that is stored depends on the clock of its machine, which may be wrong by hours or
be changed while the server runs.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from msgspec import Struct

from nplt_storage.durations import boot_time

_DRIFT: Final = 0.001
"""A reading becomes less certain by so much for each second; clocks differ in speed."""


class Reading(Struct, frozen=True, kw_only=True):
    """The time that the clock of Redis showed between two moments of this machine."""

    seconds: float
    """Since 1970."""
    asked_at: float
    answered_at: float

    @property
    def uncertainty(self) -> float:
        return (self.answered_at - self.asked_at) / 2

    def at(self, moment: float) -> float:
        """The seconds that Redis's clock shows at a moment of this machine."""
        return self.seconds + moment - (self.asked_at + self.answered_at) / 2


class RedisClock:
    def __init__(self, first: Reading, *, elapsed: Callable[[], float] = boot_time) -> None:
        self._reading = first
        self._elapsed = elapsed

    def __call__(self) -> datetime:
        return datetime.fromtimestamp(self._reading.at(self._elapsed()), UTC)

    def learn(self, reading: Reading) -> None:
        """Goes by this reading from now on, unless the present one is still more certain: a reply
        that took long says little."""
        now = self._reading
        age = reading.answered_at - now.answered_at
        is_off = abs(now.at(reading.answered_at) - reading.at(reading.answered_at))
        may_be_off = now.uncertainty + age * _DRIFT + reading.uncertainty
        if reading.uncertainty <= now.uncertainty + age * _DRIFT or is_off > may_be_off:
            self._reading = reading
