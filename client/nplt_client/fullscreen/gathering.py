"""Changes on their way to the screen.

Events come when they come; a screen is drawn some thirty times a second at
most. In between, neighbouring pieces of one text are joined, so that however
fast a model speaks, drawing never falls behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from nplt_client.fullscreen.changes import Change, ReasoningGrew, TextGrew


class Gathering:
    def __init__(self) -> None:
        self._changes: list[Change] = []
        self._arrived = asyncio.Event()

    def add(self, changes: Iterable[Change]) -> None:
        for change in changes:
            last = self._changes[-1] if self._changes else None
            if last is not None and (joined := _join(last, change)):
                self._changes[-1] = joined
            else:
                self._changes.append(change)
            self._arrived.set()

    def forget(self) -> None:
        """What waits belongs to a conversation that was left."""
        self._changes.clear()

    async def take(self) -> list[Change]:
        """All there is, as soon as there is something."""
        await self._arrived.wait()
        self._arrived.clear()
        taken, self._changes = self._changes, []
        return taken


def _join(last: Change, change: Change) -> Change | None:
    if (
        isinstance(last, TextGrew)
        and isinstance(change, TextGrew)
        and (last.turn_id, last.call) == (change.turn_id, change.call)
    ):
        return TextGrew(turn_id=last.turn_id, call=last.call, piece=last.piece + change.piece)
    if (
        isinstance(last, ReasoningGrew)
        and isinstance(change, ReasoningGrew)
        and (last.turn_id, last.call) == (change.turn_id, change.call)
    ):
        return ReasoningGrew(turn_id=last.turn_id, call=last.call, piece=last.piece + change.piece)
    return None
