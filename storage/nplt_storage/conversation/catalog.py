"""Rows held in memory, for a store that keeps everything there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from nplt_storage.conversation.rows import ConversationRow, fold
from nplt_storage.facts.entries import Entry


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
