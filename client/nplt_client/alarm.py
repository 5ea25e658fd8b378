"""The last resort of a command that must not outlast its time.

Every wait of ours looks at the deadline by itself; writing to a pipe that
nobody reads can't. So a moment after the deadline a signal ends whatever still
lasts, and what can't be delivered is dropped.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType

from nplt_client.errors import TimedOut
from nplt_client.exits import forget_stdout

GRACE_SECONDS = 0.7
"""Time for the ordinary ways to notice, and to cancel at the server."""


class Alarm:
    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._is_set = seconds is not None and (
            threading.current_thread() is threading.main_thread()
        )

    def __enter__(self) -> Alarm:
        if self._is_set and self._seconds is not None:
            signal.signal(signal.SIGALRM, self._strike)
            signal.setitimer(signal.ITIMER_REAL, self._seconds + GRACE_SECONDS)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._is_set:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)

    def _strike(self, number: int, frame: FrameType | None) -> None:
        forget_stdout()
        raise TimedOut(f"no answer within {self._seconds:g} s")
