"""Stopping the answer, and leaving.

One request to stop at a time, and none where none can arrive: then the next
press leaves.
"""

from __future__ import annotations

from time import monotonic

from nplt_client.connection_states import Online
from nplt_client.fullscreen.visit import Visit

_LEAVE_SECONDS = 2.0


class Stopping:
    def __init__(self, visit: Visit) -> None:
        self._visit = visit
        self._asked: str | None = None
        self._pressed_at = float("-inf")

    @property
    def is_possible(self) -> bool:
        return self._visit.course.running is not None and not self.why_not

    @property
    def why_not(self) -> str:
        """In words; empty: it can be stopped, or there is nothing to stop."""
        running = self._visit.course.running
        if running is None:
            return ""
        if not isinstance(self._visit.client.connection, Online):
            return "the answer can't be stopped while disconnected"
        return "the answer is being stopped" if running == self._asked else ""

    @property
    def how_to_leave(self) -> str:
        return "; ".join(filter(None, (self.why_not, "Ctrl+C once more leaves")))

    def is_second_press(self) -> bool:
        before, self._pressed_at = self._pressed_at, monotonic()
        return self._pressed_at - before < _LEAVE_SECONDS

    async def stop(self) -> None:
        running = self._visit.course.running
        if running is None or not self.is_possible:
            return
        self._asked = running
        try:
            await self._visit.client.cancel(running)
        finally:
            self._asked = None
