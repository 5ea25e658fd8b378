"""Full text of the conversations of users who search here.

Redis has no full-text search of its own. So each server keeps an index of a user's messages in
SQLite, from that user's first search on. Later searches read only what has changed meanwhile; the
channel of changes (`changes`) says which conversations that are, whichever server wrote them. When
changes may have been missed, because the connection was lost, the index is built again.

The index is in a file without a name, so nothing of it remains when the server stops. It only
proposes hits; the conversation's row in Redis decides. So a message that was rolled back, or whose
conversation was deleted or has expired, is not found.

A search reads until half of its time is over, the newest conversations first. If more is to be read
then, its page is marked `incomplete`, and the next search goes on from there.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

import anyio
import redis
from msgspec import Struct
from msgspec.structs import replace
from redis.exceptions import RedisError

from nplt_storage.entries import Entry
from nplt_storage.errors import (
    ConversationDamaged,
    ConversationHeld,
    ConversationNotFound,
    StorageUnavailable,
)
from nplt_storage.index.database import transaction, unnamed_database
from nplt_storage.index.full_text import TextIndex
from nplt_storage.redis.changes import TextChanges, are_published
from nplt_storage.redis.record import StoreParts
from nplt_storage.redis.row_reader import RowReader
from nplt_storage.redis.streams import StreamSource
from nplt_storage.redis.user_lists import read_place
from nplt_storage.rows import ConversationRow
from nplt_storage.search import SearchPage, SearchQuery

_USERS_MAX: Final = 200
"""The number of users whose index is kept; of more, those who searched last."""
_THREADS: Final = 4
_CONVERSATIONS_AT_ONCE: Final = 20
_ENTRIES_AT_ONCE: Final = 1000
_USER: Final = 1
"""Each index has one user."""


class SearchIndex:
    def __init__(self, parts: StoreParts, rows: RowReader, directory: Path | None) -> None:
        """`directory` is where SQLite keeps its files while they are in use; `None` for the
        system's directory of temporary files."""
        self._parts = parts
        self._rows = rows
        self._directory = directory
        self._users: dict[str, _UserIndex] = {}
        """The users who searched last are at the end."""
        self._threads: anyio.CapacityLimiter | None = None

    async def search(self, user: str, query: SearchQuery) -> SearchPage:
        if self._threads is None:
            self._threads = anyio.CapacityLimiter(_THREADS)
        in_thread = partial(self._parts.connection.in_thread, limiter=self._threads)
        index = self._users.pop(user, None) or _UserIndex(
            user, self._parts, self._rows, self._directory
        )
        self._users[user] = index
        async with index.turn:
            until = anyio.current_time() + query.seconds_max / 2
            try:
                await in_thread(index.take_changes)
                while not await in_thread(index.read_some) and anyio.current_time() < until:
                    pass
                page = await in_thread(index.search, query)
            except (sqlite3.Error, OSError) as error:
                index.forget()
                raise StorageUnavailable(f"messages can't be searched now: {error}") from error
        for name, unused in [*self._users.items()][:-_USERS_MAX]:
            if not unused.turn.statistics().locked:
                del self._users[name]
                await in_thread(unused.close)
        return page

    def close(self) -> None:
        for index in self._users.values():
            index.close()


class _Known(Struct):
    key: int
    head_seq: int = 0
    """The entry up to which it is indexed."""


