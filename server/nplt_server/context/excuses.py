"""Why an entry is not among the messages of a context; `account` has the list."""

from __future__ import annotations

from typing import Literal, TypeAlias

from nplt_server.context.scene import Asked
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
        self._shown = {turn.number: turn for turn in history.shown_turns}
        self._of_turns: dict[str, LeftOut | None] = {}
        self._window_from = self._first_in_window()

    def of(self, entry: Entry) -> LeftOut:
        if self._hidden and is_in(self._hidden, entry.seq):
            return "rolled_back"
        if entry is self._selection.compaction:
            return "head"
        if not isinstance(entry, ModelInputEntry | ModelOutputEntry | ToolResultsEntry):
            return "quarantined" if entry.seq in self._quarantined else "not_for_models"
        turn_id = entry.turn_id
        if turn_id is None:
            return "unpaired"
        if turn_id not in self._of_turns:
            self._of_turns[turn_id] = self._of_turn(self._history.turn(turn_id))
        return self._of_turns[turn_id] or self._within(turn_id, entry.seq)

    def _of_turn(self, turn: Turn | None) -> LeftOut | None:
        """`None`: it is shown, but for single entries."""
        if turn is None:
            return "unpaired"
        if turn is self._own:
            return None
        if turn.end is None:
            return "abandoned" if turn.abandoned else "later"
        if self._shown.get(turn.number) is not turn:
            return "cleared"
        if turn.number > self._number:
            return "later"
        if turn.number < self._window_from:
            return "window"
        if self._selection.covers(turn):
            return "compacted"
        return "omitted" if self._selection.level_of(turn) is None else None

    def _within(self, turn_id: str, seq: int) -> LeftOut:
        if seq in self._quarantined:
            return "quarantined"
        turn = self._history.turn(turn_id)
        assert turn is not None
        if all(entry.seq != seq for step in steps_of(turn, ()) for entry in step):
            return "unpaired"
        return "omitted"

    def _first_in_window(self) -> int:
        turns_max, shown = self._history.turns_max, self._history.shown_turns
        first = 0 if turns_max is None else self._selection.until - turns_max
        if first <= 0:
            return 0
        return shown[first].number if first < len(shown) else self._number
