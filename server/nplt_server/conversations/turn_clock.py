"""How long a turn may take, not counting the time it waits for people."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import anyio


class TurnClock:
    __slots__ = ("_scope", "_seconds_left", "_stops")

    def __init__(self) -> None:
        self._scope = anyio.CancelScope()
        self._seconds_left = math.inf
        self._stops = 0

    @property
    def stands_still(self) -> bool:
        """People are being asked."""
        return bool(self._stops)

    def wind_up(self, seconds: float) -> anyio.CancelScope:
        """What is done inside of this scope ends when they are over."""
        self._scope = anyio.CancelScope(deadline=anyio.current_time() + seconds)
        return self._scope

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Several may stop it at once: it goes on when the last of them is done."""
        self._stops += 1
        if self._stops == 1:
            self._seconds_left = self._scope.deadline - anyio.current_time()
            self._scope.deadline = math.inf
        try:
            yield
        finally:
            self._stops -= 1
            if not self._stops:
                self._scope.deadline = anyio.current_time() + self._seconds_left
