"""The turns of one conversation and their states.

Updated entry by entry; nothing is scanned again. Models are shown turns in the order of
their prompts, whenever they ended, so that a prompt that was cancelled while it waited
is not inserted before what a running turn has seen. Accepts whatever a file holds (a
turn without a prompt, results without a call); new entries are checked by the history.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Literal, TypeAlias

from msgspec import Struct, field

from nplt_storage.entries import (
    ClearEntry,
    Entry,
    FaultEntry,
    ForkedEntry,
    ModelInputEntry,
    ModelOutputEntry,
    ToolCallRequest,
    ToolResultsEntry,
)

TurnState: TypeAlias = Literal["waiting", "running", "completed", "interrupted", "failed"]
ContextEntry: TypeAlias = ModelInputEntry | ModelOutputEntry | ToolResultsEntry


class Turn(Struct, kw_only=True, gc=False):
    number: int
    """Of its prompt; of its first entry, where there is no prompt."""
    prompt: ModelInputEntry | None = None
    entries: list[ContextEntry] = field(default_factory=list)
    end: ModelOutputEntry | FaultEntry | None = None
    unanswered: ModelOutputEntry | None = None
    """The latest output, while its calls have no results."""
    last_call: int = -1
    abandoned: bool = False
    """It had not ended where the conversation was forked or rolled back to."""

    @property
    def state(self) -> TurnState:
        if self.end is not None:
            return self.end.state
        if self.abandoned:
            return "interrupted"
        begun = len(self.entries) > (self.prompt is not None)
        return "running" if begun else "waiting"

    @property
    def never_began(self) -> bool:
        """Its prompt was taken back while it waited."""
        return isinstance(self.end, FaultEntry) and self.end.never_began

    @property
    def is_over(self) -> bool:
        return self.end is not None or self.abandoned

    @property
    def open_tool_calls(self) -> tuple[ToolCallRequest, ...]:
        if self.is_over or self.unanswered is None:
            return ()
        return self.unanswered.tool_calls


class Turns:
    def __init__(self) -> None:
        self._turns: dict[str, Turn] = {}
        self.shown: list[Turn] = []
        """The turns that began and ended and that no clear has hidden, by number. The same
        list as long as it only grew at its end, another one once anything else happened to
        it: who has read some of it can tell whether to go on from there."""
        self._unfinished: dict[str, ModelInputEntry] = {}

    def get(self, turn_id: str | None) -> Turn | None:
        return None if turn_id is None else self._turns.get(turn_id)

    def unfinished(self) -> list[ModelInputEntry]:
        return list(self._unfinished.values())

    def abandon_unfinished(self) -> None:
        """Turns without an end are over: models do not see them, and they are not resumed."""
        for turn_id in self._unfinished:
            self._turns[turn_id].abandoned = True
        self._unfinished.clear()

    def add(self, entry: Entry) -> None:
        match entry:
            case ClearEntry():
                self.shown = []
            case ForkedEntry():
                self.abandon_unfinished()
            case ModelInputEntry(turn_id=str(turn_id)):
                turn = self._turn(turn_id, entry)
                turn.entries.append(entry)
                if turn.prompt is None:
                    turn.prompt = entry
                    if turn.end is None:
                        turn.number = entry.seq
                        self._unfinished[turn_id] = entry
            case ModelOutputEntry(turn_id=str(turn_id)):
                turn = self._turn(turn_id, entry)
                turn.entries.append(entry)
                turn.last_call = entry.call
                turn.unanswered = entry if entry.tool_calls else None
                if entry.ends_turn:
                    self._end(turn_id, turn, entry)
            case ToolResultsEntry(turn_id=str(turn_id)):
                turn = self._turn(turn_id, entry)
                turn.entries.append(entry)
                turn.unanswered = None
            case FaultEntry(turn_id=str(turn_id)):
                self._end(turn_id, self._turn(turn_id, entry), entry)
            case _:
                pass

    def _turn(self, turn_id: str, entry: Entry) -> Turn:
        turn = self._turns.get(turn_id)
        if turn is None:
            turn = self._turns[turn_id] = Turn(number=entry.seq)
        return turn

    def _end(self, turn_id: str, turn: Turn, end: ModelOutputEntry | FaultEntry) -> None:
        if turn.end is not None:
            return
        turn.end = end
        self._unfinished.pop(turn_id, None)
        if turn.never_began:
            return
        if not self.shown or self.shown[-1].number < turn.number:
            self.shown.append(turn)
        else:
            place = bisect_left(self.shown, turn.number, key=lambda shown: shown.number)
            self.shown = [*self.shown[:place], turn, *self.shown[place:]]
