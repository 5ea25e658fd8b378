"""What a checkpoint says: how a conversation stood, for when what is older is gone.

A backend that trims writes one first. From it and the entries after it the
conversation's row and history come out as if nothing were missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import orjson

from nplt_storage.conversation.landmarks import Told
from nplt_storage.conversation.row_json import row_as_bytes, row_from_bytes
from nplt_storage.conversation.rows import ConversationRow, fold_all
from nplt_storage.facts.entries import (
    CheckpointEntry,
    ClearEntry,
    CompactionEntry,
    Entry,
    NotebookEntry,
    SystemInstructionEntry,
    WidgetEntry,
)
from nplt_storage.facts.json_values import JsonObject
from nplt_storage.facts.shapes import Shape, WrongShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    row: ConversationRow
    told: tuple[Told, ...] = ()
    """What holds there, each with the number it was told at; the rest of them is
    not kept."""


def checkpoint_state(checkpoint: Checkpoint) -> JsonObject:
    state: JsonObject = {"row": orjson.loads(row_as_bytes(checkpoint.row))}
    widgets: JsonObject = {}
    for entry in checkpoint.told:
        match entry:
            case SystemInstructionEntry() | NotebookEntry():
                state[entry.kind] = entry.content
            case CompactionEntry():
                span = {"from_seq": entry.from_seq, "through_seq": entry.through_seq}
                state["compaction"] = {"content": entry.content, **span}
            case WidgetEntry():
                widgets[entry.widget] = dict(entry.state)
            case ClearEntry():
                pass  # its number stands in the row, and there is no more to it
    if widgets:
        state["widgets"] = widgets
    return state


def read_checkpoint(entry: CheckpointEntry) -> Checkpoint | None:
    """`None` if it is not as this version writes it."""
    try:
        row = row_from_bytes(orjson.dumps(entry.state["row"]))
        return Checkpoint(row=row, told=tuple(_told(Shape(entry.state), row)))
    except (KeyError, TypeError, ValueError, WrongShape):
        return None


def _told(state: Shape, row: ConversationRow) -> Iterator[Told]:
    instruction = state.text_or_none(SystemInstructionEntry.kind)
    if instruction is not None:
        yield SystemInstructionEntry(seq=row.system_seq, content=instruction)
    notebook = state.text_or_none(NotebookEntry.kind)
    if notebook is not None:
        yield NotebookEntry(seq=row.notebook_seq, content=notebook)
    compaction = state.object_or_none("compaction")
    if compaction is not None:
        yield _compaction(Shape(compaction), row.compaction_seq)
    widgets = Shape(state.object_or_none("widgets") or {})
    for name, seq in row.widget_seqs:
        if (widget := widgets.object_or_none(name)) is not None:
            yield WidgetEntry(seq=seq, widget=name, state=widget)


def _compaction(shape: Shape, seq: int) -> CompactionEntry:
    return CompactionEntry(
        seq=seq,
        content=shape.text("content"),
        from_seq=shape.integer("from_seq"),
        through_seq=shape.integer("through_seq"),
    )


def row_from_entries(entries: Sequence[Entry]) -> ConversationRow | None:
    """The row at the last of these, by way of the newest checkpoint among them."""
    for place in range(len(entries) - 1, -1, -1):
        entry = entries[place]
        checkpoint = read_checkpoint(entry) if isinstance(entry, CheckpointEntry) else None
        if checkpoint is not None:
            row = checkpoint.row
            return fold_all(row, (later for later in entries if later.seq > row.head_seq))
    return None
