"""The list of conversations: one row each, made from the entries and nothing else.

`fold` is all there is to a row: the same function keeps it up to date while a
conversation grows and builds it anew from a file. The catalogue holds rows in
memory and can be thrown away at any time; only last-access times are its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from nplt_storage.entries import (
    Entry,
    FaultEntry,
    ModelInputEntry,
    ModelOutputEntry,
    ModelSwitchedEntry,
    RenamedEntry,
)

NEW_NAME = "new conversation"
NAME_CHARACTERS_MAX = 40
PREVIEW_CHARACTERS_MAX = 80

_LOOKED_AT_MAX = 1000
"""Characters of a message that are looked at: a name or a preview needs no more."""
_BLANKS = re.compile(r"[\s\x00-\x1f\x7f-\x9f]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationRow:
    session_id: str
    user: str
    name: str = NEW_NAME
    message_count: int = 0
    created_at: datetime
    updated_at: datetime
    last_accessed: datetime
    model: str | None = None
    preview: str = ""
    pinned: bool = False
    archived: bool = False
    damaged: bool = False
    head_seq: int = 0
    named: bool = False
    """Whether the name is settled: someone gave it, or the first prompt did."""
    unfinished: frozenset[str] = frozenset()
    """Turns that were prompted and have no end yet."""


def new_row(session_id: str, *, user: str, created_at: datetime) -> ConversationRow:
    return ConversationRow(
        session_id=session_id,
        user=user,
        created_at=created_at,
        updated_at=created_at,
        last_accessed=created_at,
    )


def fold(row: ConversationRow, entry: Entry) -> ConversationRow:
    name, named, model, preview = row.name, row.named, row.model, row.preview
    message_count = row.message_count
    match entry:
        case ModelInputEntry() | ModelOutputEntry():
            message_count += 1
            # An answer that only calls tools says nothing: the words before it stay.
            preview = preview_of(entry.content) or preview
            if not named and isinstance(entry, ModelInputEntry):
                name, named = name_from(entry.content), True
        case RenamedEntry():
            name, named = entry.name, True
        case ModelSwitchedEntry():
            model = entry.model
        case _:
            pass
    return replace(
        row,
        head_seq=entry.seq,
        updated_at=entry.timestamp,
        last_accessed=max(row.last_accessed, entry.timestamp),
        message_count=message_count,
        name=name,
        named=named,
        model=model,
        preview=preview,
        unfinished=_unfinished_after(entry, row.unfinished),
    )


def _unfinished_after(entry: Entry, before: frozenset[str]) -> frozenset[str]:
    match entry:
        case ModelInputEntry(turn_id=str(turn_id)):
            return before | {turn_id}
        case FaultEntry(turn_id=str(turn_id)):
            return before - {turn_id}
        case ModelOutputEntry(turn_id=str(turn_id)) if entry.ends_turn:
            return before - {turn_id}
        case _:
            return before


def fold_all(row: ConversationRow, entries: Iterable[Entry]) -> ConversationRow:
    for entry in entries:
        row = fold(row, entry)
    return row


def name_from(prompt: str) -> str:
    lines = prompt[:_LOOKED_AT_MAX].splitlines()
    line = next((line for line in map(_single_line, lines) if line), "")
    if len(line) <= NAME_CHARACTERS_MAX:
        return line or NEW_NAME
    cut = line[: NAME_CHARACTERS_MAX - 1]
    if line[NAME_CHARACTERS_MAX - 1] != " " and " " in cut:
        cut = cut[: cut.rindex(" ")]
    return cut.rstrip() + "…"


def preview_of(content: str) -> str:
    return _single_line(content[:_LOOKED_AT_MAX])[:PREVIEW_CHARACTERS_MAX]


class Catalog:
    def __init__(self, rows: Iterable[ConversationRow] = ()) -> None:
        self._rows = {row.session_id: row for row in rows}

    def __contains__(self, session_id: str) -> bool:
        return session_id in self._rows

    def get(self, session_id: str) -> ConversationRow | None:
        return self._rows.get(session_id)

    def count(self, user: str) -> int:
        return sum(row.user == user for row in self._rows.values())

    def of_user(self, user: str) -> list[ConversationRow]:
        """Pinned ones on top, then the newest first."""
        rows = [row for row in self._rows.values() if row.user == user]
        return sorted(rows, key=lambda row: (row.pinned, row.updated_at), reverse=True)

    def put(self, row: ConversationRow) -> None:
        self._rows[row.session_id] = row

    def add(self, session_id: str, entry: Entry) -> None:
        row = self._rows.get(session_id)
        if row is not None:
            self._rows[session_id] = fold(row, entry)

    def touch(self, session_id: str, at: datetime) -> None:
        row = self._rows.get(session_id)
        if row is not None and at > row.last_accessed:
            self._rows[session_id] = replace(row, last_accessed=at)

    def mark_damaged(self, session_id: str) -> None:
        row = self._rows.get(session_id)
        if row is not None:
            self._rows[session_id] = replace(row, damaged=True)

    def remove(self, session_id: str) -> None:
        self._rows.pop(session_id, None)


def _single_line(text: str) -> str:
    line = " ".join(text.split())
    return line if line.isprintable() else _BLANKS.sub(" ", line).strip()
