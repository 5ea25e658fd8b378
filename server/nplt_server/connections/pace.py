"""How fast one user may go. Only where users have tokens: one local user may do as it likes.

Frames above the rate are not refused; they are taken up later, and reading
pauses behind them. Prompts above the rate are refused, because waiting for them
would hold up everything the connection sent after them.
"""

from __future__ import annotations

import math


class Bucket:
    """Holds at most `size` drops and gains `size` of them every `seconds`."""

    __slots__ = ("_drops", "_filled_at", "_rate", "_size")

    def __init__(self, size: float, *, seconds: float, now: float) -> None:
        self._size = size
        self._rate = size / seconds
        self._drops = size
        self._filled_at = now

    def take(self, now: float) -> float:
        """Takes one, and gives 0; or takes none, and gives the seconds to wait."""
        self._fill(now)
        if self._drops >= 1:
            self._drops -= 1
            return 0.0
        return math.ceil((1 - self._drops) / self._rate * 1_000) / 1_000

    def borrow(self, now: float) -> float:
        """Takes one in any case; gives the seconds until it has been paid for."""
        self._fill(now)
        self._drops -= 1
        return max(0.0, -self._drops / self._rate)

    def _fill(self, now: float) -> None:
        self._drops = min(self._size, self._drops + (now - self._filled_at) * self._rate)
        self._filled_at = now
