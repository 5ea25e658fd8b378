"""The SQLite file of the index: its schema, and how it is opened, made and committed."""

from __future__ import annotations

import logging
import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from unicodedata import unidata_version
from urllib.parse import quote

from nplt_storage.file_system import Disk, NotOurs
from nplt_storage.search import WORDS_VERSION

log = logging.getLogger(__name__)


SCHEMA_VERSION: Final = 6
ROWS_VERSION: Final = 9
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
    attention INTEGER NOT NULL,
    troubled INTEGER NOT NULL,
    due INTEGER NOT NULL,
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
CREATE INDEX attention ON conversations (user, pinned, updated_at, session_id)
    WHERE attention = 1;
CREATE INDEX troubled ON conversations (user, pinned, updated_at, session_id)
    WHERE troubled = 1;
CREATE INDEX due ON conversations (user, pinned, updated_at, session_id)
    WHERE due = 1;
CREATE TABLE messages (
    id INTEGER PRIMARY KEY,
    conversation INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    at INTEGER NOT NULL,
    user INTEGER NOT NULL,
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
CREATE TABLE leftovers (conversation INTEGER PRIMARY KEY);
"""
# Words are separated here already: `ascii` leaves everything but ASCII alone.
_INDEX = """
CREATE VIRTUAL TABLE said USING fts5(words, content='', columnsize=0, tokenize='ascii')
"""
_LOCK_SECONDS = 0.25
"""The time to wait for another program's lock when the database is opened."""
_CACHE_KIB = 2048
"""The cache of each connection; the system has the rest of the file in memory too."""
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
            log.info("%s was made by another version and is built again", path)
    except (sqlite3.Error, OSError) as error:
        log.warning("%s can't be used (%s) and is built again", path, error)
    return create_database(path)


def create_database(path: Path) -> sqlite3.Connection:
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


def unnamed_database(directory: Path | None) -> sqlite3.Connection | None:
    """A database for one run of one process, in a file that has no name any more; `None` if it
    could hold no full text. If the directory does not exist, the file is in the next one above."""
    path = None
    if directory is not None:
        directory = next(each for each in (directory, *directory.parents) if each.is_dir())
        descriptor, name = tempfile.mkstemp(dir=directory, prefix=".search-")
        os.close(descriptor)
        path = Path(name)
    connection = sqlite3.connect(path or "", isolation_level=None, check_same_thread=False)
    with _closed_if_it_fails(connection):
        try:
            for setting in ("journal_mode=MEMORY", "synchronous=OFF", "mmap_size=0"):
                connection.execute(f"PRAGMA {setting}")
            if _has_fts5(connection):
                return _filled(connection, full_text=True)
        finally:
            if path is not None:
                path.unlink()
    connection.close()
    return None


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
        for setting in (*settings, "PRAGMA mmap_size=0", f"PRAGMA cache_size=-{_CACHE_KIB}"):
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
    words = f", words {WORDS_VERSION} of Unicode {unidata_version}" if full_text else ", no index"
    return f"schema {SCHEMA_VERSION}, rows {ROWS_VERSION}{words}"
