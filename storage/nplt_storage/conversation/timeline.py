"""The entries of a conversation as they came, and which of them stand.

Grows at its end only. A rollback is an entry like any other; after it, what
stands is put together anew from what is held.
"""

from __future__ import annotations

from collections.abc import Iterable

from nplt_storage.conversation.checkpoints import row_from_entries
from nplt_storage.conversation.rollbacks import rollback_draft
from nplt_storage.conversation.rows import ConversationRow, fold_all, hidden_after
from nplt_storage.conversation.standing import Standing, is_in
from nplt_storage.conversation.windows import Held, what_came_before
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

    def add(self, entry: Entry) -> None:
        if entry.seq != self.head_seq + 1:
            raise BadEntry(f"entry {entry.seq} can't follow entry {self.head_seq}")
        self.held.entries.append(entry)
        self.head_seq = entry.seq
        if isinstance(entry, RollbackEntry):
            self._go_back(entry)
        else:
            self.standing.add(entry)

    def rollback_draft(self, to_seq: int) -> RollbackEntry:
        return rollback_draft(
            to_seq,
            held=self.held,
            hidden=self.hidden,
            standing=self.standing,
            before=self.before,
        )

    def _go_back(self, rollback: RollbackEntry) -> None:
        stands = not is_in(self.hidden, rollback.to_seq)
        self.hidden = hidden_after(self.hidden, rollback)
        kept = self.standing.through(rollback.to_seq) if stands else self.held.standing(self.hidden)
        self.standing = Standing(kept, self.hidden)
        first_seq = self.held.reach(self.hidden, self.head_seq)
        if first_seq != self.before.first_seq:
            # Someone who holds more than we do went back further than we can see.
            self.before = what_came_before(
                rollback,
                first_seq,
                spoken=len(self.standing.spoken),
                trimmed_through=self.before.trimmed_through,
            )


def _row_at_head(row: ConversationRow | None, held: list[Entry]) -> ConversationRow | None:
    if row is not None:
        known = row.head_seq
        return fold_all(row, (entry for entry in held if entry.seq > known))
    return row_from_entries(held) if held and held[0].seq > 1 else None
