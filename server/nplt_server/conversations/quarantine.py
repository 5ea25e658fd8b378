"""What models are not shown any more because a provider refused it, and are again if it
was not the cause.

Of a prompt or an answer that is all of it. Of a call and its results it is the words, of
the notebook or a widget what stands in it until it is changed, of a summary that it
stands for anything. The instruction is never hidden: it may hold what a model must not do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from nplt_protocol.json_values import JsonObject
from nplt_server.agent_state import Write
from nplt_server.context.levels import ContextEntry
from nplt_server.context.screens import screen_sources
from nplt_storage.conversation.history import ConversationHistory
from nplt_storage.facts.entries import (
    CompactionEntry,
    NotebookEntry,
    QuarantineEntry,
    WidgetEntry,
)

REFUSED: Final = "refused_by_provider"
NOT_THE_CAUSE: Final = "not_the_cause"


class Quarantine:
    __slots__ = ("_announce", "_history", "_write")

    def __init__(
        self,
        history: Callable[[], ConversationHistory],
        *,
        write: Write,
        announce: Callable[[str, JsonObject], None],
    ) -> None:
        self._history = history
        self._write = write
        self._announce = announce

    async def put(self, seq: int, reason: str) -> bool:
        """A rollback undoes it, too. False: it is there already, or can't be."""

        def prepare() -> QuarantineEntry | None:
            if seq in self._history().quarantined or not self._can_hide(seq):
                return None
            return QuarantineEntry(target_seq=seq, code=REFUSED, content=reason)

        if await self._write(prepare) is None:
            return False
        self._announce("quarantined", {"seq": seq, "code": REFUSED, "reason": reason})
        return True

    async def lift(self, seq: int, reason: str) -> None:
        def prepare() -> QuarantineEntry | None:
            if seq not in self._history().quarantined:
                return None
            return QuarantineEntry(target_seq=seq, code=NOT_THE_CAUSE, content=reason, lifted=True)

        if await self._write(prepare) is not None:
            self._announce("released", {"seq": seq, "code": NOT_THE_CAUSE, "reason": reason})

    def _can_hide(self, seq: int) -> bool:
        history = self._history()
        entry = next(iter(history.entries_after(seq - 1) or ()), None)
        kinds = ContextEntry | NotebookEntry | WidgetEntry | CompactionEntry
        if entry is not None:
            return isinstance(entry, kinds)
        # Told long before what is held, and yet shown.
        newest = [compaction.seq for compaction in history.compactions]
        return seq in screen_sources(history).values() or seq in newest
