"""What a running call has said, put together again from its pieces.

Pieces come in order and name their turn and call; those of an earlier call are
of no interest once a later one speaks, for its entry is in the record by then.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias

from nplt_storage.conversation.rows import ConversationRow
from nplt_storage.facts.entries import Entry, FaultEntry, ModelOutputEntry
from nplt_storage.store import SaidSoFar

Piece: TypeAlias = tuple[str, int, Literal["text", "reasoning"], str]
"""Turn, call, kind, text."""


def joined(pieces: Iterable[Piece]) -> SaidSoFar | None:
    said: tuple[str, int] | None = None
    parts: dict[str, list[str]] = {}
    for turn_id, call, kind, text in pieces:
        if said != (turn_id, call):
            said = (turn_id, call)
            parts = {"text": [], "reasoning": []}
        parts[kind].append(text)
    if said is None:
        return None
    return SaidSoFar(
        turn_id=said[0],
        call=said[1],
        text="".join(parts["text"]),
        reasoning="".join(parts["reasoning"]),
    )


def outdates(entry: Entry, turn_id: str, call: int) -> bool:
    """Whether this entry holds that call's whole answer, or ends its turn."""
    if entry.turn_id != turn_id:
        return False
    if isinstance(entry, ModelOutputEntry):
        return entry.call >= call or entry.ends_turn
    return isinstance(entry, FaultEntry)


def not_yet_an_entry(
    said: SaidSoFar | None, row: ConversationRow, entries: Iterable[Entry]
) -> SaidSoFar | None:
    """`said`, unless the record knows better: that call has an entry, or its turn an end."""
    if said is None or said.turn_id not in dict(row.unfinished):
        return None
    if any(outdates(entry, said.turn_id, said.call) for entry in entries):
        return None
    return said
