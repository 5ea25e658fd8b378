"""Which live screen a model has before its eyes: the last one it was shown.

A screen is written into an entry only when it differs from that one; repeated in
every entry, a notebook would eat the window. What counts is what a turn's model
sees of the running epoch: the screen the epoch began with, then those in the
turns before its own that are shown, then those in its own entries. A clear, a
rollback, a quarantine or a window that has moved on may have taken away the last
one; then an earlier one is in force, and the next entry carries the present one.

Ended turns are read once; a turn's own entries are few, and read each time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence
from typing import TypeAlias

from nplt_server.context.levels import screen_in
from nplt_server.context.steps import steps_of
from nplt_storage.conversation.history import ConversationHistory
from nplt_storage.conversation.turns import Turn

_Basis: TypeAlias = tuple[int, frozenset[int]]
"""What decides which entries count: the epoch's number and those in quarantine."""


class WrittenScreens:
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

    def last_shown_to(self, turn_id: str | None) -> str:
        """Empty if there was none. A turn that is not there is one yet to come."""
        self._catch_up()
        turn = None if turn_id is None else self._history.turn(turn_id)
        own = None if turn is None else last_screen_in(turn, *self._basis)
        if own is not None:
            return own
        place = len(self._numbers) if turn is None else bisect_left(self._numbers, turn.number)
        if place and self._numbers[place - 1] >= self._first_seen_by(turn):
            return self._texts[place - 1]
        epoch = self._history.epoch
        return "" if epoch is None else epoch.screen

    def _catch_up(self) -> None:
        history = self._history
        basis = (history.epoch.seq if history.epoch else 0, frozenset(history.quarantined))
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

    def _first_seen_by(self, turn: Turn | None) -> int:
        """The number of the oldest turn it is shown."""
        turns_max, shown = self._history.turns_max, self._shown
        if turns_max is None:
            return 0
        until = len(shown) if turn is None else bisect_left(shown, turn.number, key=_number)
        first = max(0, until - turns_max)
        return shown[first].number if first < until else self._history.head_seq + 1


def last_screen_in(turn: Turn, epoch_seq: int, quarantined: Collection[int]) -> str | None:
    """Of those written since the epoch began and shown to models."""
    if turn.end is not None and turn.end.seq < epoch_seq:
        return None
    if all(screen_in(entry) is None for entry in turn.entries):
        return None  # nearly always, and quickly told
    shown = (entry for step in steps_of(turn, quarantined) for entry in step)
    screens = [screen_in(entry) for entry in shown if entry.seq > epoch_seq]
    return next((screen for screen in reversed(screens) if screen is not None), None)


def _number(turn: Turn) -> int:
    return turn.number
