"""Which calls have no results, and which turns have no end.

A record is never judged by the rules for what is new: it happened. But a call
without a result is something a model will stumble over, and a prompt without an
end would be taken up again by the next start; whoever looks after a file should
know of both. Fed entry by entry.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from nplt_storage.facts.entries import (
    Entry,
    FaultEntry,
    ForkedEntry,
    ModelInputEntry,
    ModelOutputEntry,
    RollbackEntry,
    ToolResultsEntry,
)


@dataclass(slots=True)
class Pairing:
    unfinished: dict[str, int] = field(default_factory=dict)
    """Turns that were prompted and have not ended, each with its prompt's number."""
    waiting: dict[tuple[str, int], ModelOutputEntry] = field(default_factory=dict)
    """Outputs whose calls have no results, by turn and call."""
    _latest: dict[str, int] = field(default_factory=dict)
    """The latest output of each turn that has not ended."""

    def add(self, entry: Entry) -> None:
        match entry:
            case ModelInputEntry(turn_id=str(turn_id)):
                self.unfinished[turn_id] = entry.seq
            case ModelOutputEntry(turn_id=str(turn_id)):
                if entry.ends_turn:
                    # Calls of an output that was cut short were never run.
                    self._end(turn_id)
                else:
                    self.waiting[turn_id, entry.call] = entry
                    self._latest[turn_id] = entry.call
            case ToolResultsEntry(turn_id=str(turn_id)):
                asked = self.waiting.get((turn_id, entry.call))
                if asked is not None and _answers(entry, asked):
                    del self.waiting[turn_id, entry.call]
            case FaultEntry(turn_id=str(turn_id)):
                self._end(turn_id)
            case ForkedEntry():
                self._drop_unfinished()
            case RollbackEntry():
                self._drop_unfinished()
                self._keep_waiting(lambda asked: asked.seq <= entry.to_seq)
            case _:
                pass

    def unpaired(self) -> list[ModelOutputEntry]:
        """Those that get no results any more: their turn went on, or ended, without."""
        return [
            asked
            for (turn_id, call), asked in self.waiting.items()
            if self._latest.get(turn_id) != call
        ]

    def _end(self, turn_id: str) -> None:
        self.unfinished.pop(turn_id, None)
        self._latest.pop(turn_id, None)

    def _drop_unfinished(self) -> None:
        """Turns that had not ended here are not taken up again."""
        self._keep_waiting(lambda asked: asked.turn_id not in self._latest)
        self.unfinished.clear()
        self._latest.clear()

    def _keep_waiting(self, is_kept: Callable[[ModelOutputEntry], bool]) -> None:
        self.waiting = {key: asked for key, asked in self.waiting.items() if is_kept(asked)}


def _answers(results: ToolResultsEntry, asked: ModelOutputEntry) -> bool:
    given = [result.tool_call_id for result in results.results]
    return given == [call.tool_call_id for call in asked.tool_calls]