class _UserIndex:
    """The index of one user. Its methods block; `turn` lets one caller in at a time."""

    def __init__(
        self, user: str, parts: StoreParts, rows: RowReader, directory: Path | None
    ) -> None:
        self.turn = anyio.Lock()
        self._user = user
        self._connection = parts.connection
        self._published = parts.changes
        self._rows = rows
        self._directory = directory
        self._changes: TextChanges | None = None
        self._database: sqlite3.Connection | None = None
        self._texts: TextIndex | None = None
        self._known: dict[str, _Known] = {}
        self._ids: list[str] = []
        """Session ids by key."""
        self._due: dict[str, bool] = {}
        """The conversations to be read, and whether messages that are indexed were rewritten."""
        self._put_off: dict[str, bool] = {}
        """The conversations on nodes of a cluster that are away. The next search reads them."""

    def close(self) -> None:
        self._published.unfollow_texts(self._user)
        self._changes = None
        self.forget()

    def forget(self) -> None:
        if self._database is not None:
            self._database.close()
        self._database = self._texts = None
        self._known, self._ids, self._due, self._put_off = {}, [], {}, {}

    # Reading what has changed

    def take_changes(self) -> None:
        """Finds out which conversations have to be read."""
        changed = self._changed()
        if self._database is None or changed is None:
            self._begin()
            return
        put_off, self._put_off = self._put_off, {}
        for some in (put_off, changed):
            for session_id, is_rewritten in some.items():
                self._due[session_id] = is_rewritten or self._due.get(session_id, False)

    def _changed(self) -> Mapping[str, bool] | None:
        """`None` if any conversation may have changed."""
        try:
            if self._changes is None:
                if not are_published(self._connection):
                    return None
                self._changes = self._published.follow_texts(self._user)
            self._published.settle()
        except (redis.ConnectionError, redis.TimeoutError):
            if not self._connection.is_cluster:
                raise
            if self._changes is not None:  # its node is away; another will be asked
                self._changes.note_missed()
            return None
        return self._changes.take()

    def _begin(self) -> None:
        self.forget()
        key = self._connection.keyspace.of_user("user", self._user)
        places = self._connection.ask("ZREVRANGE", key, 0, -1)  # the newest first
        database = unnamed_database(self._directory)
        if database is None:
            raise StorageUnavailable("messages can't be searched: this SQLite has no FTS5")
        self._due = {read_place(place)[1]: False for place in places}
        self._database, self._texts = database, TextIndex(database)

    def read_some(self) -> bool:
        """Reads some of the conversations that are due; returns whether those were the last."""
        due = list(islice(self._due, _CONVERSATIONS_AT_ONCE))
        sources: dict[str, StreamSource] = {}
        for session_id, row in zip(due, self._rows.each(due), strict=True):
            if isinstance(row, RedisError):
                self._put_off[session_id] = self._due.pop(session_id)
            elif not isinstance(row, ConversationRow) or row.user != self._user:
                self._remove(session_id)
                del self._due[session_id]
            else:
                if self._due[session_id] or row.head_seq < self._head_of(session_id):
                    self._remove(session_id)
                    self._due[session_id] = False
                sources[session_id] = StreamSource(self._connection, session_id, row.head_seq)
        begun = self._connection.ask_each(
            [self._connection.keyspace.of(id_).log for id_ in sources],
            [source.first_command_after(self._head_of(id_)) for id_, source in sources.items()],
        )
        for (session_id, source), lines in zip(sources.items(), begun, strict=True):
            try:
                if isinstance(lines, RedisError):
                    raise lines
                is_read = self._read(session_id, source, lines)
            except ConversationNotFound:
                self._remove(session_id)
                is_read = True
            except (redis.ConnectionError, redis.TimeoutError):
                if not self._connection.is_cluster:
                    raise
                self._put_off[session_id] = is_read = False
                del self._due[session_id]
            if is_read:
                del self._due[session_id]
        return not self._due

    def _read(self, session_id: str, source: StreamSource, begun: Any) -> bool:
        """Returns whether all of it was read, as far as it can be."""
        known = self._known.get(session_id)
        if known is None:
            self._ids.append(session_id)
            known = self._known[session_id] = _Known(len(self._ids))
        entries: list[Entry] = []
        is_all = True
        with suppress(ConversationDamaged):  # the rest can't be searched
            for entry in source.after(known.head_seq, begun):
                entries.append(entry)
                if len(entries) == _ENTRIES_AT_ONCE:
                    is_all = entry.seq == source.head_seq
                    break
        assert self._database is not None
        assert self._texts is not None
        with transaction(self._database):
            self._texts.add(known.key, _USER, entries)
        known.head_seq = source.head_seq if is_all else entries[-1].seq
        return is_all

    def _head_of(self, session_id: str) -> int:
        known = self._known.get(session_id)
        return known.head_seq if known else 0

    def _remove(self, session_id: str) -> None:
        if known := self._known.pop(session_id, None):
            assert self._database is not None
            assert self._texts is not None
            with transaction(self._database):
                self._texts.remove("conversation = ?", known.key)

    # Searching

    def search(self, query: SearchQuery) -> SearchPage:
        assert self._texts is not None
        first = self._known.get(query.first_in or "")
        page = self._texts.page(_USER, query, first.key if first else None, self._row_of)
        return replace(page, incomplete=bool(self._due or self._put_off))

    def _row_of(self, key: int) -> ConversationRow | None:
        """The row, with what was trimmed hidden too."""
        session_id = self._ids[key - 1]
        if session_id in self._put_off:
            return None
        try:
            row = self._rows.row(session_id)
        except ConversationHeld:
            return None
        except (redis.ConnectionError, redis.TimeoutError):
            if not self._connection.is_cluster:
                raise
            self._put_off[session_id] = False
            return None
        if row is None or row.user != self._user:
            return None
        return replace(row, hidden=(*row.hidden, (1, row.first_seq - 1)))
