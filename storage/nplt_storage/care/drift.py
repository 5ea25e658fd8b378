"""Does the catalogue say what the files say?

It is a cache, so being behind is nothing: the next start catches up. Wrong is
what catching up would not notice, or what tells of a loss: a row that differs
from what the same entries make, a head that the file does not reach, a
conversation without its file.

SQLite is opened so that it can't write, not even to the files beside it: where
nobody has a journal open, as if nothing could change, else by reading theirs.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path
from typing import Final
from urllib.parse import quote

from nplt_storage.care.findings import Finding, note
from nplt_storage.catalogue.books import Books
from nplt_storage.catalogue.database import (
    ROWS_VERSION,
    SCHEMA_VERSION,
    checkpoint,
    open_database,
    transaction,
)
from nplt_storage.catalogue.learned import Gone
from nplt_storage.catalogue.row_table import RowTable
from nplt_storage.conversation.rows import ConversationRow
from nplt_storage.errors import StorageUnavailable
from nplt_storage.files.workshop import CATALOGUE_NAME

_IN_TRASH: Final = re.compile(r"[0-9]{8}T[0-9]{6}_([^~]+)(?:~[0-9]+)?")
_MADE_BY: Final = f"schema {SCHEMA_VERSION}, rows {ROWS_VERSION},"


class CatalogueAsFound:
    """What it said when it was read. Read before the files are: whatever happens
    meanwhile, it can then only be behind."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._rows: dict[str, ConversationRow] = {}
        self._unusable: str | None = None
        path = data_dir / CATALOGUE_NAME
        if not path.exists():
            self._unusable = "there is none; it is made at the next start"
            return
        try:
            with closing(_connect(path)) as connection:
                self._take(connection)
        except sqlite3.Error as error:
            self._unusable = f"it can't be read ({error}); the next start makes it anew"

    def _take(self, connection: sqlite3.Connection) -> None:
        (made_by,) = connection.execute(
            "SELECT value FROM marks WHERE name = 'made_by'"
        ).fetchone() or ("",)
        if not made_by.startswith(_MADE_BY):
            self._unusable = "another version made it; the next start makes it anew"
            return
        table = RowTable(connection)
        for session_id in table.stamps():
            row = table.row(session_id)
            if row is not None:
                self._rows[session_id] = row

    def compare(self, sound: dict[str, ConversationRow], there: set[str]) -> Iterator[Finding]:
        """`sound` are rows made of whole files just now, `there` all ids with a file."""
        if self._unusable is not None:
            yield replace(note("no_catalogue", self._unusable), file=CATALOGUE_NAME)
            return
        for session_id, row in sorted(sound.items()):
            known = self._rows.get(session_id)
            finding = _behind(row) if known is None else _difference(known, row)
            if finding is not None:
                yield replace(finding, file=CATALOGUE_NAME)
        for session_id in sorted(self._rows.keys() - there):
            yield replace(self._without_file(session_id), file=CATALOGUE_NAME)

    def _without_file(self, session_id: str) -> Finding:
        if session_id in _ids_in_trash(self._data_dir / "trash"):
            return note("behind", f"it does not know yet that {session_id} was deleted")
        row = self._rows[session_id]
        message = f"it knows {session_id} ({row.head_seq} entries), of which there is no file"
        return Finding(code="file_gone", message=message, seqs=(1, max(row.head_seq, 1)))


def _behind(row: ConversationRow) -> Finding:
    return note("behind", f"it does not know {row.session_id} yet; the next start catches up")


def _difference(known: ConversationRow, row: ConversationRow) -> Finding | None:
    if known.head_seq > row.head_seq:
        message = f"{row.session_id} had {known.head_seq} entries, its file has {row.head_seq}"
        lost = (row.head_seq + 1, known.head_seq)
        return Finding(code="entries_gone", message=message, seqs=lost)
    if known.head_seq < row.head_seq:
        message = f"it knows {row.session_id} up to entry {known.head_seq} of {row.head_seq}"
        return note("behind", f"{message}; the next start catches up")
    if known.damaged:
        return note("behind", f"it holds {row.session_id} for damaged; the next start looks again")
    same = replace(known, last_accessed=row.last_accessed)
    wrong = [f.name for f in fields(row) if getattr(same, f.name) != getattr(row, f.name)]
    if not wrong:
        return None
    message = f"what it says of {row.session_id} is not what its file says: {', '.join(wrong)}"
    return Finding(code="drift", message=message)


def _connect(path: Path) -> sqlite3.Connection:
    journal = path.with_name(f"{path.name}-wal")
    shared = path.with_name(f"{path.name}-shm")
    in_use = journal.exists() and journal.stat().st_size > 0 and shared.exists()
    how = "mode=ro&readonly_shm=1" if in_use else "mode=ro&immutable=1"
    return sqlite3.connect(f"file:{quote(str(path.absolute()))}?{how}", uri=True)


def _ids_in_trash(trash: Path) -> set[str]:
    try:
        names = os.listdir(trash)  # noqa: PTH208
    except OSError:
        return set()
    return {parts[1] for name in names if (parts := _IN_TRASH.fullmatch(name))}


def forget_row(data_dir: Path, session_id: str) -> None:
    """A repaired file may be shorter than the catalogue remembers, and would be
    held for damaged. Only for who holds the directory's lock."""
    path = data_dir / CATALOGUE_NAME
    if not path.exists():
        return
    try:
        with closing(open_database(path)) as connection:
            with transaction(connection):
                Books(connection).apply([Gone(session_id=session_id)])
            checkpoint(connection)
    except sqlite3.Error as error:
        reason = f"{path} can't be written to ({error}): remove it, it is made anew"
        raise StorageUnavailable(reason) from error
