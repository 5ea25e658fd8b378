"""Breaks off a wait that lasts too long, at next to no cost for one that doesn't.

A scope around each read of a stream costs a good part of all that is done with what was
read. Here one timer looks, when the first wait could be over, how the one that is under
way by then is doing, and goes off or is set again. Whatever time passes between two waits
is nobody's.
"""

from __future__ import annotations

import asyncio
import math
from types import TracebackType


class SilenceWatch:
    """For one task, and one wait at a time: `with watch.until(deadline): …` raises
    `TimeoutError`. Deadlines are by the clock of the event loop."""

    __slots__ = ("_cancelling", "_deadline", "_has_rung", "_loop", "_rings_at", "_task", "_timer")

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._loop = asyncio.get_running_loop()
        self._deadline = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._rings_at = math.inf
        self._cancelling = 0
        self._has_rung = False

    def until(self, deadline: float) -> SilenceWatch:
        self._deadline = deadline
        if deadline < self._rings_at:
            self._set(deadline)
        return self

    def __enter__(self) -> None:
        self._cancelling = self._task.cancelling()

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        self._deadline = math.inf
        if not self._has_rung:
            return
        self._has_rung = False
        # If others want the task to end as well, that comes first.
        if self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from None

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _set(self, when: float) -> None:
        self.close()
        self._rings_at = when
        self._timer = self._loop.call_at(when, self._look)

    def _look(self) -> None:
        self._rings_at = math.inf
        if self._deadline <= self._loop.time():
            # The task waits right now: it gets this where it waits, and nowhere else.
            self._has_rung = True
            self._task.cancel()
        elif self._deadline < math.inf:
            self._set(self._deadline)
