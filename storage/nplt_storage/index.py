"""The index of all conversations: rows, prompts and words, in SQLite beside the files.

Updates return at once and never fail; questions see all updates made before them. No
append waits for anything here: a thread owns the database. Its tables are

    conversations   a row for each, and the stamp of the file it was made from
    users           numbers for their names
    messages        the texts, numbered by time so that the newest come first
    said            the words of the messages; FTS5 without a copy of the text
    prompts         the number of each prompt, by its message_id
    prompts_known   up to which entry a conversation's prompts are complete
    leftovers       removed conversations whose messages are still here
    marks           by which version it was made; whether words are to be erased

A database that is broken or of another version is made anew. Commits are not synced:
after a power cut the database is consistent and may lack the latest updates, which
the files' stamps show. Freed pages are zeroed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import datetime
from functools import cache, partial
from itertools import groupby
from pathlib import Path
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, Final, TypeAlias, TypeVar, assert_never
from urllib.parse import quote

import anyio
import anyio.to_thread
from msgspec import Struct, field
from msgspec.structs import astuple, replace

from nplt_storage.entries import Entry, ModelInputEntry
from nplt_storage.errors import StorageError, StorageUnavailable
from nplt_storage.file_system import Disk, FoundFile, NotOurs
from nplt_storage.rows import (
    NOBODY,
    ConversationRow,
    RowPage,
    RowQuery,
    cut_page,
    is_troubled,
    read_cursor,
    row_as_bytes,
    row_from_bytes,
)
from nplt_storage.search import (
    WORDS_VERSION,
    SearchHit,
    SearchPage,
    SearchPlace,
    SearchQuery,
    Wanted,
    cut_search_page,
    from_microseconds,
    hit_without_snippet,
    microseconds,
    moment,
    query_words,
    read_search_cursor,
    searched_text,
    stands,
    took_too_long,
    words,
)

log = logging.getLogger(__name__)
_T = TypeVar("_T")

# ------------------------------------------------------------------------------
# File stamps: is the index's knowledge of a file up to date?
#
# A file with the same inode, size and time need not be read again. One that has only
# grown is read from where its closing line began; any other is read whole. A replaced
# file has another inode even if its size is the same: a redacted text must not stay in
# the index.


class FileStamp(Struct, frozen=True, kw_only=True):
    """A file as of the time when the index had read it up to `head_seq`. A stamp may cover only a
    part of the file, with that part's size; the rest is then read like later appends."""

    file: FoundFile
    end_offset: int
    """The offset of the closing line; an append changes nothing before it."""
    head_seq: int
    synced: bool = True
    """Whether that head was durable when it was noted; only then is a lower head damage."""


class Freshness(Struct, frozen=True, kw_only=True):
    """Conversations whose files have changed, by the action needed."""

    grown: list[str] = field(default_factory=list)
    """Read from `end_offset` on. If the lines there do not follow, another program has changed the
    file, and it is read whole."""
    unknown: list[str] = field(default_factory=list)
    """Read whole: the file is new, or another one than before."""
    gone: list[str]
    """Forget."""


def compare_files(found: Mapping[str, FoundFile], known: Mapping[str, FileStamp]) -> Freshness:
    """Compares files with their stamps, both by session id."""
    freshness = Freshness(gone=[session_id for session_id in known if session_id not in found])
    for session_id, now in found.items():
        before = known[session_id].file if session_id in known else None
        if before == now:
            continue
        if before is None or (before.name, before.inode) != (now.name, now.inode):
            freshness.unknown.append(session_id)
        # The same size at another time is a file that was written to, but not by appending:
        # unless the time was not known (see `part_of`), it is read anew.
        elif now.size > before.size or (now.size == before.size and not before.mtime_ns):
            freshness.grown.append(session_id)
        else:
            freshness.unknown.append(session_id)
    return freshness


class EntriesAdded(Struct, frozen=True, kw_only=True):
    row: ConversationRow
    """The row after these entries."""
    stamp: FileStamp
    entries: Sequence[Entry] = ()
    """Entries of any kind; the index uses those it needs."""
    anew: bool = False
    """Whether these are the first entries, which replace everything known before."""


class ConversationGone(Struct, frozen=True, kw_only=True):
    session_id: str


class ConversationAccessed(Struct, frozen=True, kw_only=True):
    session_id: str
    at: datetime


