"""Where a conversation may be cut so that only its newest turns are left, all whole.

Turns can overlap: the next prompt is often there before an answer is. A cut is
only made where no turn lies on both sides of it, so sometimes more is kept than
was asked for, never less and never a part. Turns that a rollback took back do
not count; they go with what stood around them.

What is cut off lives on in a checkpoint: the state at the cut. It is no entry of
the stream, since only the writer may give out numbers; it stands beside it, has
the number of the last entry that went, and changes in the same step as the cut.
Whoever reads it and then the stream gets the conversation as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import orjson

from nplt_storage.conversation.checkpoints import Checkpoint, checkpoint_state
from nplt_storage.conversation.landmarks import Told, landmarks_of
from nplt_storage.conversation.rows import fold_all
from nplt_storage.conversation.sent_before import sent_before
from nplt_storage.conversation.standing import Ranges
from nplt_storage.facts.entries import (
    CheckpointEntry,
    Entry,
    FaultEntry,
    ForkedEntry,
    ModelOutputEntry,
    RollbackEntry,
)
from nplt_storage.redis_streams.connection import Argument
from nplt_storage.redis_streams.keys import name_of


@dataclass(slots=True)
class _Span:
    first: int
    last: int
    is_ended: bool = False
    counts: bool = True


class TurnSpans:
    """Where the turns of the kept entries begin and end."""

    def __init__(self) -> None:
        self._turns: dict[str, _Span] = {}

    def add(self, entry: Entry) -> None:
        if isinstance(entry, RollbackEntry):
            self._roll_back(entry)
        elif isinstance(entry, ForkedEntry):
            for turn in self._turns.values():
                turn.is_ended = True
        elif entry.turn_id is not None:
            turn = self._turns.setdefault(entry.turn_id, _Span(entry.seq, entry.seq))
            turn.last = entry.seq
            turn.is_ended = turn.is_ended or ends_turn(entry)

    def first_to_keep(self, max_turns: int) -> int:
        """The number of the first entry that stays; 0 if all do."""
        spans = sorted(self._turns.values(), key=lambda turn: turn.first, reverse=True)
        kept = 0
        for place, turn in enumerate(spans):
            kept += turn.is_ended and turn.counts
            older = spans[place + 1 :]
            if kept >= max_turns and all(o.is_ended and o.last < turn.first for o in older):
                return turn.first if older else 0
        return 0

    def forget_before(self, seq: int) -> None:
        self._turns = {id_: turn for id_, turn in self._turns.items() if turn.first >= seq}

    def _roll_back(self, rollback: RollbackEntry) -> None:
        self._turns = {id_: t for id_, t in self._turns.items() if t.first <= rollback.to_seq}
        for turn in self._turns.values():
            if turn.last > rollback.to_seq:  # what is left of it must stay with the rollback
                turn.last, turn.is_ended, turn.counts = rollback.seq, True, False


def ends_turn(entry: Entry) -> bool:
    if isinstance(entry, ModelOutputEntry):
        return entry.ends_turn
    return isinstance(entry, FaultEntry)


def checkpoint_after(
    before: Checkpoint, gone: Sequence[Entry], *, entry_id: str
) -> CheckpointEntry:
    """The state once these entries are gone too."""
    last = gone[-1]
    row = replace(fold_all(before.row, gone), first_seq=last.seq + 1)
    there = {entry.seq: entry for entry in (*before.told, *gone) if isinstance(entry, Told)}
    told = tuple(there[seq] for seq in landmarks_of(row).values() if seq in there)
    return CheckpointEntry(
        seq=last.seq,
        id=entry_id,
        timestamp=last.timestamp,
        state=checkpoint_state(Checkpoint(row=row, told=told)),
    )


def what_is_left(gone: Sequence[Entry], *, hidden: Ranges) -> list[Argument]:
    """Names and what stays known, of the prompts among entries that are trimmed."""
    left: list[Argument] = []
    for place, entry in enumerate(gone):  # a turn is trimmed whole: its end is among them
        name = name_of(entry)
        known = sent_before(gone[place:], hidden=hidden) if name else None
        if known is not None:
            left += name, orjson.dumps([known.seq, known.turn_id, known.state])
    return left
