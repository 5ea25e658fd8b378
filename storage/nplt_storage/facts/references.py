"""Entries that speak of other entries: do the numbers they name make sense?

A fact can only be about what was there before it. Asked both before an entry is
written and when one is read, so that whoever follows these numbers later can
rely on them: an entry that fails was made by nobody we know.
"""

from __future__ import annotations

from nplt_storage.facts.entries import (
    CompactionEntry,
    Entry,
    EpochEntry,
    ForkedEntry,
    QuarantineEntry,
    RollbackEntry,
)

_REFERRING = (RollbackEntry, EpochEntry, CompactionEntry, QuarantineEntry, ForkedEntry)


def wrong_reference(entry: Entry) -> str | None:
    """What is wrong with them, as a sentence. A draft has no number yet: what it
    names is then only compared with itself, and with the head by `rules`."""
    if not isinstance(entry, _REFERRING):
        return None
    match entry:
        case RollbackEntry():
            # 0: to before the first entry.
            wrong = _wrong(entry, entry.to_seq) if entry.to_seq else None
            return wrong or _wrong_state(entry)
        case EpochEntry():
            return _wrong_reach(entry)
        case CompactionEntry():
            if entry.from_seq > entry.through_seq:
                return f"a compaction from {entry.from_seq} through {entry.through_seq} is empty"
            return _wrong(entry, entry.from_seq) or _wrong(entry, entry.through_seq)
        case QuarantineEntry():
            return _wrong(entry, entry.target_seq)
        case ForkedEntry():
            return _wrong(entry, entry.at_seq)


def _wrong(entry: Entry, seq: int) -> str | None:
    if seq >= 1 and (entry.seq == 0 or seq < entry.seq):
        return None
    return f"a {entry.kind} names entry {seq}, which is not there before it"


def _wrong_reach(entry: EpochEntry) -> str | None:
    reach = (entry.omitted_through, entry.gist_through, entry.summary_through)
    if not 0 <= reach[0] <= reach[1] <= reach[2]:
        return f"an epoch shows turns less the older they are: not so through {reach}"
    return _wrong(entry, reach[2]) if reach[2] else None


def _wrong_state(entry: RollbackEntry) -> str | None:
    told = (entry.system_seq, entry.notebook_seq, entry.compaction_seq)
    landmarks = (entry.message_count, *told, *(seq for _, seq in entry.widget_seqs))
    if min(landmarks) < 0 or max(landmarks) > entry.to_seq:
        return f"entry {entry.to_seq} can't have been left with {landmarks} before it"
    through = 0
    for first, last in entry.hidden or ():
        if not through < first <= last <= entry.to_seq:
            return f"the hidden ranges {entry.hidden} are not in order below {entry.to_seq}"
        through = last
    return None
