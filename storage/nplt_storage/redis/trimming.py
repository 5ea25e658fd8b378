"""Trimming a conversation in Redis to its newest turns.

Turns can overlap, so a cut is made only where no turn lies on both sides of it. So sometimes
more turns remain than were requested, but never fewer and never a part of one. Turns hidden by a
rollback do not count, but are not split either.

A checkpoint holds the state at the cut. It is stored next to the stream with the seq of the last
removed entry, and is replaced in the same step as the cut.
"""

from __future__ import annotations

from collections.abc import Sequence

import orjson
from msgspec import Struct
from msgspec.structs import replace

from nplt_storage.active_entries import is_in
from nplt_storage.entries import (
    CheckpointEntry,
    Entry,
    ForkedEntry,
    LaterChangeEntry,
    LaterPromptEntry,
    RollbackEntry,
    ends_turn,
)
from nplt_storage.history import Ranges
from nplt_storage.redis.connection import Argument
from nplt_storage.redis.streams import message_id_of
from nplt_storage.rows import (
    Checkpoint,
    StateEntry,
    checkpoint_state,
    fold_all,
    hidden_after,
    state_seqs_of,
)
from nplt_storage.sent_before import sent_before


class _Span(Struct):
    first: int
    last: int
    end: int
    """The seq of the turn's last entry. `last` may be that of a rollback that left part of the
    turn."""
    is_ended: bool = False
    is_hidden: bool = False
    counts: bool = True
    is_later: bool = False
    """Its time has not come. Its prompt must not be trimmed."""


class TurnSpans:
    """The first and last entry of each turn in the stream."""

    def __init__(self) -> None:
        self._turns: dict[str, _Span] = {}
        self._hidden: Ranges = ()

    def add(self, entry: Entry) -> None:
        if isinstance(entry, RollbackEntry):
            self._roll_back(entry)
        elif isinstance(entry, ForkedEntry):
            for turn in self._turns.values():
                turn.is_ended = True
        elif entry.turn_id is not None:
            turn = self._turns.setdefault(entry.turn_id, _Span(entry.seq, entry.seq, entry.seq))
            turn.last = turn.end = entry.seq
            turn.is_ended = turn.is_ended or ends_turn(entry)
            if isinstance(entry, LaterPromptEntry):
                turn.is_later = True
            elif not isinstance(entry, LaterChangeEntry):
                turn.is_later = False
            elif entry.change == "cancelled":
                turn.is_later, turn.is_ended, turn.counts = False, True, False

    def first_to_keep(self, turns_max: int) -> int:
        """The seq of the first entry to keep, or 0 to keep all."""
        spans = sorted(self._turns.values(), key=lambda turn: turn.first, reverse=True)
        counted = 0
        for place, turn in enumerate(spans):
            counted += turn.is_ended and turn.counts
            older = spans[place + 1 :]
            may_begin = counted >= turns_max and not turn.is_hidden
            if may_begin and all(
                o.is_ended and not o.is_later and o.last < turn.first for o in older
            ):
                return turn.first if older else 0
        return 0

    def forget_before(self, seq: int) -> None:
        self._turns = {id_: turn for id_, turn in self._turns.items() if turn.first >= seq}

    def _roll_back(self, rollback: RollbackEntry) -> None:
        self._hidden = hidden_after(self._hidden, rollback)
        for turn in self._turns.values():
            begins, ends = is_in(self._hidden, turn.first), is_in(self._hidden, turn.end)
            turn.is_ended, turn.is_hidden, turn.counts = True, begins, not (begins or ends)
            # The remaining part of a turn must not be separated from the rollback.
            turn.last = rollback.seq if ends and not begins else max(turn.last, turn.end)


def checkpoint_after(
    before: Checkpoint, gone: Sequence[Entry], *, entry_id: str
) -> CheckpointEntry:
    """The checkpoint after these entries have been trimmed too."""
    last = gone[-1]
    row = replace(fold_all(before.row, gone), first_seq=last.seq + 1)
    by_seq = {
        entry.seq: entry
        for entry in (*before.state_entries, *gone)
        if isinstance(entry, StateEntry)
    }
    state_entries = tuple(by_seq[seq] for seq in state_seqs_of(row).values() if seq in by_seq)
    return CheckpointEntry(
        seq=last.seq,
        id=entry_id,
        timestamp=last.timestamp,
        state=checkpoint_state(Checkpoint(row=row, state_entries=state_entries)),
    )


def trimmed_prompts(gone: Sequence[Entry], *, hidden: Ranges) -> list[Argument]:
    """The message ids of trimmed prompts, each followed by its value in the `prompts` hash."""
    prompts: list[Argument] = []
    for place, entry in enumerate(gone):  # turns are trimmed as a whole, so the end of each is here
        prompt_id = message_id_of(entry)
        known = sent_before(gone[place:], hidden=hidden) if prompt_id else None
        if known is not None:
            prompts += prompt_id, orjson.dumps([known.seq, known.turn_id, known.state])
    return prompts
