"""The turns of one conversation: who waits, who runs, who ended and how.

Fed entry by entry, each in constant time; nothing is ever scanned again. It
takes whatever a file holds (a turn without a prompt, results nobody asked for)
and makes the best of it: refusing is `rules`' business, and only for what is new.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from nplt_storage.facts.entries import (
    ClearEntry,
    Entry,
    FaultEntry,
    ForkedEntry,
    ModelInputEntry,
    ModelOutputEntry,
    ToolResultsEntry,
)
from nplt_storage.facts.tool_calls import ToolCallRequest

TurnState: TypeAlias = Literal["waiting", "running", "completed", "interrupted", "failed"]
ContextEntry: TypeAlias = ModelInputEntry | ModelOutputEntry | ToolResultsEntry


@dataclass(slots=True, kw_only=True)
class Turn:
    prompt: ModelInputEntry | None = None
    entries: list[ContextEntry] = field(default_factory=list)
    end: ModelOutputEntry | FaultEntry | None = None
    unanswered: ModelOutputEntry | None = None
    """The latest output, while its calls have no results."""
    last_call: int = -1
    abandoned: bool = False
    """It had not ended where the conversation was forked or rolled back to."""
    place: int = 0
    """Its place among the ended turns, and the first of them it could see."""
    sees_from: int = 0

    @property
    def state(self) -> TurnState:
        if self.end is not None:
            return self.end.state
        if self.abandoned:
            return "interrupted"
        begun = len(self.entries) > (self.prompt is not None)
        return "running" if begun else "waiting"

    @property
    def is_over(self) -> bool:
        return self.end is not None or self.abandoned

    @property
    def open_calls(self) -> tuple[ToolCallRequest, ...]:
        if self.is_over or self.unanswered is None:
            return ()
        return self.unanswered.tool_calls


class Turns:
    def __init__(self) -> None:
        self._turns: dict[str, Turn] = {}
        self._ended: list[Turn] = []
        self._shown_from = 0
        self._unfinished: dict[str, ModelInputEntry] = {}

    def get(self, turn_id: str | None) -> Turn | None:
        return None if turn_id is None else self._turns.get(turn_id)

    def unfinished(self) -> list[ModelInputEntry]:
        return list(self._unfinished.values())

    def shown_to(self, turn_id: str, turns_max: int | None = None) -> list[Turn]:
        """The ended turns a model sees when it answers this one, the newest of them."""
        turn = self._turns.get(turn_id)
        first, until = self._shown_from, len(self._ended)
        if turn is not None and turn.end is not None:
            first, until = turn.sees_from, turn.place
        if turns_max is not None:
            first = max(first, until - turns_max)
        return self._ended[first:until]

    def recent(self, turns_max: int) -> list[Turn]:
        """The newest ended turns that a clear has not hidden, oldest first."""
        first = max(self._shown_from, len(self._ended) - max(turns_max, 0))
        return self._ended[first:]

    def abandon_unfinished(self) -> None:
        """They are over without an end: no model sees them, nobody takes them up."""
        for turn_id in self._unfinished:
            self._turns[turn_id].abandoned = True
        self._unfinished.clear()

    def add(self, entry: Entry) -> None:
        match entry:
            case ClearEntry():
                self._shown_from = len(self._ended)
            case ForkedEntry():
                self.abandon_unfinished()
            case ModelInputEntry(turn_id=str(turn_id)):
                turn = self._turn(turn_id)
                turn.entries.append(entry)
                if turn.prompt is None:
                    turn.prompt = entry
                    if turn.end is None:
                        self._unfinished[turn_id] = entry
            case ModelOutputEntry(turn_id=str(turn_id)):
                turn = self._turn(turn_id)
                turn.entries.append(entry)
                turn.last_call = entry.call
                turn.unanswered = entry if entry.tool_calls else None
                if entry.ends_turn:
                    self._end(turn_id, entry)
            case ToolResultsEntry(turn_id=str(turn_id)):
                turn = self._turn(turn_id)
                turn.entries.append(entry)
                turn.unanswered = None
            case FaultEntry(turn_id=str(turn_id)):
                self._end(turn_id, entry)
            case _:
                pass

    def _turn(self, turn_id: str) -> Turn:
        return self._turns.setdefault(turn_id, Turn())

    def _end(self, turn_id: str, end: ModelOutputEntry | FaultEntry) -> None:
        turn = self._turn(turn_id)
        if turn.end is None:
            turn.end = end
            turn.place = len(self._ended)
            turn.sees_from = self._shown_from
            self._ended.append(turn)
            self._unfinished.pop(turn_id, None)
