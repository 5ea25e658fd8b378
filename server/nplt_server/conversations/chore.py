"""Something besides turns that takes its place among them: a clear, say, or a compaction.

Whoever asked for it hears once what came of it, also if it was dropped before it
began or stopped half way.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import anyio

from nplt_protocol.errors import RequestError

log = logging.getLogger(__name__)

_Given = TypeVar("_Given")


def hand_over(callback: Callable[[_Given], None], value: _Given) -> None:
    """To whoever asked. If its connection can't take it, that is its affair: what
    is on disk has happened, and the conversation goes on."""
    try:
        callback(value)
    except Exception:
        log.exception("an answer could not be handed over")


@dataclass(slots=True, kw_only=True, eq=False)
class Chore(Generic[_Given]):
    work: Callable[[], Awaitable[_Given]]
    done: Callable[[_Given], None]
    failed: Callable[[Exception], None]
    _has_begun: bool = False
    _why_dropped: RequestError | None = None
    _scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)

    async def run(self) -> None:
        if self._why_dropped is not None:
            return  # whoever asked knows
        self._has_begun = True
        with self._scope:
            try:
                given = await self.work()
            except Exception as error:
                hand_over(self.failed, error)
            else:
                hand_over(self.done, given)
        if self._scope.cancelled_caught and self._why_dropped is not None:
            hand_over(self.failed, self._why_dropped)

    def drop(self, why: RequestError) -> None:
        """It ends at its next step: a line that is being written is written."""
        if self._why_dropped is not None:
            return
        self._why_dropped = why
        if self._has_begun:
            self._scope.cancel()
        else:
            hand_over(self.failed, why)
