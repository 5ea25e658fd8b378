"""The entries of a conversation as they came, and which of them stand.

Grows at its end only. A rollback is an entry like any other; after it, what
stands is put together anew from what is held. Who holds more may have written
one that leads to where we can't follow: from there on only what comes after it
is known, and what it says of itself.
"""

from __future__ import annotations

from collections.abc import Iterable

from nplt_storage.conversation.checkpoints import row_from_entries
from nplt_storage.conversation.landmarks import landmarks_of
from nplt_storage.conversation.rollbacks import NotInReach, rollback_draft
from nplt_storage.conversation.rows import ConversationRow, fold_all, hidden_after
from nplt_storage.conversation.standing import Standing, is_in
from nplt_storage.conversation.windows import Before, Held, what_came_before
from nplt_storage.errors import BadEntry
from nplt_storage.facts.entries import Entry, RollbackEntry


class Timeline:
    def __init__(self, entries: Iterable[Entry], row: ConversationRow | None) -> None:
        self.held = Held(entries)
        self.row = _row_at_head(row, self.held.entries)
        """As it was at the beginning; `None` if the entries tell everything."""
        self.head_seq = self.held.last_seq if self.row is None else self.row.head_seq
        self.hidden = self.held.hidden() if self.row is None else self.row.hidden
        self.standing = Standing(self.held.standing(self.hidden), self.hidden)
        self.before = what_came_before(
            self.row,
            self.held.reach(self.hidden, self.head_seq),
            spoken=len(self.standing.spoken),
            trimmed_through=0 if self.row is None else self.row.first_seq - 1,
        )
        self.lost_at: int | None = None
        """Where a rollback led that could not be followed."""

    def add(self, entry: Entry) -> None:
        if entry.seq != self.head_seq + 1:
            raise BadEntry(f"entry {entry.seq} can't follow entry {self.head_seq}")
        if isinstance(entry, RollbackEntry) and not self._can_follow(entry):
            self._lose(entry)
        else:
            self._follow(entry)
        self.head_seq = entry.seq

    def rollback_draft(self, to_seq: int) -> RollbackEntry:
        return rollback_draft(
            to_seq,
            held=self.held,
            hidden=self.hidden,
            standing=self.standing,
            before=self.before,
        )

    def _follow(self, entry: Entry) -> None:
        self.held.entries.append(entry)
        if isinstance(entry, RollbackEntry):
            self._go_back(entry)
        else:
            self.standing.add(entry)

    def _go_back(self, rollback: RollbackEntry) -> None:
        stands = not is_in(self.hidden, rollback.to_seq)
        self.hidden = hidden_after(self.hidden, rollback)
        kept = self.standing.through(rollback.to_seq) if stands else self.held.standing(self.hidden)
        self.standing = Standing(kept, self.hidden)

    def _can_follow(self, rollback: RollbackEntry) -> bool:
        """Who could have written it holds all that stands then, from `first_seq` on."""
        try:
            self.rollback_draft(rollback.to_seq)
        except (NotInReach, BadEntry):
            return False
        return True

    def _lose(self, rollback: RollbackEntry) -> None:
        """Begins again at the rollback: what else is held may stand or not, but there
        would be gaps between."""
        self.lost_at = rollback.to_seq
        self.hidden = hidden_after(self.hidden, rollback)
        landmarks = landmarks_of(rollback)
        told = set(landmarks.values())
        kept = [entry for entry in self.held.entries if entry.seq in told]
        self.held = Held([*kept, rollback])
        self.standing = Standing(kept)
        self.before = Before(
            first_seq=rollback.to_seq + 1,
            trimmed_through=self.before.trimmed_through,
            message_count=rollback.message_count,
            landmarks=landmarks,
        )


def _row_at_head(row: ConversationRow | None, held: list[Entry]) -> ConversationRow | None:
    if row is not None:
        known = row.head_seq
        return fold_all(row, (entry for entry in held if entry.seq > known))
    return row_from_entries(held) if held and held[0].seq > 1 else None
