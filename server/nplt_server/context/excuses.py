"""Why an entry is not among the messages of a context; `account` has the list."""

from __future__ import annotations

from typing import Literal, TypeAlias

from nplt_server.context.scene import Asked
from nplt_server.context.selection import place_of
from nplt_server.context.steps import steps_of
from nplt_server.context.views import ContextView
from nplt_storage.conversation.history import ConversationHistory
from nplt_storage.conversation.standing import is_in
from nplt_storage.conversation.turns import Turn
from nplt_storage.facts.entries import (
    Entry,
    ModelInputEntry,
    ModelOutputEntry,
    ToolResultsEntry,
)

LeftOut: TypeAlias = Literal[
    "head",
    "omitted",
    "compacted",
    "window",
    "cleared",
    "later",
    "unpaired",
    "abandoned",
    "quarantined",
    "rolled_back",
    "not_for_models",
    "not_held",
]


class Excuses:
    def __init__(self, history: ConversationHistory, view: ContextView, asked: Asked) -> None:
        self._history = history
        self._selection = view.selection
        self._quarantined = history.quarantined
        self._own = history.turn(asked) if isinstance(asked, str) else None
        self._number = history.head_seq + 1 if self._own is None else self._own.number
        self._hidden = history.hidden
        self._of_turns: dict[int, LeftOut | None] = {}
        self._window_from = self._first_in_window()

    def of(self, entry: Entry) -> LeftOut:
        if is_in(self._hidden, entry.seq):
            return "rolled_back"
        if entry is self._selection.compaction:
            return "head"
        if not isinstance(entry, ModelInputEntry | ModelOutputEntry | ToolResultsEntry):
            return "not_for_models"
        turn = None if entry.turn_id is None else self._history.turn(entry.turn_id)
        if turn is None:
            return "unpaired"
        if turn.number not in self._of_turns:
            self._of_turns[turn.number] = self._of_turn(turn)
        return self._of_turns[turn.number] or self._within(turn, entry.seq)

    def _of_turn(self, turn: Turn) -> LeftOut | None:
        """`None`: it is shown, but for single entries."""
        if turn is self._own:
            return None
        if turn.end is None:
            return "abandoned" if turn.abandoned else "later"
        if not self._is_shown(turn):
            return "cleared"
        if turn.number > self._number:
            return "later"
        if turn.number < self._window_from:
            return "window"
        if self._selection.covers(turn):
            return "compacted"
        return "omitted" if self._selection.level_of(turn) is None else None

    def _within(self, turn: Turn, seq: int) -> LeftOut:
        if seq in self._quarantined:
            return "quarantined"
        if all(entry.seq != seq for step in steps_of(turn, ()) for entry in step):
            return "unpaired"
        clean = (entry.seq for step in steps_of(turn, self._quarantined) for entry in step)
        return "omitted" if seq in clean else "quarantined"

    def _is_shown(self, turn: Turn) -> bool:
        shown = self._history.shown_turns
        place = place_of(shown, turn.number)
        return place < len(shown) and shown[place] is turn

    def _first_in_window(self) -> int:
        turns_max, shown = self._history.turns_max, self._history.shown_turns
        first = 0 if turns_max is None else self._selection.until - turns_max
        if first <= 0:
            return 0
        return shown[first].number if first < len(shown) else self._number
