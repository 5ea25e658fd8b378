"""Joins the stored pieces of a running answer, and decides how long they are valid.

A store keeps the text of a running call piece by piece (`Record.journal_delta`), in case the server
dies. Pieces come in order and name their turn and call. Those of an earlier call are dropped once a
later one begins, because its entry is in the record by then. An entry that holds the whole call, or
ends its turn, replaces the pieces.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias

from msgspec import Struct

from nplt_storage.entries import Entry, FaultEntry, ModelOutputEntry
from nplt_storage.rows import ConversationRow

DeltaKind: TypeAlias = Literal["text", "reasoning"]
Piece: TypeAlias = tuple[str, int, DeltaKind, str]
"""The turn, the call, the kind and the text."""


class PartialAnswer(Struct, frozen=True, kw_only=True):
    """The text of a call whose server died: users saw it, and it has no entry yet."""

    turn_id: str
    call: int
    text: str = ""
    reasoning: str = ""


def join_pieces(pieces: Iterable[Piece]) -> PartialAnswer | None:
    """The text of the last call among the pieces; `None` if there are no pieces."""
    last: tuple[str, int] | None = None
    parts: dict[str, list[str]] = {}
    for turn_id, call, kind, text in pieces:
        if last != (turn_id, call):
            last = (turn_id, call)
            parts = {"text": [], "reasoning": []}
        parts[kind].append(text)
    if last is None:
        return None
    return PartialAnswer(
        turn_id=last[0],
        call=last[1],
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


def unless_stored(
    partial: PartialAnswer | None, row: ConversationRow, entries: Iterable[Entry]
) -> PartialAnswer | None:
    """`partial`, or `None` if its call has an entry or its turn has ended."""
    if partial is None or partial.turn_id not in dict(row.unfinished):
        return None
    if any(outdates(entry, partial.turn_id, partial.call) for entry in entries):
        return None
    return partial
