"""What a checkpoint says: how a conversation stood, for when what is older is gone.

A backend that trims writes one first. From it and the entries after it the
conversation's row and history come out as if nothing were missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from nplt_storage.conversation.row_json import row_as_bytes, row_from_bytes
from nplt_storage.conversation.rows import ConversationRow, fold_all
from nplt_storage.facts.entries import CheckpointEntry, Entry
from nplt_storage.facts.json_values import JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    row: ConversationRow
    system_instruction: str | None = None
    notebook: str | None = None


def checkpoint_state(checkpoint: Checkpoint) -> JsonObject:
    state: JsonObject = {"row": orjson.loads(row_as_bytes(checkpoint.row))}
    if checkpoint.system_instruction is not None:
        state["system_instruction"] = checkpoint.system_instruction
    if checkpoint.notebook is not None:
        state["notebook"] = checkpoint.notebook
    return state


def read_checkpoint(entry: CheckpointEntry) -> Checkpoint | None:
    """`None` if it is not as this version writes it."""
    try:
        row = row_from_bytes(orjson.dumps(entry.state["row"]))
    except (KeyError, TypeError, ValueError):
        return None
    told = [entry.state.get(name) for name in ("system_instruction", "notebook")]
    instruction, notebook = (text if isinstance(text, str) else None for text in told)
    return Checkpoint(row=row, system_instruction=instruction, notebook=notebook)


def row_from_entries(entries: Sequence[Entry]) -> ConversationRow | None:
    """The row at the last of these, by way of the newest checkpoint among them."""
    for place in range(len(entries) - 1, -1, -1):
        entry = entries[place]
        checkpoint = read_checkpoint(entry) if isinstance(entry, CheckpointEntry) else None
        if checkpoint is not None:
            row = checkpoint.row
            return fold_all(row, (later for later in entries if later.seq > row.head_seq))
    return None
