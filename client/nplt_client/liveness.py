"""When to ask a silent server for a sign of life, and when to give it up. Pure.

Any byte is life. After `silence_seconds` without one the server is asked, once;
after as long again it counts as gone. Times are handed in.
"""

from __future__ import annotations

from typing import Literal

Verdict = Literal["wait", "ask", "lost"]


class Liveness:
    __slots__ = ("_asked", "_heard", "silence_seconds")

    def __init__(self, silence_seconds: float, *, now: float) -> None:
        self.silence_seconds = silence_seconds
        self._heard = now
        self._asked: float | None = None

    def heard(self, when: float) -> None:
        if when > self._heard:
            self._heard = when
            self._asked = None

    def seconds_left(self, now: float) -> float:
        """Until `judge` will say something else than "wait"."""
        since = self._heard if self._asked is None else self._asked
        return max(0.0, since + self.silence_seconds - now)

    def judge(self, now: float) -> Verdict:
        if self.seconds_left(now) > 0:
            return "wait"
        if self._asked is not None:
            return "lost"
        self._asked = now
        return "ask"
