"""An event loop's clock, moved by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast


class FakeTimer:
    def __init__(self, when: float, call: Callable[[], None]) -> None:
        self.when, self.call, self.cancelled = when, call, False

    def cancel(self) -> None:
        self.cancelled = True


class FakeLoop:
    """A clock that is moved by hand, and the timers set on it."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[FakeTimer] = []
        self.timers_made = 0
        self.soon: list[Callable[[], None]] = []

    @property
    def as_loop(self) -> asyncio.AbstractEventLoop:
        return cast(asyncio.AbstractEventLoop, self)

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, call: Callable[[], None]) -> FakeTimer:
        self.timers_made += 1
        timer = FakeTimer(self.now + delay, call)
        self.timers.append(timer)
        return timer

    def call_soon(self, call: Callable[[], None]) -> None:
        self.soon.append(call)

    def tick(self) -> None:
        calls, self.soon = self.soon, []
        for call in calls:
            call()

    def move_to(self, now: float) -> None:
        while due := [timer for timer in self.timers if timer.when <= now]:
            timer = min(due, key=lambda timer: timer.when)
            self.timers.remove(timer)
            self.now = max(self.now, timer.when)
            if not timer.cancelled:
                timer.call()
        self.now = now
