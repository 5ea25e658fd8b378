"""The tables of the index: applying updates, and running queries.

In `conversations` the columns are what is queried; the row itself is stored as JSON next to
them, and lists are read by keyset. Times are whole microseconds. A last-access time never
decreases, since it is stored nowhere else.

A removed conversation is hidden at once and deleted in small steps (`tidy`), so that
nothing waits for a long one. Where words must also leave the bytes of the file, the
full-text index is merged step by step and the journal truncated; a mark in the
database says so until it is done.

Prompts are found by their message_id, so that one sent twice is recognized without
reading a long file. `through` says up to which entry they are complete; beyond it the
file must be read, and the result is stored here.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import assert_never

from msgspec.structs import astuple, replace

from nplt_storage.entries import Entry, ModelInputEntry
from nplt_storage.errors import StorageUnavailable
from nplt_storage.file_system import FoundFile
from nplt_storage.index.database import checkpoint, first_value, transaction
from nplt_storage.index.full_text import TextIndex
from nplt_storage.index.updates import (
    ConversationAccessed,
    ConversationGone,
    EntriesAdded,
    EntryRedacted,
    FileStamp,
    IndexUpdate,
    MarkMoved,
    PromptsFound,
)
from nplt_storage.rows import (
    UNKNOWN_USER,
    ConversationRow,
    RowPage,
    RowQuery,
    cut_page,
    is_troubled,
    needs_attention,
    read_cursor,
    row_as_bytes,
    row_from_bytes,
)
from nplt_storage.search import (
    SearchPage,
    SearchQuery,
    from_microseconds,
    microseconds,
)

_STAMP = "file, size, mtime_ns, inode, end_offset, head_seq, synced"
_COLUMNS = (
    "session_id, user, pinned, archived, unfinished, attention, troubled, due, updated_at, "
    "last_accessed, "
    f"{_STAMP}, name, name_folded, row"
)
_ITSELF = ("session_id", "last_accessed")
_CHANGES = [f"{name} = excluded.{name}" for name in _COLUMNS.split(", ") if name not in _ITSELF]
_KEEP = (
    f"INSERT INTO conversations ({_COLUMNS}) VALUES ({', '.join('?' * (len(_CHANGES) + 2))}) "
    f"ON CONFLICT (session_id) DO UPDATE SET {', '.join(_CHANGES)}, "
    "last_accessed = max(last_accessed, excluded.last_accessed) RETURNING key"
)
_END_OF_TEXT = "\U0010ffff"


def _row(data: bytes, last_accessed: int) -> ConversationRow:
    try:
        return row_from_bytes(data, last_accessed=from_microseconds(last_accessed))
    except (ValueError, TypeError) as error:
        raise sqlite3.DatabaseError(f"a row can't be read: {error}") from error


def _stamp(name: str, *known: int) -> FileStamp:
    size, mtime_ns, inode, end_offset, head_seq, synced = known
    file = FoundFile(name=name, size=size, mtime_ns=mtime_ns, inode=inode)
    return FileStamp(file=file, end_offset=end_offset, head_seq=head_seq, synced=bool(synced))


_REMOVED_AT_ONCE = 100
_MERGED_PAGES = 100
_KEEP_THROUGH = "INSERT OR REPLACE INTO prompts_known VALUES (?, ?)"


class IndexTables:
    def __init__(
        self, connection: sqlite3.Connection, seen: Mapping[str, int] | None = None
    ) -> None:
        """`seen` has the marks of what users have seen; only a writer needs them."""
        self._connection = connection
        self._seen = {} if seen is None else seen
        self._users: dict[str, int] = {}
        has_texts = first_value(connection, "SELECT 1 FROM sqlite_schema WHERE name = 'said'")
        self.texts = TextIndex(connection) if has_texts else None
        self.untidy = True
        """Whether `tidy` may have something to do."""
        self._merging = False

    def apply(self, notes: Iterable[IndexUpdate]) -> None:
        """Applies the updates; if several concern one conversation, only the last row is
        written."""
        latest: dict[str, tuple[EntriesAdded, list[Entry]]] = {}
        touched: dict[str, datetime] = {}
        moved: set[str] = set()
        for note in notes:
            match note:
                case EntriesAdded():
                    session_id = note.row.session_id
                    if note.replaces_all:
                        latest.pop(session_id, None)
                        note = self._rebuild(note)
                    _, entries = latest.get(session_id, (None, []))
                    entries.extend(note.entries)
                    latest[session_id] = (note, entries)
                case ConversationAccessed():
                    before = touched.get(note.session_id, note.at)
                    touched[note.session_id] = max(before, note.at)
                case MarkMoved():
                    moved.add(note.session_id)
                case ConversationGone():
                    latest.pop(note.session_id, None)
                    touched.pop(note.session_id, None)
                    self._remove(note.session_id)
                case EntryRedacted():
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
            self.touch(session_id, at)
        for session_id in moved - latest.keys():
            self._note_mark(session_id)

    def _learn(self, known: tuple[EntriesAdded, list[Entry]] | None) -> None:
        if known is None:
            return
        piece, entries = known
        key = self.keep(piece.row, piece.stamp)
        self._add_prompts(key, entries)
        if self.texts is not None:
            self.texts.add(key, self.user_key(piece.row.user), entries)

    def _add_prompts(self, key: int, entries: Iterable[Entry]) -> None:
        known = through = self._prompts_through(key)
        for entry in entries:
            if isinstance(entry, ModelInputEntry) and entry.message_id is not None:
                # It may be here already: noted when it was said, and met again by a survey.
                self._connection.execute(
                    "INSERT OR IGNORE INTO prompts VALUES (?, ?, ?)",
                    (key, entry.message_id, entry.seq),
                )
            if entry.seq == through + 1:
                through = entry.seq
        if through != known:
            self._connection.execute(_KEEP_THROUGH, (key, through))

    def _learn_prompts(self, found: PromptsFound) -> None:
        key = self.key(found.session_id)
        if key is not None:
            self._connection.executemany(
                "INSERT OR REPLACE INTO prompts VALUES (?, ?, ?)",
                ((key, message_id, seq) for message_id, seq in found.prompts.items()),
            )
            through = max(found.through, self._prompts_through(key))
            self._connection.execute(_KEEP_THROUGH, (key, through))

    def _prompts_through(self, key: int) -> int:
        question = "SELECT through FROM prompts_known WHERE conversation = ?"
        return first_value(self._connection, question, key) or 0

    def prompt(self, session_id: str, message_id: str) -> tuple[int | None, int]:
        """The prompt's number, and the entry up to which all prompts are known."""
        key = self.key(session_id)
        if key is None:
            return None, 0
        question = "SELECT seq FROM prompts WHERE conversation = ? AND message_id = ?"
        seq = first_value(self._connection, question, key, message_id)
        return seq, self._prompts_through(key)

    def search(self, user: str, query: SearchQuery) -> SearchPage:
        """Raises `BadCursor`, and `StorageUnavailable` if there is no index or the search takes too
        long."""
        if self.texts is None:
            raise StorageUnavailable("messages can't be searched now; the server's log says why")
        first_in = None if query.first_in is None else self.key(query.first_in)
        return self.texts.page(self.known_user(user), query, first_in, self._row_of_key)

    def keep(self, row: ConversationRow, stamp: FileStamp) -> int:
        """Writes the row and returns the conversation's key, which stays the same while it is
        known."""
        values = (
            *(row.session_id, self.user_key(row.user)),
            *(row.pinned, row.archived, bool(row.unfinished)),
            *(self._needs_attention(row), is_troubled(row), row.due_at is not None),
            *(microseconds(row.updated_at), microseconds(row.last_accessed)),
            *(*astuple(stamp.file), stamp.end_offset, stamp.head_seq, stamp.synced),
            *(row.name, row.name.casefold(), row_as_bytes(row)),
        )
        return int(first_value(self._connection, _KEEP, *values))

    def touch(self, session_id: str, at: datetime) -> None:
        self._connection.execute(
            "UPDATE conversations SET last_accessed = max(last_accessed, ?) WHERE session_id = ?",
            (microseconds(at), session_id),
        )

    def _needs_attention(self, row: ConversationRow) -> bool:
        return needs_attention(row, self._seen.get(row.session_id))

    def _note_mark(self, session_id: str) -> None:
        row = self.row(session_id)
        if row is not None:
            self._connection.execute(
                "UPDATE conversations SET attention = ? WHERE session_id = ?",
                (self._needs_attention(row), session_id),
            )

    def user_key(self, user: str) -> int:
        key = self._users.get(user)
        if key is None:
            self._connection.execute("INSERT OR IGNORE INTO users (name) VALUES (?)", (user,))
            key = self._users[user] = self.known_user(user)
        return key

    def row(self, session_id: str) -> ConversationRow | None:
        known = self.known(session_id)
        return None if known is None else known[0]

    def key(self, session_id: str) -> int | None:
        question = "SELECT key FROM conversations WHERE session_id = ?"
        key: int | None = first_value(self._connection, question, session_id)
        return key

    def _row_of_key(self, key: int) -> ConversationRow | None:
        question = "SELECT row, last_accessed FROM conversations WHERE key = ?"
        found = self._connection.execute(question, (key,)).fetchone()
        return None if found is None else _row(*found)

    def known(self, session_id: str) -> tuple[ConversationRow, FileStamp] | None:
        question = f"SELECT row, last_accessed, {_STAMP} FROM conversations WHERE session_id = ?"
        found = self._connection.execute(question, (session_id,)).fetchone()
        return None if found is None else (_row(*found[:2]), _stamp(*found[2:]))

    def stamps(self, ids: Sequence[str] | None = None) -> dict[str, FileStamp]:
        """The stamps of these conversations, or of all."""
        question = f"SELECT session_id, {_STAMP} FROM conversations"
        if ids is not None:
            question += f" WHERE session_id IN ({', '.join('?' * len(ids))})"
        found = self._connection.execute(question, ids or ())
        return {row[0]: _stamp(*row[1:]) for row in found}

    def count(self, user: str) -> int:
        question = "SELECT count(*) FROM conversations WHERE user = ?"
        return int(first_value(self._connection, question, self.known_user(user)))

    def page(self, user: str, query: RowQuery) -> RowPage:
        """Raises `BadCursor`."""
        after = None if query.cursor is None else read_cursor(query.cursor)
        conditions: list[str] = ["user = ?"]
        values: list[object] = [self.known_user(user)]
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
        if query.attention:
            conditions.append("attention = 1")
        if query.troubled:
            conditions.append("troubled = 1")
        if query.due:
            conditions.append("due = 1")
        found = self._connection.execute(
            f"SELECT row, last_accessed FROM conversations WHERE {' AND '.join(conditions)} "
            "ORDER BY pinned DESC, updated_at DESC, session_id DESC LIMIT ?",
            [*values, query.limit + 1],
        )
        page = cut_page([_row(*one) for one in found], query.limit)
        if query.attention:  # the column is out of date if the marks were lost
            page = replace(page, rows=tuple(filter(self._needs_attention, page.rows)))
        return page

    def known_user(self, user: str) -> int:
        return first_value(self._connection, "SELECT key FROM users WHERE name = ?", user) or 0

    def _rebuild(self, piece: EntriesAdded) -> EntriesAdded:
        """Removes what is known of the conversation, and returns the update to apply then."""
        session_id = piece.row.session_id
        before = self.row(session_id)
        self._remove(session_id)
        if before is not None:
            if before.user == UNKNOWN_USER:  # whose it is was not known
                before = replace(before, user=piece.row.user)
            elif piece.row.damaged:
                known = replace(piece.row, user=before.user, created_at=before.created_at)
                piece = replace(piece, row=known)
            if piece.row.damaged and before.message_count >= piece.row.message_count:
                # It is listed as it was known: what can't be read may have named it.
                piece = replace(piece, row=replace(before, damaged=True))
            elif piece.row.lost is None and before.lost is not None:
                piece = replace(piece, row=replace(piece.row, lost=before.lost))
            self.keep(piece.row, piece.stamp)
            self.touch(session_id, before.last_accessed)
        if before is not None and not before.damaged:
            # The file was replaced: what it no longer says must not stay here either.
            self._mark()
        return piece

    def _remove(self, session_id: str) -> None:
        question = "DELETE FROM conversations WHERE session_id = ? RETURNING key"
        key = first_value(self._connection, question, session_id)
        if key is not None:
            self._connection.execute("INSERT INTO leftovers VALUES (?)", (key,))
            self.untidy = True

    def _redact(self, note: EntryRedacted) -> None:
        key = self.keep(note.row, note.stamp)
        if self.texts is not None:
            self.texts.remove("conversation = ? AND seq = ?", key, note.seq)
        self._mark()

    def tidy(self) -> None:
        """Does a small step; `untidy` says whether there is more to do."""
        leftover = first_value(self._connection, "SELECT conversation FROM leftovers LIMIT 1")
        if leftover is not None:
            with transaction(self._connection):
                self._take_out(leftover)
        elif first_value(self._connection, "SELECT 1 FROM marks WHERE name = 'erasing'"):
            self._erase()
        else:
            self.untidy = False

    def _take_out(self, conversation: int) -> None:
        self._connection.execute(
            "DELETE FROM prompts_known WHERE conversation = ?", (conversation,)
        )
        removed = self._connection.execute(
            "DELETE FROM prompts WHERE conversation = ?1 AND message_id IN "
            "(SELECT message_id FROM prompts WHERE conversation = ?1 LIMIT ?2)",
            (conversation, _REMOVED_AT_ONCE),
        ).rowcount
        if self.texts is not None:
            some = (conversation, _REMOVED_AT_ONCE)
            removed += self.texts.remove("conversation = ? LIMIT ?", *some)
        if not removed:
            question = "DELETE FROM leftovers WHERE conversation = ?"
            self._connection.execute(question, (conversation,))

    def _erase(self) -> None:
        if self.texts is not None:
            with transaction(self._connection):
                self._merging = self.texts.merge(_MERGED_PAGES, begin=not self._merging)
        if self._merging:
            return
        # While someone searches it can't be done, and is tried again.
        if checkpoint(self._connection):
            self._connection.execute("DELETE FROM marks WHERE name = 'erasing'")

    def _mark(self) -> None:
        self._connection.execute("INSERT OR REPLACE INTO marks VALUES ('erasing', '')")
        self.untidy = True
        self._merging = False
