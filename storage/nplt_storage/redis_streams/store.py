"""The store whose conversations are kept in Redis. Layout and rules: the package's docstring."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Any, Final

from nplt_storage.conversation.paging import MessagePage, PageQuery, read_page
from nplt_storage.conversation.row_json import row_as_bytes
from nplt_storage.conversation.row_lists import RowPage, RowQuery, place_of
from nplt_storage.conversation.rows import ConversationRow, new_row
from nplt_storage.conversation.searching import SearchPage, SearchQuery, search_entries
from nplt_storage.conversation.sent_before import SentBefore
from nplt_storage.conversation.views import content_of
from nplt_storage.errors import (
    BadEntry,
    ConversationExists,
    ConversationNotFound,
    ConversationReadOnly,
)
from nplt_storage.facts.entries import Entry
from nplt_storage.facts.json_values import check_text
from nplt_storage.ids import is_session_id, new_entry_id
from nplt_storage.redis_streams import scripts
from nplt_storage.redis_streams.building import RedisBuilder, origin_as_bytes, origin_from_bytes
from nplt_storage.redis_streams.connection import (
    Argument,
    RedisConnection,
    check_version,
    how_durable,
)
from nplt_storage.redis_streams.finding import Finder
from nplt_storage.redis_streams.keys import Keyspace, place_as_bytes
from nplt_storage.redis_streams.leases import Leases
from nplt_storage.redis_streams.lists import Lists
from nplt_storage.redis_streams.opening import Opener
from nplt_storage.redis_streams.record import Limits, RedisRecord, Surroundings, WriterState
from nplt_storage.redis_streams.resent import Prompts
from nplt_storage.redis_streams.sender import Sender, Touches
from nplt_storage.store import Builder, Opened, Origin, Record, StoreDescription

TRASH_SECONDS: Final = 30 * 24 * 3600
_BATCH_ENTRIES: Final = 100


class RedisStore:
    def __init__(
        self,
        connection: RedisConnection,
        *,
        clock: Callable[[], datetime],
        keyspace: Keyspace,
        limits: Limits,
        promise: str,
    ) -> None:
        self.description = StoreDescription(backend="redis", promise=promise)
        self._clock = clock
        self._connection = connection
        self._keyspace = keyspace
        self._limits = limits
        self._sender = Sender()
        self._touches = Touches(
            self._sender, connection, keyspace, ttl_milliseconds=limits.ttl_milliseconds
        )
        self._lists = Lists(connection, keyspace, self._touches)
        self._finder = Finder(connection, keyspace, self._lists, limits)
        self._prompts = Prompts(connection, keyspace, self._finder)
        self._leases = Leases(connection)
        around = Surroundings(
            connection=connection, keyspace=keyspace, limits=limits, leases=self._leases
        )
        self._opener = Opener(self._finder, around, self._sender, closed=self._forget_writer)
        self._writers: dict[str, RedisRecord | None] = {}
        self._unheard: dict[str, str] = {}
        """Creations that may have succeeded: their `rev`, by id."""

    @classmethod
    async def open_url(
        cls,
        url: str,
        *,
        clock: Callable[[], datetime],
        key_prefix: str = "nplt:",
        ttl_seconds: int | None = None,
        max_turns: int | None = None,
        timeout_seconds: float = 5.0,
    ) -> RedisStore:
        connection = RedisConnection(url, timeout_seconds=timeout_seconds)

        def greet() -> str:
            check_version(connection)
            return how_durable(connection)

        try:
            promise = await connection.in_thread(greet)
        except BaseException:
            connection.close()
            raise
        limits = Limits(ttl_milliseconds=(ttl_seconds or 0) * 1000, max_turns=max_turns or 0)
        return cls(
            connection, clock=clock, keyspace=Keyspace(key_prefix), limits=limits, promise=promise
        )

    @property
    def read_only_reason(self) -> str | None:
        return self._connection.trouble

    # One conversation

    async def create(self, session_id: str, *, user: str) -> Record:
        _check_id(session_id)
        check_text(user, "the user's name")
        now = self._clock()
        row = new_row(session_id, user=user, created_at=now)
        rev = self._unheard.pop(session_id, None) or new_entry_id()
        origin = origin_as_bytes(Origin(user=user, created_at=now))
        place = place_as_bytes(place_of(row))
        try:
            await self._run(
                scripts.CREATE,
                session_id,
                *self._leases.arguments,
                *(row_as_bytes(row), place, user, origin, rev, self._limits.ttl_milliseconds),
            )
        except ConversationExists:
            raise
        except BaseException:
            self._unheard[session_id] = rev
            raise
        return self._registered(self._opener.writer(WriterState(row=row, rev=rev)))

    async def open(self, session_id: str) -> Opened:
        _check_id(session_id)
        if session_id in self._writers:
            raise ConversationReadOnly(session_id, "it is open already")
        self._writers[session_id] = None  # nobody else meanwhile
        try:
            opened, record = await self._connection.in_thread(
                partial(self._opener.open, session_id)
            )
            self._registered(record)
            return opened
        finally:
            if self._writers.get(session_id) is None:
                self._writers.pop(session_id, None)

    async def page(self, session_id: str, query: PageQuery) -> MessagePage:
        def read() -> MessagePage:
            row = self._finder.row(session_id)
            return read_page(query, self._finder.source(row), hidden=row.hidden)

        return await self._connection.in_thread(read)

    async def text_of(self, session_id: str, seq: int) -> str | None:
        def read() -> str | None:
            entry = self._finder.source(self._finder.row(session_id)).at(seq)
            return None if entry is None else content_of(entry)

        return await self._connection.in_thread(read)

    async def prompt_with(self, session_id: str, message_id: str) -> SentBefore | None:
        return await self._connection.in_thread(partial(self._prompts.find, session_id, message_id))

    async def blob(self, session_id: str, blob_id: str, offset: int, length: int) -> bytes:
        if offset < 0 or length < 0:
            raise BadEntry("a range of bytes begins at 0 or later and has no negative length")

        def read() -> bytes:
            self._finder.row(session_id)
            key = self._keyspace.of(session_id).blob(blob_id)
            if not self._connection.ask("EXISTS", key):
                raise BadEntry(f"there is no blob {blob_id!r}")
            if length == 0:
                return b""
            return bytes(self._connection.ask("GETRANGE", key, offset, offset + length - 1))

        return await self._connection.in_thread(read)

    async def entries(
        self, session_id: str, *, after: int = 0, through: int | None = None
    ) -> AsyncIterator[Sequence[Entry]]:
        begin = partial(self._finder.entries, session_id, after=after, through=through)
        walk = await self._connection.in_thread(begin)
        while batch := await self._connection.in_thread(lambda: list(islice(walk, _BATCH_ENTRIES))):
            yield batch

    async def origin(self, session_id: str) -> Origin:
        def read() -> Origin:
            self._finder.row(session_id)
            meta = self._keyspace.of(session_id).meta
            return origin_from_bytes(self._connection.ask("HGET", meta, "origin"))

        return await self._connection.in_thread(read)

    @asynccontextmanager
    async def build(self, session_id: str, origin: Origin) -> AsyncIterator[Builder]:
        _check_id(session_id)
        if await self.row(session_id) is not None:
            raise ConversationExists(session_id)
        builder = RedisBuilder(session_id, origin, self._connection, self._keyspace)
        try:
            yield builder
            finished = builder.finished(ttl_milliseconds=self._limits.ttl_milliseconds)
            await self._run(scripts.PUBLISH, session_id, *finished, also=builder.base)
        except BaseException:
            await builder.drop()
            raise

    async def delete(self, session_id: str) -> None:
        trash = self._keyspace.in_trash(session_id).base
        await self._run(scripts.DELETE, session_id, TRASH_SECONDS * 1000, also=trash)
        if writer := self._writers.pop(session_id, None):
            writer.is_lost()

    async def undelete(self, session_id: str, *, user: str | None = None) -> None:
        trash = self._keyspace.in_trash(session_id).base
        ttl = self._limits.ttl_milliseconds
        whose = () if user is None else (user,)
        await self._run(scripts.UNDELETE, session_id, ttl, *whose, also=trash)

    async def is_trash_of_another(self, session_id: str, user: str) -> bool:
        meta = self._keyspace.in_trash(session_id).meta
        whose = await self._connection.in_thread(lambda: self._connection.ask("HGET", meta, "user"))
        return whose not in (None, user.encode())

    # All of them

    async def row(self, session_id: str) -> ConversationRow | None:
        if not is_session_id(session_id):
            return None
        return await self._connection.in_thread(partial(self._lists.row, session_id))

    async def list(self, user: str, query: RowQuery) -> RowPage:
        return await self._connection.in_thread(partial(self._lists.page, user, query))

    async def count(self, user: str) -> int:
        return await self._connection.in_thread(partial(self._lists.count, user))

    async def search(self, user: str, query: SearchQuery) -> SearchPage:
        """Reads everything the user has: Redis alone has no index of words."""

        def pairs() -> Iterator[tuple[ConversationRow, Entry]]:
            for row in self._lists.all_of(user):
                for entry in self._finder.source(row).after(0):
                    yield row, entry

        return await self._connection.in_thread(lambda: search_entries(pairs(), query))

    def touch(self, session_id: str, at: datetime) -> None:
        if is_session_id(session_id):
            self._touches.note(session_id, at)

    async def close(self) -> None:
        for writer in [writer for writer in self._writers.values() if writer is not None]:
            await writer.close()
        await self._connection.in_thread(self._leases.close)
        await self._connection.in_thread(self._sender.close)
        self._connection.close()

    def _registered(self, record: RedisRecord) -> RedisRecord:
        self._writers[record.session_id] = record
        self._leases.keep(self._keyspace.of(record.session_id).base)
        return record

    def _forget_writer(self, record: RedisRecord) -> None:
        if self._writers.get(record.session_id) is record:
            del self._writers[record.session_id]

    async def _run(
        self, script: str, session_id: str, *arguments: Argument, also: str | None = None
    ) -> None:
        if not is_session_id(session_id):
            raise ConversationNotFound(session_id)
        keys = [self._keyspace.of(session_id).base, self._keyspace.prefix]
        keys += [also] if also else []
        answer: Any = await self._connection.in_thread(
            lambda: self._connection.run(script, keys, *arguments)
        )
        if answer == b"gone":
            raise ConversationNotFound(session_id)
        if answer == b"taken":
            raise ConversationExists(session_id)


def _check_id(session_id: str) -> None:
    if not is_session_id(session_id):
        raise ConversationNotFound(session_id)
