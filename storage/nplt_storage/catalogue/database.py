"""The SQLite file: opened, or made anew. Whatever is odd about it, it goes.

    conversations   a row for each, and the stamp of the file it was made from
    users           numbers for their names
    messages        what was said, numbered by time so that the newest come first
    said            the words of the messages; FTS5 without a copy of the text
    prompts         which entry a prompt is, by its sender's own name for it
    prompts_known   how far a conversation's prompts are known without a gap
    leftovers       conversations that are gone, whose messages are still here
    marks           by what it was made; whether words are still to be erased

A commit is not synced: after a power cut the database is whole, and may lack
what was last noted, which the files' stamps give away. Freed pages are zeroed.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from nplt_storage.conversation.words import WORDS_VERSION

log = logging.getLogger(__name__)

SCHEMA_VERSION: Final = 2
ROWS_VERSION: Final = 2
"""Raised when `rows.fold` makes another row of the same entries."""

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
_SETTINGS = (
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=NORMAL",
    "PRAGMA secure_delete=ON",
    "PRAGMA cache_size=-8192",
    # What can't be written (a full disk) can be asked about before it is rolled back.
    "PRAGMA cache_spill=OFF",
    "PRAGMA wal_autocheckpoint=4096",
    "PRAGMA journal_size_limit=16777216",
)


def open_database(path: Path) -> sqlite3.Connection:
    """Never fails: at worst the database is in memory, and without an index."""
    try:
        return _as_it_is(path) or make_anew(path)
    except (sqlite3.Error, OSError) as error:
        log.warning("%s can't be used (%s) and is made anew", path, error)
        return make_anew(path)


def make_anew(path: Path) -> sqlite3.Connection:
    try:
        for part in ("", "-wal", "-shm", "-journal"):
            path.with_name(path.name + part).unlink(missing_ok=True)
        connection = _connected(path)
        return _filled(connection, index=_can_index(connection))
    except (sqlite3.Error, OSError) as error:
        log.error("%s can't be made (%s): lists are kept in memory, search is off", path, error)
        return in_memory()


def in_memory() -> sqlite3.Connection:
    """For lists alone: what was said may be far more than memory holds."""
    return _filled(_connected(Path(":memory:")), index=False)


def has_index(connection: sqlite3.Connection) -> bool:
    found = connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'said'").fetchone()
    return found is not None


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
    """Brings all that was committed into the database itself, and leaves nothing in its
    journal; not while someone else is reading."""
    busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return not busy


def _as_it_is(path: Path) -> sqlite3.Connection | None:
    if not path.exists():
        return None
    connection = _connected(path)
    try:
        question = "SELECT value FROM marks WHERE name = 'made_by'"
        (made_by,) = connection.execute(question).fetchone() or (None,)
        if made_by == _made_by(index=_can_index(connection)):
            return connection
    except BaseException:
        connection.close()
        raise
    connection.close()
    log.info("%s was made by another version and is made anew", path)
    return None


def _connected(path: Path) -> sqlite3.Connection:
    if str(path) != ":memory:":
        # SQLite gives the files beside it the same rights.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        for setting in _SETTINGS:
            connection.execute(setting)
    except BaseException:
        connection.close()
        raise
    return connection


def _filled(connection: sqlite3.Connection, *, index: bool) -> sqlite3.Connection:
    try:
        connection.executescript(_TABLES)
        if index:
            connection.execute(_INDEX)
            # Many small batches: merged less often, which questions hardly notice.
            connection.execute("INSERT INTO said (said, rank) VALUES ('automerge', 8)")
        marks = ("made_by", _made_by(index=index))
        connection.execute("INSERT INTO marks VALUES (?, ?)", marks)
    except BaseException:
        connection.close()
        raise
    return connection


def _can_index(connection: sqlite3.Connection) -> bool:
    question = "SELECT 1 FROM pragma_module_list WHERE name = 'fts5'"
    found = connection.execute(question).fetchone() is not None
    if not found:
        log.warning("this SQLite has no FTS5: what was said can't be searched")
    return found


def _made_by(*, index: bool) -> str:
    words = f", words {WORDS_VERSION}" if index else ", no index"
    return f"schema {SCHEMA_VERSION}, rows {ROWS_VERSION}{words}"
