"""The live screens written into turns since the epoch began, and which one is in force.

The epoch brings a screen of its own; from then on one is written into an entry when
it differs from the last. So what a turn's model should see is the last one written
before it, be the turn that carried it still shown or not: where a window has moved
on, that one stands before all turns. A clear or a rollback may have taken away the
last one; then an earlier one is in force again. A quarantine takes away all that were
written before it: what is refused may stand in any of them, and the next one, which
the epoch it begins brings along, is drawn without it.

Ended turns are read once, so that asking costs the same in a long conversation.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence
from typing import TypeAlias

from nplt_server.context.levels import screen_in
from nplt_server.context.steps import steps_of
from nplt_storage.conversation.history import ConversationHistory
from nplt_storage.conversation.turns import Turn
from nplt_storage.facts.entries import EpochEntry, NotebookEntry, WidgetEntry

_Basis: TypeAlias = tuple[int, frozenset[int]]
"""What decides which entries count: after which number, and those in quarantine."""


class ScreensInTurns:
    __slots__ = ("_basis", "_history", "_numbers", "_read", "_shown", "_texts")

    def __init__(self, history: ConversationHistory) -> None:
        self._history = history
        self._basis: _Basis = (0, frozenset())
        self._shown: Sequence[Turn] = ()
        self._read = 0
        """How many of them have been looked at."""
        self._numbers: list[int] = []
        """Of the turns in which a screen was written, and the last one in each."""
        self._texts: list[str] = []

    def before(self, number: int) -> str:
        """The one in force where the turn of that number begins. Empty: none."""
        self._catch_up()
        place = bisect_left(self._numbers, number)
        if place:
            return self._texts[place - 1]
        epoch = self._history.epoch
        return "" if epoch is None or epoch.seq < self._basis[0] else epoch.screen

    def within(self, turn: Turn) -> str | None:
        """The last one written in that turn, if any was."""
        self._catch_up()
        return last_screen_in(turn, *self._basis)

    def _catch_up(self) -> None:
        history = self._history
        basis = (screens_after(history), frozenset(history.quarantined))
        shown = history.shown_turns
        if shown is not self._shown or basis != self._basis:
            self._shown, self._basis = shown, basis
            self._read = 0
            self._numbers, self._texts = [], []
        for place in range(self._read, len(shown)):
            text = last_screen_in(shown[place], *basis)
            if text is not None:
                self._numbers.append(shown[place].number)
                self._texts.append(text)
        self._read = len(shown)


def screen_sources(history: ConversationHistory) -> dict[str, int]:
    """The widgets that have a state, the notebook among them, and the entry that tells it."""
    return {
        name or kind: seq
        for (kind, name), seq in history.told_seqs().items()
        if kind in (NotebookEntry.kind, WidgetEntry.kind)
    }


def screens_after(history: ConversationHistory, epoch: EpochEntry | None = None) -> int:
    """The number after which they count: the running epoch's, or that of another one."""
    epoch = epoch or history.epoch
    refused = (entry.seq for entry in history.quarantined.values())
    return max(epoch.seq if epoch else 0, max(refused, default=0))


def last_screen_in(turn: Turn, after_seq: int, quarantined: Collection[int]) -> str | None:
    """Of those written since then and shown to models."""
    if turn.end is not None and turn.end.seq < after_seq:
        return None
    if all(screen_in(entry) is None for entry in turn.entries):
        return None  # nearly always, and quickly told
    shown = (entry for step in steps_of(turn, quarantined) for entry in step)
    screens = [screen_in(entry) for entry in shown if entry.seq > after_seq]
    return next((screen for screen in reversed(screens) if screen is not None), None)
