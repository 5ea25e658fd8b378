"""A conversation held in part: its newest entries, and what is known of the rest.

A long conversation is opened at its end. What is held then is whatever stands
from some entry on, perhaps without what a rollback hid, and here and there an
older entry that still matters: the instruction, the notebook, a widget's state.
What came before is known by its row in lists, or by a checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from nplt_storage.conversation.landmarks import Landmark, landmarks_of
from nplt_storage.conversation.rows import ConversationRow
from nplt_storage.conversation.standing import EntriesSoFar, Ranges, is_in, place_after
from nplt_storage.errors import BadEntry
from nplt_storage.facts.entries import Entry, RollbackEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """What came before the entries that are held."""

    first_seq: int = 1
    """Everything that stands from here on is held."""
    trimmed_through: int = 0
    """Entries up to here are no longer kept anywhere."""
    message_count: int = 0
    landmarks: Mapping[Landmark, int | None] = field(default_factory=dict)
    """Which entries told what held when `first_seq` came; `None`: nobody knows."""
    is_known: bool = True
    """Whether that is all that had been told."""

    def told_at(self, landmark: Landmark) -> int | None:
        """0: nowhere, `None`: nobody knows."""
        return self.landmarks.get(landmark, 0 if self.is_known else None)


def what_came_before(
    known: ConversationRow | None,
    first_seq: int,
    *,
    spoken: int,
    trimmed_through: int = 0,
) -> Before:
    """From what is known of the whole, and what is held: everything from `first_seq`
    on, with so many messages in it."""
    if first_seq == 1:
        return Before()
    if known is None:
        return Before(first_seq=first_seq, is_known=False)
    # Where the first that is held is a checkpoint, it has the number of the last
    # entry that is gone: that one came before, too.
    held_from = max(first_seq, trimmed_through + 1)
    return Before(
        first_seq=first_seq,
        trimmed_through=trimmed_through,
        message_count=max(0, known.message_count - spoken),
        landmarks={
            landmark: seq if seq < held_from else None
            for landmark, seq in landmarks_of(known).items()
        },
    )


class Held:
    """The entries that are held, in order, found by number."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.entries = list(entries)
        last = 0
        for entry in self.entries:
            if entry.seq <= last:
                raise BadEntry(f"entry {entry.seq} can't follow entry {last}")
            last = entry.seq

    @property
    def last_seq(self) -> int:
        return self.entries[-1].seq if self.entries else 0

    def at(self, seq: int) -> Entry | None:
        place = place_after(self.entries, seq) - 1
        found = self.entries[place] if place >= 0 else None
        return found if found is not None and found.seq == seq else None

    def after(self, seq: int, head_seq: int) -> list[Entry] | None:
        """All of them up to the head, or nothing at all if one is missing."""
        found = self.entries[place_after(self.entries, seq) :]
        return found if len(found) == max(0, head_seq - max(seq, 0)) else None

    def so_far(self) -> EntriesSoFar:
        return EntriesSoFar(self.entries)

    def standing(self, hidden: Ranges) -> list[Entry]:
        if not hidden:
            return list(self.entries)
        return [entry for entry in self.entries if not is_in(hidden, entry.seq)]

    def hidden(self) -> Ranges:
        """What does not stand at the last of them: follows the way back from there,
        so that each rollback on it is looked at once and those off it not at all."""
        ranges: list[tuple[int, int]] = []
        place = len(self.entries) - 1
        while place >= 0:
            entry = self.entries[place]
            if isinstance(entry, RollbackEntry):
                ranges.append((entry.to_seq + 1, entry.seq))
                place = place_after(self.entries, entry.to_seq) - 1
            else:
                place -= 1
        return tuple(reversed(ranges))

    def reach(self, hidden: Ranges, head_seq: int) -> int:
        """From which number on everything that stands is here."""
        if self.entries and self.last_seq == head_seq:
            first = self.entries[0].seq
            if first + len(self.entries) == head_seq + 1 and not (hidden and first > 1):
                return first  # nothing is missing between them
        due = head_seq
        ranges = list(hidden)
        for entry in reversed(self.entries):
            due = _skip_hidden(due, ranges)
            if entry.seq < due:
                break
            due = min(due, entry.seq - 1)
        return _skip_hidden(due, ranges) + 1


def _skip_hidden(seq: int, ranges: list[tuple[int, int]]) -> int:
    """The next number down that stands; ranges above it are dropped on the way."""
    while ranges and seq <= ranges[-1][1]:
        seq = min(seq, ranges.pop()[0] - 1)
    return seq
