"""How a draft becomes an entry: checked, numbered, with an id and a time.

Nothing has changed by it: the entry is added once it is on disk.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import TypeVar

from nplt_storage.conversation.rollbacks import NotInReach
from nplt_storage.conversation.rules import check_next
from nplt_storage.conversation.timeline import Timeline
from nplt_storage.errors import BadEntry
from nplt_storage.facts.checks import check_entry, check_metadata, check_time
from nplt_storage.facts.entries import Entry, RollbackEntry, ToolResultsEntry

_E = TypeVar("_E", bound=Entry)


def stamp(draft: _E, timeline: Timeline, *, id: str, timestamp: datetime) -> _E:  # noqa: A002
    check_metadata(draft.metadata)
    check_entry(draft)
    check_time(timestamp, "timestamp")
    if not id:
        raise BadEntry("an entry needs an id")
    turns = timeline.standing.turns
    check_next(draft, turns, timeline.head_seq)
    entry = replace(draft, seq=timeline.head_seq + 1, id=id, timestamp=timestamp)
    # What follows from the record is known better here than to who asks.
    if isinstance(entry, ToolResultsEntry):
        turn = turns.get(entry.turn_id)
        return replace(entry, call=turn.last_call if turn else entry.call)
    if isinstance(entry, RollbackEntry):
        known = _as_it_will_stand(entry, timeline)
        return replace(
            entry,
            message_count=known.message_count,
            preview=known.preview,
            system_seq=known.system_seq,
            notebook_seq=known.notebook_seq,
            compaction_seq=known.compaction_seq,
            widget_seqs=known.widget_seqs,
            hidden=known.hidden,
        )
    return entry


def _as_it_will_stand(entry: RollbackEntry, timeline: Timeline) -> RollbackEntry:
    try:
        return timeline.rollback_draft(entry.to_seq)
    except NotInReach:
        if entry.hidden is None:
            raise
        return entry  # drafted by who holds the whole record, and says all of it
