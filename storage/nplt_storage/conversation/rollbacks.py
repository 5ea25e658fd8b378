"""Where a rollback leads: the state it goes back to, found from what stands now.

From the target one goes back entry by entry, through earlier rollbacks, until
something is met that stands now as well. What stood there is what still stands
up to that point, and what was met on the way. So taking back the last few turns
costs those few, and taking back a rollback what it had hidden.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeAlias

from nplt_storage.conversation.landmarks import (
    COMPACTION,
    INSTRUCTION,
    NOTEBOOK,
    Landmark,
    Told,
    landmark_of,
    marks,
)
from nplt_storage.conversation.rows import preview_of
from nplt_storage.conversation.standing import Ranges, Standing, is_in, place_after
from nplt_storage.conversation.windows import Before, Held
from nplt_storage.errors import BadEntry, StorageError
from nplt_storage.facts.entries import Entry, ModelInputEntry, ModelOutputEntry, RollbackEntry

_Message: TypeAlias = ModelInputEntry | ModelOutputEntry


class NotInReach(StorageError):
    """The answer lies before what is held: ask again with the whole record."""

    def __init__(self, seq: int) -> None:
        super().__init__(f"entry {seq} lies too far back: not all that followed it is held here")
        self.seq = seq


@dataclass(slots=True)
class _Way:
    """From a target back to what stands now."""

    joins_at: int
    """Up to here the same stands now and there; 0: nothing does."""
    met: list[Entry] = field(default_factory=list)
    """What else stood there, in order."""
    hidden: list[tuple[int, int]] = field(default_factory=list)
    """And what did not, between these."""


def rollback_draft(
    to_seq: int, *, held: Held, hidden: Ranges, standing: Standing, before: Before
) -> RollbackEntry:
    """`NotInReach` if what is held does not tell; anything else is `rules`' business."""
    if before.trimmed_through and to_seq <= before.trimmed_through:
        raise BadEntry(f"entry {to_seq} is no longer kept")
    way = _way_back(to_seq, held, hidden)
    if way.joins_at < before.first_seq - 1:
        raise NotInReach(to_seq)
    words = place_after(standing.spoken, way.joins_at)
    messages = [entry for entry in way.met if isinstance(entry, _Message)]
    known = tuple(range_ for range_ in hidden if range_[1] <= way.joins_at)
    return RollbackEntry(
        to_seq=to_seq,
        message_count=before.message_count + words + len(messages),
        preview=_last_words(
            chain(reversed(messages), _backward(standing.spoken, words)), to_seq, before
        ),
        **marks(_landmarks(way, standing, before)),
        hidden=(*known, *way.hidden) if is_in(hidden, to_seq) else None,
    )


def _way_back(to_seq: int, held: Held, hidden: Ranges) -> _Way:
    way = _Way(to_seq)
    while way.joins_at > 0 and is_in(hidden, way.joins_at):
        entry = held.at(way.joins_at)
        if entry is None:
            raise NotInReach(to_seq)
        if isinstance(entry, RollbackEntry):
            way.hidden.append((entry.to_seq + 1, entry.seq))
            way.joins_at = entry.to_seq
        else:
            way.met.append(entry)
            way.joins_at -= 1
    way.met.reverse()
    way.hidden.reverse()
    return way


def _backward(spoken: Sequence[_Message], length: int) -> Iterator[_Message]:
    return (spoken[place] for place in range(length - 1, -1, -1))


def _last_words(newest_first: Iterable[_Message], to_seq: int, before: Before) -> str:
    for entry in newest_first:
        if entry.seq < before.first_seq:
            break  # others may have followed it that are not held
        if preview := preview_of(entry.content):
            return preview
    if before.message_count:
        raise NotInReach(to_seq)
    return ""


def _landmarks(way: _Way, standing: Standing, before: Before) -> dict[Landmark, int]:
    """What held there, and where it was told."""
    met = {landmark_of(entry): entry.seq for entry in way.met if isinstance(entry, Told)}
    asked = (INSTRUCTION, NOTEBOOK, COMPACTION, *before.landmarks, *standing.told)
    return {landmark: _latest(landmark, way, standing, before) for landmark in asked} | met


def _latest(landmark: Landmark, way: _Way, standing: Standing, before: Before) -> int:
    told = standing.told.get(landmark, ())
    place = place_after(told, way.joins_at)
    if place and told[place - 1].seq >= before.first_seq:
        return told[place - 1].seq
    earlier = before.told_at(landmark)
    if earlier is None:
        raise NotInReach(way.joins_at)
    return earlier