class EntryRedacted(Struct, frozen=True, kw_only=True):
    """The content of entry `seq` was erased in the file and in the row."""

    row: ConversationRow
    stamp: FileStamp
    seq: int


class PromptsFound(Struct, frozen=True, kw_only=True):
    """All prompts of a file that have a message id, by number."""

    session_id: str
    prompts: Mapping[str, int]
    through: int
    """The last entry that was examined."""


IndexUpdate: TypeAlias = (
    EntriesAdded | ConversationGone | ConversationAccessed | EntryRedacted | PromptsFound
)

Surveyed: TypeAlias = EntriesAdded | ConversationGone | None
"""`None` if there is nothing new yet; questions can be answered meanwhile."""
Survey: TypeAlias = Callable[[Mapping[str, FileStamp]], Iterator[Surveyed]]
"""Yields the changes since the given stamps: see `compare_files`. It reads files, so it runs in the
index's thread. A conversation may be written to meanwhile, because the writer's update follows."""


SCHEMA_VERSION: Final = 3
ROWS_VERSION: Final = 3
"""Raised when `rows.fold` makes a different row of the same entries."""

_TABLES = """
CREATE TABLE marks (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE users (key INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE conversations (
    key INTEGER PRIMARY KEY AUTOINCREMENT,
    session_id TEXT NOT NULL UNIQUE,
    user INTEGER NOT NULL,
    pinned INTEGER NOT NULL,
    archived INTEGER NOT NULL,
    unfinished INTEGER NOT NULL,
    troubled INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    last_accessed INTEGER NOT NULL,
    file TEXT NOT NULL,
    size INTEGER NOT NULL,
    mtime_ns INTEGER NOT NULL,
    inode INTEGER NOT NULL,
    end_offset INTEGER NOT NULL,
    head_seq INTEGER NOT NULL,
    synced INTEGER NOT NULL,
    name TEXT NOT NULL,
    name_folded TEXT NOT NULL,
    row BLOB NOT NULL
);
CREATE INDEX lists ON conversations (user, pinned, updated_at, session_id, archived);
CREATE INDEX unfinished ON conversations (user, pinned, updated_at, session_id)
    WHERE unfinished = 1;
CREATE INDEX troubled ON conversations (user, pinned, updated_at, session_id)
    WHERE troubled = 1;
CREATE TABLE messages (
    id INTEGER PRIMARY KEY,
    conversation INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    at INTEGER NOT NULL,
    role TEXT NOT NULL,
    text BLOB NOT NULL
);
CREATE UNIQUE INDEX messages_by_seq ON messages (conversation, seq);
CREATE TABLE prompts (
    conversation INTEGER NOT NULL,
    message_id TEXT NOT NULL,
    seq INTEGER NOT NULL,
    PRIMARY KEY (conversation, message_id)
) WITHOUT ROWID;
CREATE TABLE prompts_known (conversation INTEGER PRIMARY KEY, through INTEGER NOT NULL);
CREATE TABLE leftovers (conversation INTEGER PRIMARY KEY, user INTEGER NOT NULL);
"""
# Words are separated here already: `ascii` leaves everything but ASCII alone.
_INDEX = """
CREATE VIRTUAL TABLE said USING fts5(words, content='', columnsize=0, tokenize='ascii')
"""
_LOCK_SECONDS = 0.25
"""The time to wait for another program's lock when the database is opened."""
_SETTINGS = (
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=NORMAL",
    "PRAGMA secure_delete=ON",
    # What can't be written (a full disk) can be asked about before it is rolled back.
    "PRAGMA cache_spill=OFF",
    "PRAGMA wal_autocheckpoint=4096",
    "PRAGMA journal_size_limit=16777216",
)


PARTS: Final = ("", "-wal", "-shm", "-journal")
"""The suffixes of the database's files."""


def open_database(path: Path) -> sqlite3.Connection:
    """Opens the database. Never fails: at worst it is in memory, without full text."""
    try:
        disk = Disk(path.parent)
        for part in PARTS:  # SQLite would follow a link
            if reason := disk.why_not_ours(path.with_name(path.name + part)):
                raise NotOurs(f"{path.name}{part}: {reason}")
        if disk.find(path) is not None:
            connection = _connect(path)
            with _closed_if_it_fails(connection):
                made_by = first_value(connection, "SELECT value FROM marks WHERE name = 'made_by'")
                if made_by == _made_by(full_text=_has_fts5(connection)):
                    return connection
            connection.close()
            log.info("%s was made by another version and is made anew", path)
    except (sqlite3.Error, OSError) as error:
        log.warning("%s can't be used (%s) and is made anew", path, error)
    return make_anew(path)


