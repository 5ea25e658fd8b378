"""What notes do to the tables.

What is deleted is out of sight at once and taken out in small steps (`tidy`),
so that nobody waits behind a long conversation. Where words must leave the
bytes of the file too, the index is merged into one piece, step by step, and
the journal emptied; a mark in the database says so until it is done.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterable
from datetime import datetime
from typing import assert_never

from nplt_storage.catalogue.database import checkpoint, has_index, transaction
from nplt_storage.catalogue.learned import Gone, Learned, Note, PromptsFound, Redacted, Touched
from nplt_storage.catalogue.prompts import PromptIndex
from nplt_storage.catalogue.row_table import RowTable
from nplt_storage.catalogue.text_index import TextIndex
from nplt_storage.facts.entries import Entry

log = logging.getLogger(__name__)

_REMOVED_AT_ONCE = 100
_MERGED_PAGES = 100


class Books:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.rows = RowTable(connection)
        self.prompts = PromptIndex(connection)
        self.index = TextIndex(connection) if has_index(connection) else None
        self.untidy = True
        """Whether there may be something to do for `tidy`."""
        self._merging = False

    # Notes

    def apply(self, notes: Iterable[Note]) -> None:
        """Of many notes about a conversation only the last row is written."""
        latest: dict[str, tuple[Learned, list[Entry]]] = {}
        touched: dict[str, datetime] = {}
        for note in notes:
            match note:
                case Learned():
                    session_id = note.row.session_id
                    if note.anew:
                        latest.pop(session_id, None)
                        self._begin_anew(note)
                    _, entries = latest.get(session_id, (None, []))
                    entries.extend(note.entries)
                    latest[session_id] = (note, entries)
                case Touched():
                    before = touched.get(note.session_id, note.at)
                    touched[note.session_id] = max(before, note.at)
                case Gone():
                    latest.pop(note.session_id, None)
                    touched.pop(note.session_id, None)
                    self._remove(note.session_id)
                case Redacted():
                    self._learn(latest.pop(note.row.session_id, None))
                    self._redact(note)
                case PromptsFound():
                    self._learn(latest.pop(note.session_id, None))
                    self._learn_prompts(note)
                case _:
                    assert_never(note)
        for known in latest.values():
            self._learn(known)
        for session_id, at in touched.items():
            self.rows.touch(session_id, at)

    def _learn(self, known: tuple[Learned, list[Entry]] | None) -> None:
        if known is None:
            return
        piece, entries = known
        key = self.rows.keep(piece.row, piece.stamp)
        self.prompts.add(key, entries)
        if self.index is not None:
            self.index.add(key, self.rows.user_key(piece.row.user), entries)

    def _learn_prompts(self, found: PromptsFound) -> None:
        key = self.rows.key(found.session_id)
        if key is not None:
            self.prompts.learn(key, found.prompts, found.through)

    def prompt(self, session_id: str, message_id: str) -> tuple[int | None, int]:
        """Its number, and up to which entry all of them are known."""
        key = self.rows.key(session_id)
        if key is None:
            return None, 0
        return self.prompts.seq_of(key, message_id), self.prompts.through(key)

    def _begin_anew(self, piece: Learned) -> None:
        session_id = piece.row.session_id
        before = self.rows.row(session_id)
        self._remove(session_id)
        if before is not None:
            self.rows.keep(piece.row, piece.stamp)
            self.rows.touch(session_id, before.last_accessed)
        if before is not None and not before.damaged:
            # The file was replaced: what it no longer says must not stay here either.
            self._mark()

    def _remove(self, session_id: str) -> None:
        removed = self.rows.remove(session_id)
        if removed is not None:
            self._connection.execute("INSERT INTO leftovers VALUES (?, ?)", removed)
            self.untidy = True

    def _redact(self, note: Redacted) -> None:
        key = self.rows.keep(note.row, note.stamp)
        if self.index is not None:
            self.index.remove(key, self.rows.user_key(note.row.user), note.seq)
        self._mark()

    # Tidying up

    def tidy(self) -> None:
        """A small step; `untidy` says whether there is more to do."""
        question = "SELECT conversation, user FROM leftovers LIMIT 1"
        leftover = self._connection.execute(question).fetchone()
        if leftover is not None:
            with transaction(self._connection):
                self._take_out(*leftover)
        elif self._is_marked():
            self._erase()
        else:
            self.untidy = False

    def _take_out(self, conversation: int, user: int) -> None:
        removed = self.prompts.remove_some(conversation, _REMOVED_AT_ONCE)
        if self.index is not None:
            removed += self.index.remove_some(conversation, user, _REMOVED_AT_ONCE)
        if not removed:
            question = "DELETE FROM leftovers WHERE conversation = ?"
            self._connection.execute(question, (conversation,))

    def _erase(self) -> None:
        if self.index is not None:
            with transaction(self._connection):
                self._merging = self.index.merge(_MERGED_PAGES, begin=not self._merging)
        if self._merging:
            return
        if checkpoint(self._connection):
            self._connection.execute("DELETE FROM marks WHERE name = 'erasing'")
        else:
            self.untidy = False
            log.warning("someone reads the catalogue: redacted words leave its file later")

    def _mark(self) -> None:
        self._connection.execute("INSERT OR REPLACE INTO marks VALUES ('erasing', '')")
        self.untidy = True
        self._merging = False

    def _is_marked(self) -> bool:
        question = "SELECT 1 FROM marks WHERE name = 'erasing'"
        return self._connection.execute(question).fetchone() is not None
