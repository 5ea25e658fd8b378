"""A deadline that is moved far more often than it is missed.

Restarting it is one assignment: the timer, once set, stays where it is and
looks at the clock again when it fires. So a busy connection makes no timers,
and an idle one has none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio


class Deadline:
    __slots__ = ("_loop", "_on_missed", "_seconds", "_since", "_timer")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, seconds: float, on_missed: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._seconds = seconds
        self._on_missed = on_missed
        self._since: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_running(self) -> bool:
        return self._since is not None

    def restart(self) -> None:
        self._since = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(self._seconds, self._look)

    def pause(self) -> None:
        """Cheap; a timer already set will find nothing to do."""
        self._since = None

    def cancel(self) -> None:
        self._since = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        if self._since is None:
            return
        left = self._since + self._seconds - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._look)
        else:
            self._since = None
            self._on_missed()