def make_anew(path: Path) -> sqlite3.Connection:
    try:
        for part in PARTS:
            path.with_name(path.name + part).unlink(missing_ok=True)
        connection = _connect(path)
        return _filled(connection, full_text=_has_fts5(connection))
    except (sqlite3.Error, OSError) as error:
        log.error("%s can't be made (%s): lists are kept in memory, search is off", path, error)
        return in_memory()


def in_memory() -> sqlite3.Connection:
    """An index of rows only: the text of all messages may be far more than memory holds."""
    return _filled(_connect(None), full_text=False)


def first_value(connection: sqlite3.Connection, question: str, *values: object) -> Any:
    """The first column of the first row; `None` if there is none."""
    found = connection.execute(question, values).fetchone()
    return None if found is None else found[0]


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        roll_back(connection)
        raise


def roll_back(connection: sqlite3.Connection) -> None:
    # Some errors have done it already.
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def checkpoint(connection: sqlite3.Connection) -> bool:
    """Moves all commits from the journal into the database and empties the journal, unless there is
    a reader."""
    busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return not busy


def open_reader(path: Path) -> sqlite3.Connection:
    """Opens one more connection next to the writer's, in the same process."""
    return _connect(path, is_reader=True)


def _connect(path: Path | None, *, is_reader: bool = False) -> sqlite3.Connection:
    """Opens the database for this process alone (`unix-excl`): no other process can lock it, and
    its connections share their state in memory. Otherwise they would share a memory-mapped file,
    and a program that truncated that file would kill the server with SIGBUS."""
    address = ":memory:"
    if path is not None:
        if not is_reader:  # closing the file then would drop the locks of the writer
            # SQLite gives the files beside it the same rights.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        address = f"file:{quote(str(path.absolute()))}?vfs=unix-excl&mode=rw"
    connection = sqlite3.connect(
        address,
        uri=path is not None,
        isolation_level=None,
        check_same_thread=False,
        timeout=_LOCK_SECONDS,
    )
    with _closed_if_it_fails(connection):
        settings = ("PRAGMA query_only=ON",) if is_reader else _SETTINGS
        for setting in (*settings, "PRAGMA mmap_size=0", "PRAGMA cache_size=-8192"):
            connection.execute(setting)
    return connection


@contextmanager
def _closed_if_it_fails(connection: sqlite3.Connection) -> Iterator[None]:
    try:
        yield
    except BaseException:
        connection.close()
        raise


def _filled(connection: sqlite3.Connection, *, full_text: bool) -> sqlite3.Connection:
    with _closed_if_it_fails(connection):
        connection.executescript(_TABLES)
        if full_text:
            connection.execute(_INDEX)
            # Many small batches: merged less often, which questions hardly notice.
            connection.execute("INSERT INTO said (said, rank) VALUES ('automerge', 8)")
        marks = ("made_by", _made_by(full_text=full_text))
        connection.execute("INSERT INTO marks VALUES (?, ?)", marks)
    return connection


def _has_fts5(connection: sqlite3.Connection) -> bool:
    found = first_value(connection, "SELECT 1 FROM pragma_module_list WHERE name = 'fts5'")
    if found is None:
        log.warning("this SQLite has no FTS5: what was said can't be searched")
    return found is not None


def _made_by(*, full_text: bool) -> str:
    words = f", words {WORDS_VERSION}" if full_text else ", no index"
    return f"schema {SCHEMA_VERSION}, rows {ROWS_VERSION}{words}"


# ------------------------------------------------------------------------------
# Rows and stamps; lists are read by keyset
#
# The columns are what is queried; the row itself is stored as JSON beside them. Times
# are whole microseconds. A last-access time never decreases, since it is stored nowhere
# else.

