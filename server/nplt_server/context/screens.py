"""The current live screen: the state of the notebook and the widgets that a model was shown last.

An epoch entry holds a screen; later screens are written into entries when they differ. A turn's
model sees the last screen written before the turn. If the entry that holds it is no longer shown,
the screen is shown before all turns. After a clear or a rollback an earlier screen is current
again. A quarantine removes all screens written before it, because any of them may contain the
refused text.

Ended turns are read once, so the cost does not grow with the conversation.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence
from operator import attrgetter, itemgetter

from nplt_server.context.steps import screen_in, steps_of
from nplt_storage.entries import NotebookEntry, WidgetEntry
from nplt_storage.history import ConversationHistory
from nplt_storage.turns import Turn


class ScreensInTurns:
    def __init__(self, history: ConversationHistory) -> None:
        self._history = history
        self._head_seq = self._changed_seq = -1
        """The history's, when it was read last."""
        self._basis: tuple[int, frozenset[int]] = (0, frozenset())
        self._first = ""
        """The epoch's screen, which is current until another one is written."""
        self._shown: Sequence[Turn] = ()
        self._read = 0
        """How many of the shown turns have been read."""
        self._screens: list[tuple[int, str]] = []
        """The numbers of the turns that hold a screen, and the last one in each."""

    def basis(self) -> tuple[int, frozenset[int]]:
        """Which entries' screens count now: those after this seq that are not quarantined."""
        history = self._history
        if history.head_seq == self._head_seq:
            return self._basis
        basis, shown = self._basis, history.shown_turns
        if history.changed_seq != self._changed_seq:
            epoch, quarantined = history.epoch, history.quarantined
            epoch_seq = 0 if epoch is None else epoch.seq
            after_seq = max(map(attrgetter("seq"), quarantined.values()), default=0)
            basis = (max(epoch_seq, after_seq), frozenset(quarantined))
            self._first = "" if epoch is None or epoch_seq < after_seq else epoch.screen
            self._changed_seq = history.changed_seq
        if shown is not self._shown or basis != self._basis:
            self._shown, self._basis = shown, basis
            self._read, self._screens = 0, []
        for place in range(self._read, len(shown)):
            text = last_screen_in(shown[place], *basis)
            if text is not None:
                self._screens.append((shown[place].number, text))
        self._read = len(shown)
        self._head_seq = history.head_seq
        return basis

    def before(self, number: int) -> str:
        """The screen that is current at the beginning of turn `number`; empty if none."""
        self.basis()
        place = bisect_left(self._screens, number, key=itemgetter(0))
        return self._screens[place - 1][1] if place else self._first

    def last_shown_to(self, turn_id: str | None) -> str:
        """The last screen that the model of the turn was shown; empty if none. An unknown
        turn counts as one that is yet to come."""
        turn = None if turn_id is None else self._history.turn(turn_id)
        if turn is None:
            return self.before(self._history.head_seq + 1)
        own = last_screen_in(turn, *self.basis())
        return self.before(turn.number) if own is None else own

    def source_seq(self) -> int:
        """The newest entry whose text is on the current screen; 0 if there is none."""
        return max(screen_sources(self._history).values(), default=0)


def screen_sources(history: ConversationHistory) -> dict[str, int]:
    """The entries that hold the current state of the notebook and of widgets, by name."""
    return {
        name or kind: seq
        for (kind, name), seq in history.state_seqs().items()
        if kind in (NotebookEntry.kind, WidgetEntry.kind)
    }


def last_screen_in(turn: Turn, after_seq: int, quarantined: Collection[int]) -> str | None:
    """The last screen in the turn's entries after `after_seq` that models are shown."""
    if turn.end is not None and turn.end.seq < after_seq:
        return None
    for entry in turn.entries:
        if screen_in(entry) is not None:
            break
    else:
        return None  # the usual case, decided quickly
    shown = (entry for step in steps_of(turn, quarantined) for entry in step)
    screens = [screen_in(entry) for entry in shown if entry.seq > after_seq]
    return next((screen for screen in reversed(screens) if screen is not None), None)
