"""What stands in for entries a store has trimmed, where every number needs an entry.

A store that trims keeps a checkpoint: how the conversation stood there. Moved to
a store that does not, the facts in it become entries again (the instruction, the
notebook and the widgets' states at their own numbers, because rows point at them),
and every other number a remark that says why nothing is there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from nplt_storage.conversation.checkpoints import Checkpoint, read_checkpoint
from nplt_storage.errors import BadEntry
from nplt_storage.facts.entries import (
    ArchivedEntry,
    CheckpointEntry,
    DebugEntry,
    Entry,
    ModelSwitchedEntry,
    PinnedEntry,
    RenamedEntry,
)


def stand_ins(first: Entry) -> list[Entry]:
    """From 1 up to the checkpoint `first`, which they replace."""
    checkpoint = read_checkpoint(first) if isinstance(first, CheckpointEntry) else None
    if checkpoint is None:
        raise BadEntry(f"it begins with entry {first.seq}, and nothing says what was before")
    at_place = {entry.seq: entry for entry in checkpoint.told}
    anywhere = _anywhere(checkpoint)
    entries: list[Entry] = []
    for seq in range(1, first.seq + 1):
        draft = at_place.get(seq) or next(anywhere, None) or _nothing()
        entry_id = f"{first.id}-{seq}"  # the same every time, so that copies can be compared
        entries.append(replace(draft, seq=seq, id=entry_id, timestamp=first.timestamp))
    return entries


def _anywhere(checkpoint: Checkpoint) -> Iterator[Entry]:
    row = checkpoint.row
    if row.named:
        yield RenamedEntry(name=row.name)
    if row.model is not None:
        yield ModelSwitchedEntry(model=row.model)
    if row.pinned:
        yield PinnedEntry(pinned=True)
    if row.archived:
        yield ArchivedEntry(archived=True)
    if row.billed:
        yield CheckpointEntry(state={"billed": [list(model) for model in row.billed]})


def _nothing() -> DebugEntry:
    return DebugEntry(category="trimmed", content="this entry was trimmed before it was moved here")