_STAMP = "file, size, mtime_ns, inode, end_offset, head_seq, synced"
_COLUMNS = (
    "session_id, user, pinned, archived, unfinished, troubled, updated_at, last_accessed, "
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


# ------------------------------------------------------------------------------
# Full text; the newest message is found first, without sorting
#
# A message's number is its time in microseconds with eight more bits for messages of the
# same microsecond, so the index, which is ordered by number, is ordered by time. Within
# one moment the order is by conversation and entry (see `search.SearchPlace`). If a
# moment is full, the next one is used.
#
# The full-text index holds words and no text. The text is stored beside it: to show a
# snippet, and because its words must be named to delete them. Each message is also
# indexed under a word for its user, which nobody can type.

_SLOT_BITS = 8
_SLOTS = 2**_SLOT_BITS - 1
_LAST_ID = 2**63 - 1
_FULL_MAX = 10_000
_STEPS_BETWEEN = 1_000
_PACKED_FROM = 2048
"""The number of characters from which packing a text saves more room than it costs time."""

_SEARCH = (
    "SELECT id, conversation, seq, at, role FROM said CROSS JOIN messages ON id = said.rowid "
    "WHERE said MATCH ? AND said.rowid <= ? ORDER BY said.rowid DESC"
)


class TextIndex:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._full_until: dict[int, int] = {}

    def add(self, conversation: int, user: int, entries: Iterable[Entry]) -> None:
        for entry in entries:
            text = searched_text(entry)
            said = words(text)
            if not said:
                continue
            number = self._free_number(moment(entry.timestamp))
            packed = zlib.compress(text.encode(), 1) if len(text) >= _PACKED_FROM else text
            values = (number, conversation, entry.seq, microseconds(entry.timestamp), entry.role)
            # It may be here already: noted when it was said, and met again by a survey.
            added = self._connection.execute(
                "INSERT OR IGNORE INTO messages VALUES (?, ?, ?, ?, ?, ?)", (*values, packed)
            ).rowcount
            if added:
                self._connection.execute(
                    "INSERT INTO said (rowid, words) VALUES (?, ?)", (number, _indexed(user, said))
                )

    def _free_number(self, at: int) -> int:
        """The first free number of a moment. Thousands of messages may have one time (an import
        without times), so the search continues where the last one found room."""
        begin, at = at, self._full_until.get(at, at)
        while True:
            first = at << _SLOT_BITS
            question = "SELECT max(id) FROM messages WHERE id BETWEEN ? AND ?"
            last: int | None = first_value(self._connection, question, first, first | _SLOTS)
            if last is None:
                return first
            if last < first | _SLOTS:
                return last + 1
            at += 1
            if len(self._full_until) >= _FULL_MAX:
                self._full_until.clear()
            self._full_until[begin] = at

    def remove(self, user: int, which: str, *values: int) -> int:
        """Removes messages, and returns their number."""
        question = f"SELECT id, text FROM messages WHERE {which}"
        found = self._connection.execute(question, values).fetchall()
        for number, packed in found:
            said = _indexed(user, words(_unpacked(packed)))
            self._connection.execute(
                "INSERT INTO said (said, rowid, words) VALUES ('delete', ?, ?)", (number, said)
            )
            self._connection.execute("DELETE FROM messages WHERE id = ?", (number,))
        return len(found)

    def merge(self, pages: int, *, begin: bool) -> bool:
        """Merges parts of the index, so that removed text disappears; writes about that many pages.
        Returns whether there is more to do."""
        before = self._connection.total_changes
        amount = -pages if begin else pages
        self._connection.execute("INSERT INTO said (said, rank) VALUES ('merge', ?)", (amount,))
        # As SQLite's manual has it: one change is the command itself.
        return self._connection.total_changes - before >= 2


def _indexed(user: int, said: list[str]) -> str:
    """The words, and the user's word, which contains a character that no other word has: see
    `words`."""
    return f"\ue000{user} {' '.join(said)}"


def _expression(user: int, wanted: Wanted) -> str:
    parts = [f'"{one.strip()}"' if one.endswith(" ") else f'"{one.strip()}" *' for one in wanted]
    return " ".join([f'"\ue000{user}"', *parts])


def _unpacked(packed: str | bytes) -> str:
    if isinstance(packed, str):
        return packed
    try:
        return zlib.decompress(packed).decode()
    except (zlib.error, UnicodeDecodeError) as error:
        raise sqlite3.DatabaseError(f"a message can't be read: {error}") from error


# ------------------------------------------------------------------------------
# Applying updates
#
# A removed conversation is hidden at once and deleted in small steps (`tidy`), so that
# nothing waits for a long one. Where words must also leave the bytes of the file, the
# full-text index is merged step by step and the journal truncated; a mark in the
# database says so until it is done.
#
# Prompts are found by their message_id, so that one sent twice is recognized without
# reading a long file. `through` says up to which entry they are complete; beyond it the
# file must be read, and the result is stored here.

_REMOVED_AT_ONCE = 100
_MERGED_PAGES = 100
_KEEP_THROUGH = "INSERT OR REPLACE INTO prompts_known VALUES (?, ?)"


class IndexTables:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
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
        for note in notes:
            match note:
                case EntriesAdded():
                    session_id = note.row.session_id
                    if note.anew:
                        latest.pop(session_id, None)
                        note = self._begin_anew(note)
                    _, entries = latest.get(session_id, (None, []))
                    entries.extend(note.entries)
                    latest[session_id] = (note, entries)
                case ConversationAccessed():
                    before = touched.get(note.session_id, note.at)
                    touched[note.session_id] = max(before, note.at)
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
        before = None if query.cursor is None else read_search_cursor(query.cursor)
        wanted = query_words(query.text)
        if not wanted:
            return SearchPage(hits=())
        if self.texts is None:
            raise StorageUnavailable("messages can't be searched now; the server's log says why")
        last = _LAST_ID if before is None else before[0] << _SLOT_BITS | _SLOTS
        found: list[tuple[SearchPlace, int, SearchHit]] = []
        until = monotonic() + query.seconds_max
        self._connection.set_progress_handler(lambda: monotonic() > until, _STEPS_BETWEEN)
        try:
            expression = _expression(self.known_user(user), wanted)
            with closing(self._connection.execute(_SEARCH, (expression, last))) as candidates:
                for message in self._in_order(candidates):
                    if before is None or message[0] < before:
                        found.append(message)
                        if len(found) > query.limit:
                            break
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT:
                raise took_too_long(query) from None
            raise
        finally:
            self._connection.set_progress_handler(None, 0)
        question = "SELECT text FROM messages WHERE id = ?"
        messages = [
            (place, hit, _unpacked(first_value(self._connection, question, number)))
            for place, number, hit in found
        ]
        return cut_search_page(messages, wanted, query.limit)

    def _in_order(
        self, candidates: Iterable[tuple[int, int, int, int, str]]
    ) -> Iterator[tuple[SearchPlace, int, SearchHit]]:
        """The place, number and hit of the active messages; within a moment they are ordered by
        conversation and entry."""
        row_of = cache(self._row_of_key)
        for at, of_one_moment in groupby(candidates, key=lambda found: found[0] >> _SLOT_BITS):
            messages: list[tuple[SearchPlace, int, SearchHit]] = []
            for number, conversation, seq, said_at, role in of_one_moment:
                row = row_of(conversation)
                if row is not None and stands(row, seq):
                    hit = hit_without_snippet(row, seq, role, from_microseconds(said_at))
                    messages.append(((at, row.session_id, seq), number, hit))
            yield from sorted(messages, reverse=True)

    def keep(self, row: ConversationRow, stamp: FileStamp) -> int:
        """Writes the row and returns the conversation's key, which stays the same while it is
        known."""
        values = (
            *(row.session_id, self.user_key(row.user)),
            *(row.pinned, row.archived, bool(row.unfinished), is_troubled(row)),
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
        if query.troubled:
            conditions.append("troubled = 1")
        found = self._connection.execute(
            f"SELECT row, last_accessed FROM conversations WHERE {' AND '.join(conditions)} "
            "ORDER BY pinned DESC, updated_at DESC, session_id DESC LIMIT ?",
            [*values, query.limit + 1],
        )
        return cut_page([_row(*one) for one in found], query.limit)

    def known_user(self, user: str) -> int:
        return first_value(self._connection, "SELECT key FROM users WHERE name = ?", user) or 0

    def _begin_anew(self, piece: EntriesAdded) -> EntriesAdded:
        """Removes what is known of the conversation, and returns the update to apply then."""
        session_id = piece.row.session_id
        before = self.row(session_id)
        self._remove(session_id)
        if before is not None:
            if before.user == NOBODY:  # whose it is was not known
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
        question = "DELETE FROM conversations WHERE session_id = ? RETURNING key, user"
        removed = self._connection.execute(question, (session_id,)).fetchone()
        if removed is not None:
            self._connection.execute("INSERT INTO leftovers VALUES (?, ?)", removed)
            self.untidy = True

    def _redact(self, note: EntryRedacted) -> None:
        key = self.keep(note.row, note.stamp)
        if self.texts is not None:
            user = self.user_key(note.row.user)
            self.texts.remove(user, "conversation = ? AND seq = ?", key, note.seq)
        self._mark()

    def tidy(self) -> None:
        """Does a small step; `untidy` says whether there is more to do."""
        question = "SELECT conversation, user FROM leftovers LIMIT 1"
        leftover = self._connection.execute(question).fetchone()
        if leftover is not None:
            with transaction(self._connection):
                self._take_out(*leftover)
        elif first_value(self._connection, "SELECT 1 FROM marks WHERE name = 'erasing'"):
            self._erase()
        else:
            self.untidy = False

    def _take_out(self, conversation: int, user: int) -> None:
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
            removed += self.texts.remove(user, "conversation = ? LIMIT ?", *some)
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


# ------------------------------------------------------------------------------
# The database and its failures; used by one thread
#
# Updates are applied in batches, one transaction each. A batch that can't be committed
# (disk full, not writable) is tried again with the next one, and until then applied for
# each question and rolled back. A broken database is rebuilt from the files; if that
# happens twice, it is kept in memory.

_MAY_PASS = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_READONLY,
}
_CUT_SHORT = sqlite3.SQLITE_IOERR_SHORT_READ


class IndexDatabase:
    def __init__(self, path: Path, survey: Survey) -> None:
        self._path = path
        self._survey = survey
        self._connection = open_database(path)
        self._tables = IndexTables(self._connection)
        self._uncommitted: list[IndexUpdate] = []
        self._began_anew = False
        self._has_given_up = False
        self._has_complained = False

    @property
    def untidy(self) -> bool:
        return self._tables.untidy and not self._has_given_up

    def take_in(self, notes: Sequence[IndexUpdate]) -> None:
        self._uncommitted += notes
        try:
            with transaction(self._connection):
                self._tables.apply(self._uncommitted)
            self._uncommitted = []
            self._has_given_up = self._has_complained = False
        except sqlite3.Error as error:
            self._cope(error)
        except Exception:
            # One of them is odd. It must not stand in the way of the others for ever.
            uncommitted, self._uncommitted = self._uncommitted, []
            self._tables = IndexTables(self._connection)
            self._take_in_singly(uncommitted)

    def answer(self, question: Callable[[IndexTables], _T]) -> _T:
        if self._uncommitted:
            self.take_in(())
        try:
            if self._uncommitted:
                return self._answer_as_if_settled(question)
            return question(self._tables)
        except sqlite3.Error as error:
            self._cope(error)
        try:
            return question(self._tables)
        except sqlite3.Error as error:
            self._begin_anew(error)
            return question(self._tables)

    def is_complete(self) -> bool:
        """Whether the database holds all updates and can be searched."""
        if self._uncommitted:
            self.take_in(())
        return not self._uncommitted and self._tables.texts is not None

    def changes(self) -> Iterator[Surveyed]:
        """The changes in the files that the index does not know yet."""
        yield from self._survey(self.answer(lambda tables: tables.stamps()))

    def tidy(self) -> None:
        self._has_given_up = True
        try:
            self._tables.tidy()
            self._has_given_up = False
        except sqlite3.Error as error:
            # What is left to do is written down in the database itself.
            self._cope(error)

    def close(self) -> None:
        try:
            checkpoint(self._connection)
        except sqlite3.Error as error:
            log.warning("%s is not as small as it could be: %s", self._path, error)
        self._connection.close()

    def _answer_as_if_settled(self, question: Callable[[IndexTables], _T]) -> _T:
        self._connection.execute("BEGIN")
        try:
            self._tables.apply(self._uncommitted)
            return question(self._tables)
        finally:
            roll_back(self._connection)
            self._tables = IndexTables(self._connection)

    def _cope(self, error: sqlite3.Error) -> None:
        # The primary code; SQLite tells some of them apart further.
        code = getattr(error, "sqlite_errorcode", 0)
        if code & 0xFF not in _MAY_PASS or code == _CUT_SHORT:
            self._begin_anew(error)
            return
        if not self._has_complained:
            self._has_complained = True
            log.warning("%s can't be used as it should now: %s", self._path, error)
        self._tables = IndexTables(self._connection)

    def _begin_anew(self, error: sqlite3.Error) -> None:
        log.error("%s is broken (%s) and is made anew from the files", self._path, error)
        self._connection.close()
        self._connection = in_memory() if self._began_anew else make_anew(self._path)
        self._began_anew = True
        self._tables = IndexTables(self._connection)
        uncommitted, self._uncommitted = self._uncommitted, []
        try:
            found = self._survey({})
            self._take_in_singly(note for note in found if note is not None)
        except (OSError, StorageError):
            log.exception("the files can't be surveyed: lists are not complete")
        self._take_in_singly(uncommitted)

    def _take_in_singly(self, notes: Iterable[IndexUpdate]) -> None:
        for note in notes:
            try:
                with transaction(self._connection):
                    self._tables.apply([note])
            except Exception:
                log.exception("%s can't be catalogued and is left out", type(note).__name__)
                self._tables = IndexTables(self._connection)


# ------------------------------------------------------------------------------
# The thread
#
# It runs jobs from a queue, in order. Updates are collected beside it and applied
# together, a moment later or before the next job: of a conversation that grows quickly
# only the last row is written. Long work is done in slices, and cleaning up when there is
# nothing else to do.

_LINGER_SECONDS = 0.2
_SEARCH_THREADS = 2
_SLICE_ENTRIES = 200
_Job: TypeAlias = Callable[[], None]


def settle(future: asyncio.Future[_T], settle_it: Callable[[], None]) -> None:
    """Settles a future from any thread. Nothing happens if its waiter has given up, or if the loop
    is gone because the program ended without closing the index."""

    def unless_given_up() -> None:
        if not future.done():
            settle_it()

    with suppress(RuntimeError):
        future.get_loop().call_soon_threadsafe(unless_given_up)


class ConversationIndex:
    """Updates are noted at once and never fail; questions see all earlier updates."""

    def __init__(self, path: Path, *, survey: Survey) -> None:
        """Opens or creates the database and starts the thread; blocks briefly. `catch_up` calls
        `survey`, and so does the rebuilding of a database that breaks."""
        self._path = path
        self._database = IndexDatabase(path, survey)
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._pending: deque[IndexUpdate] = deque()
        self._is_woken = False
        self._until_tidy: list[asyncio.Future[None]] = []
        self._searching: dict[str, anyio.Lock] = {}
        self._search_threads = anyio.CapacityLimiter(_SEARCH_THREADS)
        self._closing = False
        self._at_work = True
        # The database is whole whenever the process ends: nobody need wait for it.
        threading.Thread(target=self._work, name="nplt-index", daemon=True).start()

    # Taking note: quick, in order, never an error

    def note(self, row: ConversationRow, stamp: FileStamp, *entries: Entry) -> None:
        """Notes the conversation's row after these durable entries."""
        self._note(EntriesAdded(row=row, stamp=stamp, entries=entries))

    def touch(self, session_id: str, at: datetime) -> None:
        self._note(ConversationAccessed(session_id=session_id, at=at))

    def forget(self, session_id: str) -> None:
        self._note(ConversationGone(session_id=session_id))

    def note_prompts(self, found: PromptsFound) -> None:
        self._note(found)

    def _note(self, note: IndexUpdate) -> None:
        if self._closing:
            return
        self._pending.append(note)
        if not self._is_woken:
            self._is_woken = True
            self._jobs.put(None)

    # Taking in, and waiting for it

    async def catch_up(self) -> None:
        """Surveys the files slice by slice. Questions are answered between slices with what is
        known so far, so callers need not wait for this."""
        rest = self._database.changes()
        while not await self._do(lambda: self._take_in_slice(rest)):
            pass

    async def learn(self, piece: EntriesAdded) -> None:
        """Like `note`, for many entries (an import, a replaced file): waits until they are written,
        so that updates do not pile up."""
        await self._do(lambda: self._database.take_in([piece]))

    async def redact(self, row: ConversationRow, stamp: FileStamp, seq: int) -> None:
        """Removes that message from the index, and its words from the bytes of the database's
        files. Neither `row` nor the file may still contain it."""
        tidied: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def job() -> None:
            self._database.take_in([EntryRedacted(row=row, stamp=stamp, seq=seq)])
            self._until_tidy.append(tidied)

        await self._do(job)
        await tidied

    # Questions

    async def row(self, session_id: str) -> ConversationRow | None:
        return await self._ask(lambda tables: tables.row(session_id))

    async def known(self, session_id: str) -> tuple[ConversationRow, FileStamp] | None:
        """The row, and the stamp of the file it was made from."""
        return await self._ask(lambda tables: tables.known(session_id))

    async def list(self, user: str, query: RowQuery) -> RowPage:
        """Raises `BadCursor`."""
        return await self._ask(lambda tables: tables.page(user, query))

    async def count(self, user: str) -> int:
        return await self._ask(lambda tables: tables.count(user))

    async def search(self, user: str, query: SearchQuery) -> SearchPage:
        """Searches on a connection of its own, so that the writer does not wait; each user has one
        search at a time. Raises `BadCursor`, and `StorageUnavailable` if there is no index or the
        search takes too long."""

        def find(tables: IndexTables) -> SearchPage:
            return tables.search(user, query)

        def find_beside() -> SearchPage:
            with closing(open_reader(self._path)) as connection:
                return find(IndexTables(connection))

        turn = self._searching.setdefault(user, anyio.Lock())
        try:
            async with turn:
                if await self._do(self._database.is_complete):
                    with suppress(sqlite3.Error):
                        return await anyio.to_thread.run_sync(
                            find_beside, limiter=self._search_threads, abandon_on_cancel=True
                        )
                return await self._ask(find)  # which copes with a broken database
        finally:
            if not turn.statistics().locked and not turn.statistics().tasks_waiting:
                self._searching.pop(user, None)

    async def prompt(self, session_id: str, message_id: str) -> tuple[int | None, int]:
        """The prompt's number, and the entry up to which all prompts are known."""
        return await self._ask(lambda tables: tables.prompt(session_id, message_id))

    async def stamps(self, ids: Sequence[str] | None = None) -> dict[str, FileStamp]:
        """The stamps of these conversations, or of all."""
        return await self._ask(lambda tables: tables.stamps(ids))

    async def close(self) -> None:
        """Writes all updates to the file and closes it."""
        if self._closing:
            return
        done = self._submit(self._finish)
        self._closing = True
        await done

    async def _ask(self, question: Callable[[IndexTables], _T]) -> _T:
        return await self._do(lambda: self._database.answer(question))

    async def _do(self, work: Callable[[], _T]) -> _T:
        if self._closing:
            raise StorageUnavailable("the server is shutting down")
        return await self._submit(work)

    def _submit(self, work: Callable[[], _T]) -> asyncio.Future[_T]:
        done: asyncio.Future[_T] = asyncio.get_running_loop().create_future()

        def job() -> None:
            try:
                result = work()
            except sqlite3.Error as error:
                reason = StorageUnavailable(f"the catalogue can't be read: {error}")
                settle(done, lambda: done.set_exception(reason))
            except BaseException as error:
                settle(done, partial(done.set_exception, error))
            else:
                settle(done, lambda: done.set_result(result))

        self._jobs.put(job)
        return done

    # In the thread

    def _work(self) -> None:
        while self._at_work:
            try:
                job = self._next_job()
                self._is_woken = False
                if notes := [self._pending.popleft() for _ in range(len(self._pending))]:
                    self._database.take_in(notes)
                if job is not None:
                    job()
                elif self._database.untidy:
                    self._database.tidy()
            except Exception:
                log.exception("the catalogue goes on after a mistake in it")
            while self._until_tidy and not self._database.untidy:
                tidied = self._until_tidy.pop()
                settle(tidied, partial(tidied.set_result, None))

    def _finish(self) -> None:
        while self._until_tidy and self._database.untidy:
            self._database.tidy()
        self._at_work = False
        self._database.close()

    def _next_job(self) -> _Job | None:
        """The next job; `None` if it is time for pending updates or for tidying."""
        try:
            if self._database.untidy:
                return self._jobs.get_nowait()
            return self._jobs.get() or self._jobs.get(timeout=_LINGER_SECONDS)
        except Empty:
            return None

    def _take_in_slice(self, notes: Iterator[Surveyed]) -> bool:
        """Applies the next updates; true if they were the last."""
        batch: list[IndexUpdate] = []
        entries = 0
        is_last = True
        for note in notes:
            if note is not None:
                batch.append(note)
                entries += len(note.entries) + 1 if isinstance(note, EntriesAdded) else 1
            if note is None or entries >= _SLICE_ENTRIES:
                is_last = False
                break
        if batch:
            self._database.take_in(batch)
        return is_last
