"""Rows and stamps of all conversations; lists by keyset, never by sorting all.

The columns are what is asked for; the row itself is kept as JSON beside them.
Times are whole microseconds. A last access is never set back: nobody else
knows of it.
"""

from __future__ import annotations

import sqlite3
from datetime import datetime

from nplt_storage.catalogue.freshness import FileStamp, FoundFile
from nplt_storage.conversation.row_json import row_as_bytes, row_from_bytes
from nplt_storage.conversation.row_lists import Place, RowPage, RowQuery, cut_page
from nplt_storage.conversation.rows import ConversationRow
from nplt_storage.conversation.searching import from_microseconds, microseconds

_STAMP = "file, size, mtime_ns, inode, end_offset, head_seq, synced"
_COLUMNS = (
    f"session_id, user, pinned, archived, unfinished, updated_at, last_accessed, {_STAMP}, "
    "name, name_folded, row"
)
_ITSELF = ("session_id", "last_accessed")
_CHANGES = [f"{name} = excluded.{name}" for name in _COLUMNS.split(", ") if name not in _ITSELF]
_KEEP = (
    f"INSERT INTO conversations ({_COLUMNS}) VALUES ({', '.join('?' * (len(_CHANGES) + 2))}) "
    f"ON CONFLICT (session_id) DO UPDATE SET {', '.join(_CHANGES)}, "
    "last_accessed = max(last_accessed, excluded.last_accessed) RETURNING key"
)
_END_OF_TEXT = "\U0010ffff"


class RowTable:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._users: dict[str, int] = {}

    # Keeping

    def keep(self, row: ConversationRow, stamp: FileStamp) -> int:
        """The conversation's key, the same as long as it is known."""
        file = stamp.file
        values = (
            row.session_id,
            self.user_key(row.user),
            row.pinned,
            row.archived,
            bool(row.unfinished),
            microseconds(row.updated_at),
            microseconds(row.last_accessed),
            file.name,
            file.size,
            file.mtime_ns,
            file.inode,
            stamp.end_offset,
            stamp.head_seq,
            stamp.synced,
            row.name,
            row.name.casefold(),
            row_as_bytes(row),
        )
        key: int = self._connection.execute(_KEEP, values).fetchone()[0]
        return key

    def touch(self, session_id: str, at: datetime) -> None:
        self._connection.execute(
            "UPDATE conversations SET last_accessed = max(last_accessed, ?) WHERE session_id = ?",
            (microseconds(at), session_id),
        )

    def remove(self, session_id: str) -> tuple[int, int] | None:
        """Its key and its user's, if it was known."""
        question = "DELETE FROM conversations WHERE session_id = ? RETURNING key, user"
        found: tuple[int, int] | None = self._connection.execute(question, (session_id,)).fetchone()
        return found

    def user_key(self, user: str) -> int:
        key = self._users.get(user)
        if key is None:
            self._connection.execute("INSERT OR IGNORE INTO users (name) VALUES (?)", (user,))
            key = self._users[user] = self.known_user(user)
        return key

    # Asking

    def row(self, session_id: str) -> ConversationRow | None:
        question = "SELECT row, last_accessed FROM conversations WHERE session_id = ?"
        found = self._connection.execute(question, (session_id,)).fetchone()
        return None if found is None else _row(*found)

    def key(self, session_id: str) -> int | None:
        question = "SELECT key FROM conversations WHERE session_id = ?"
        found = self._connection.execute(question, (session_id,)).fetchone()
        return None if found is None else found[0]

    def row_of_key(self, key: int) -> ConversationRow | None:
        question = "SELECT row, last_accessed FROM conversations WHERE key = ?"
        found = self._connection.execute(question, (key,)).fetchone()
        return None if found is None else _row(*found)

    def known(self, session_id: str) -> tuple[ConversationRow, FileStamp] | None:
        question = f"SELECT row, last_accessed, {_STAMP} FROM conversations WHERE session_id = ?"
        found = self._connection.execute(question, (session_id,)).fetchone()
        return None if found is None else (_row(*found[:2]), _stamp(*found[2:]))

    def stamps(self) -> dict[str, FileStamp]:
        question = f"SELECT session_id, {_STAMP} FROM conversations"
        return {row[0]: _stamp(*row[1:]) for row in self._connection.execute(question)}

    def count(self, user: str) -> int:
        question = "SELECT count(*) FROM conversations WHERE user = ?"
        count: int = self._connection.execute(question, (self.known_user(user),)).fetchone()[0]
        return count

    def page(self, user: str, query: RowQuery, after: Place | None) -> RowPage:
        conditions, values = _conditions(query, after)
        question = (
            f"SELECT row, last_accessed FROM conversations WHERE {' AND '.join(conditions)} "
            "ORDER BY pinned DESC, updated_at DESC, session_id DESC LIMIT ?"
        )
        values = [self.known_user(user), *values, query.limit + 1]
        found = self._connection.execute(question, values)
        return cut_page([_row(*one) for one in found], query.limit)

    def known_user(self, user: str) -> int:
        found = self._connection.execute("SELECT key FROM users WHERE name = ?", (user,)).fetchone()
        return 0 if found is None else found[0]


def _conditions(query: RowQuery, after: Place | None) -> tuple[list[str], list[object]]:
    conditions, values = ["user = ?"], list[object]()
    if after is not None:
        conditions.append("(pinned, updated_at, session_id) < (?, ?, ?)")
        values += (after[0], microseconds(after[1]), after[2])
    if query.archived is not None:
        conditions.append("archived = ?")
        values.append(query.archived)
    if query.name_has is not None:
        conditions.append("instr(name_folded, ?) > 0")
        values.append(query.name_has.casefold())
    if query.name_is is not None:
        conditions.append("name = ?")
        values.append(query.name_is)
    if query.id_prefix:
        conditions.append("session_id >= ? AND session_id < ?")
        values += (query.id_prefix, query.id_prefix + _END_OF_TEXT)
    if query.unfinished:
        conditions.append("unfinished = 1")
    return conditions, values


def _row(data: bytes, last_accessed: int) -> ConversationRow:
    try:
        return row_from_bytes(data, last_accessed=from_microseconds(last_accessed))
    except (ValueError, TypeError) as error:
        raise sqlite3.DatabaseError(f"a row can't be read: {error}") from error


def _stamp(name: str, size: int, mtime_ns: int, inode: int, *rest: int) -> FileStamp:
    end_offset, head_seq, synced = rest
    return FileStamp(
        file=FoundFile(name=name, size=size, mtime_ns=mtime_ns, inode=inode),
        end_offset=end_offset,
        head_seq=head_seq,
        synced=bool(synced),
    )
