"""The store whose conversations are kept in Redis; the package's docstring has the layout."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Any, Final

import orjson
from msgspec.structs import replace
from redis.exceptions import RedisError

from nplt_storage.codec import time_as_text
from nplt_storage.entries import BlobReference, CheckpointEntry, Entry
from nplt_storage.errors import (
    BadEntry,
    ConversationDamaged,
    ConversationExists,
    ConversationNotFound,
    ConversationReadOnly,
)
from nplt_storage.history import ConversationHistory, SentBefore, sent_before
from nplt_storage.ids import is_session_id, new_entry_id
from nplt_storage.json_values import check_text
from nplt_storage.messages import content_of
from nplt_storage.pages import MessagePage, PageQuery, read_end, read_page
from nplt_storage.redis import scripts
from nplt_storage.redis.connection import (
    Argument,
    Keyspace,
    Leases,
    NewStream,
    RedisConnection,
    StreamSource,
    check_version,
    decode_checkpoint,
    how_durable,
    name_of,
    place_as_bytes,
    place_in_stream,
    session_id_in,
)
from nplt_storage.redis.record import (
    AccessTimes,
    PartialAnswers,
    RedisContext,
    RedisRecord,
    Sender,
    WriterState,
    decode_pieces,
)
from nplt_storage.rows import (
    ConversationRow,
    RowPage,
    RowQuery,
    cut_page,
    fold,
    fold_all,
    matches,
    new_row,
    place_of,
    read_checkpoint,
    read_cursor,
    row_as_bytes,
    row_from_bytes,
)
from nplt_storage.search import SearchPage, SearchQuery, search_entries
from nplt_storage.store import (
    Builder,
    DeletedConversation,
    Opened,
    Origin,
    PartialAnswer,
    Record,
    StoreDescription,
    not_yet_an_entry,
)

_ROWS_AT_ONCE: Final = 200
_COUNTED_AT_ONCE: Final = 1000


class RedisReader:
    """Rows, lists, lines and prompts. Blocking: used inside a worker thread."""

    def __init__(self, context: RedisContext, touches: AccessTimes) -> None:
        self._connection = context.connection
        self._keyspace = context.keyspace
        self._ttl_milliseconds = context.ttl_milliseconds
        self._touches = touches

    # Rows and lists: a sorted set per user holds the order
    #
    # A conversation that expired or was evicted is still in its user's list; whoever
    # reads the list removes it. One that moves in the list while it is read appears at
    # its new place or not at all.

    def row_of(self, session_id: str) -> ConversationRow | None:
        found = self._connection.ask(
            "HMGET", self._keyspace.of(session_id).meta, "row", "accessed", "damaged"
        )
        return self._decode(session_id, found)

    def row(self, session_id: str) -> ConversationRow:
        row = self.row_of(session_id) if is_session_id(session_id) else None
        if row is None:
            raise ConversationNotFound(session_id)
        return row

    def page(self, user: str, query: RowQuery) -> RowPage:
        wanted: list[ConversationRow] = []
        for row in self.rows(user, query.cursor, at_first=query.limit + 1):
            if matches(row, query):
                wanted.append(row)
                if len(wanted) > query.limit:
                    break
        return cut_page(wanted, query.limit)

    def count(self, user: str) -> int:
        places = self._connection.ask("ZRANGE", self._keyspace.list_of(user), 0, -1)
        ids = [session_id_in(place) for place in places]
        there = 0
        for start in range(0, len(ids), _COUNTED_AT_ONCE):
            some = ids[start : start + _COUNTED_AT_ONCE]
            there += self._connection.ask("EXISTS", *(self._keyspace.of(id_).meta for id_ in some))
        return there

    def rows(
        self, user: str, cursor: str | None = None, *, at_first: int = _ROWS_AT_ONCE
    ) -> Iterator[ConversationRow]:
        count = min(at_first, _ROWS_AT_ONCE)
        below = "+" if cursor is None else b"(" + place_as_bytes(read_cursor(cursor))
        while True:
            places = self._connection.ask(
                *("ZREVRANGEBYLEX", self._keyspace.list_of(user), below, "-"),
                *("LIMIT", 0, count),
            )
            for place, row in zip(places, self._rows_at(places), strict=True):
                if row is not None and place_as_bytes(place_of(row)) == place:
                    yield row
                elif row is None:
                    keys = [self._keyspace.of(session_id_in(place)).base, self._keyspace.prefix]
                    keys.append(self._keyspace.list_of(user))
                    self._connection.run(scripts.FORGET_PLACE, keys, place)
            if len(places) < count:
                return
            below, count = b"(" + places[-1], _ROWS_AT_ONCE

    def _rows_at(self, places: list[bytes]) -> list[ConversationRow | None]:
        ids = [session_id_in(place) for place in places]
        found = self._connection.ask_many(
            [("HMGET", self._keyspace.of(id_).meta, "row", "accessed", "damaged") for id_ in ids]
        )
        return [self._decode(id_, fields) for id_, fields in zip(ids, found, strict=True)]

    def _decode(self, session_id: str, found: list[bytes | None]) -> ConversationRow | None:
        """From the fields row, accessed, damaged."""
        data, accessed, damaged = found[:3]
        if data is None:
            return None
        row = row_from_bytes(data)
        times = [row.last_accessed]
        if accessed is not None:
            times.append(datetime.fromisoformat(accessed.decode()))
        if noted := self._touches.noted(session_id):
            times.append(noted)
        return replace(row, last_accessed=max(times), damaged=damaged is not None)

    def trash(self, user: str) -> list[DeletedConversation]:
        """Those that have expired, or were replaced by another's, leave the list."""
        found: list[DeletedConversation] = []
        for place in self._connection.ask("ZREVRANGE", self._keyspace.deleted_of(user), 0, -1):
            session_id = place.decode()
            meta = self._keyspace.in_trash(session_id).meta
            fields = self._connection.ask("HMGET", meta, "row", "accessed", "damaged", "deleted")
            row = self._decode(session_id, fields)
            if row is None or row.user != user:
                self._connection.call("ZREM", self._keyspace.deleted_of(user), place)
            else:
                at = datetime.fromisoformat(fields[3].decode())
                found.append(DeletedConversation(row=row, deleted_at=at))
        return found

    # One conversation and its lines

    def find(
        self, session_id: str, *, owner: Sequence[Argument] = ()
    ) -> tuple[WriterState, PartialAnswer | None]:
        """All of it but its lines, as of one moment; it has been used then, and expires later.
        With `owner`, as `Leases` tells it, it is the owner's from then on."""
        if not is_session_id(session_id):
            raise ConversationNotFound(session_id)
        keys = [self._keyspace.of(session_id).base, self._keyspace.prefix]
        found: Any = self._connection.run(scripts.OPEN, keys, self._ttl_milliseconds, *owner)
        if found == b"held":
            raise ConversationReadOnly(session_id, "another server has it open")
        row = None if isinstance(found, bytes) else self._decode(session_id, found)
        if row is None:
            raise ConversationNotFound(session_id)
        rev, checkpoint, live = (bytes(part or b"") for part in found[3:])
        checkpoint_entry = decode_checkpoint(session_id, checkpoint)
        state = WriterState(row=row, rev=rev.decode(), checkpoint=checkpoint_entry)
        return state, decode_pieces(live)

    def check_ends(self, found: WriterState) -> None:
        """Redis evicts keys one by one: what is left may look whole."""
        row, source = found.row, self.source(found.row)
        if row.first_seq > 1 and found.checkpoint is None:
            raise ConversationDamaged(row.session_id, "its checkpoint is not there")
        for seq in (row.first_seq, row.head_seq):
            if row.first_seq <= row.head_seq and source.at(seq) is None:
                raise ConversationDamaged(row.session_id, f"entry {seq} is not there")

    def source(self, row: ConversationRow, *, head_seq: int | None = None) -> StreamSource:
        log = self._keyspace.of(row.session_id).log
        head = row.head_seq if head_seq is None else head_seq
        return StreamSource(row.session_id, log, self._connection, head_seq=head)

    def entries(self, session_id: str, *, after: int, through: int | None) -> Iterator[Entry]:
        """Where lines were trimmed, the checkpoint that stands for them comes first."""
        found, _ = self.find(session_id)
        last = found.row.head_seq if through is None else min(through, found.row.head_seq)

        def walk() -> Iterator[Entry]:
            if found.checkpoint is not None and after < found.checkpoint.seq <= last:
                yield found.checkpoint
            yield from self.source(found.row, head_seq=last).after(after)

        return walk()

    # Finding a prompt by its message_id
    #
    # A hash has the number of every prompt that has a message_id. Of a trimmed one it
    # keeps the turn and its state, so that it does not run again either. A number is
    # believed once its line was read. `meta` counts the names: if some are missing
    # (Redis evicts keys), the stream is read and they are added again.

    def prompt(self, session_id: str, message_id: str) -> SentBefore | None:
        row = self.row(session_id)
        noted, is_all = self._noted(session_id, message_id)
        if not is_all:
            self._note_again(row)
            noted, _ = self._noted(session_id, message_id)
        if noted is None:
            return None
        source = self.source(row, head_seq=max(row.head_seq, noted[0]))
        following = source.after(noted[0] - 1)
        found = sent_before(following, message_id=message_id, hidden=row.hidden)
        if found is None:  # trimmed, perhaps just now
            noted, _ = self._noted(session_id, message_id)
            found = None if noted is None else _trimmed(noted)
        return found

    def _noted(self, session_id: str, message_id: str) -> tuple[list[Any] | None, bool]:
        """What is noted under that name, and whether all names are there."""
        keys = [self._keyspace.of(session_id).base, self._keyspace.prefix]
        noted, is_all = self._connection.run(scripts.PROMPT_BY_MESSAGE_ID, keys, message_id)
        return (None if noted is None else orjson.loads(noted)), bool(is_all)

    def _note_again(self, row: ConversationRow) -> None:
        keys = self._keyspace.of(row.session_id)
        self._connection.call_many(
            ("HSETNX", keys.prompts, name, place_in_stream(entry))
            for entry in self.source(row).after(0)
            if (name := name_of(entry))
        )
        self._connection.run(scripts.COUNT_PROMPTS, [keys.base, self._keyspace.prefix])


def _trimmed(noted: list[Any]) -> SentBefore | None:
    match noted:
        case [int(seq), str(turn_id), "completed" | "interrupted" | "failed" as state]:
            return SentBefore(seq=seq, turn_id=turn_id, state=state, text=None)
        case _:
            return None


# ------------------------------------------------------------------------------
# Building a conversation, whole or not at all


class RedisBuilder:
    def __init__(
        self, session_id: str, origin: Origin, connection: RedisConnection, keyspace: Keyspace
    ) -> None:
        self._origin = origin
        self._connection = connection
        self._made = NewStream(connection, keyspace)
        self._row = new_row(session_id, user=origin.user, created_at=origin.created_at)

    @property
    def base(self) -> str:
        return self._made.keys.base

    async def add(self, entries: Sequence[Entry]) -> None:
        await self._connection.in_thread(partial(self._add, entries))

    async def keep_blob(self, data: bytes) -> BlobReference:
        blob = BlobReference.of(data)
        await self._connection.in_thread(partial(self._made.keep_blob, blob.blob_id, data))
        return blob

    async def drop(self) -> None:
        await self._connection.in_thread(self._made.drop)

    def finished(self, *, ttl_milliseconds: int) -> list[Argument]:
        """What the script needs to know that makes it visible."""
        row = self._row
        return [
            *(row_as_bytes(row), place_as_bytes(place_of(row)), row.user),
            *(origin_as_bytes(self._origin), new_entry_id(), row.head_seq, ttl_milliseconds),
        ]

    def _add(self, entries: Sequence[Entry]) -> None:
        first = entries[0] if entries else None
        if self._row.head_seq == 0 and isinstance(first, CheckpointEntry) and first.seq > 1:
            self._begin_with(first)
            entries = entries[1:]
        self._made.add(entries)
        self._row = fold_all(self._row, entries)

    def _begin_with(self, first: CheckpointEntry) -> None:
        """A copy of a conversation that was trimmed begins with what is left of the rest."""
        found = read_checkpoint(first)
        if found is None:
            raise BadEntry(f"entry {first.seq} can't be the first: its state can't be read")
        self._made.add_checkpoint(first)
        self._row = replace(
            fold(found.row, first),
            session_id=self._row.session_id,
            user=self._origin.user,
            created_at=self._origin.created_at,
            first_seq=first.seq + 1,
        )


def origin_as_bytes(origin: Origin) -> bytes:
    return orjson.dumps(
        {
            "user": origin.user,
            "created_at": time_as_text(origin.created_at),
            "extra": dict(origin.extra),
        }
    )


def origin_from_bytes(data: bytes) -> Origin:
    source = orjson.loads(data)
    return Origin(
        user=source["user"],
        created_at=datetime.fromisoformat(source["created_at"]),
        extra=source["extra"],
    )


TRASH_SECONDS: Final = 30 * 24 * 3600
_BATCH_ENTRIES: Final = 100


class RedisStore:
    def __init__(
        self, context: RedisContext, *, clock: Callable[[], datetime], promise: str
    ) -> None:
        self.description = StoreDescription(backend="redis", promise=promise)
        self._clock = clock
        self._context = context
        self._connection = context.connection
        self._keyspace = context.keyspace
        self._leases = context.leases
        self._ttl_milliseconds = context.ttl_milliseconds
        self._sender = Sender()
        self._touches = AccessTimes(self._sender, context)
        self._reader = RedisReader(context, self._touches)
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
        context = RedisContext(
            connection=connection,
            keyspace=Keyspace(key_prefix),
            leases=Leases(connection),
            ttl_milliseconds=(ttl_seconds or 0) * 1000,
            turns_max=max_turns or 0,
        )
        return cls(context, clock=clock, promise=promise)

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
                *(row_as_bytes(row), place, user, origin, rev, self._ttl_milliseconds),
            )
        except ConversationExists:
            raise
        except BaseException:
            self._unheard[session_id] = rev
            raise
        return self._registered(self._writer(WriterState(row=row, rev=rev)))

    async def open(self, session_id: str) -> Opened:
        _check_id(session_id)
        if session_id in self._writers:
            raise ConversationReadOnly(session_id, "it is open already")
        self._writers[session_id] = None  # reserved while it is being opened
        try:
            opened, record = await self._connection.in_thread(partial(self._open, session_id))
            self._registered(record)
            return opened
        finally:
            if self._writers.get(session_id) is None:
                self._writers.pop(session_id, None)

    def _open(self, session_id: str) -> tuple[Opened, RedisRecord]:
        """Blocks. Nothing is left of it if it fails, but a word in lists about what is
        damaged."""
        try:
            state, said = self._reader.find(session_id, owner=self._leases.arguments)
            self._reader.check_ends(state)
            row, source = state.row, self._reader.source(state.row)
            held = read_end(source, row)
            checkpoint = [state.checkpoint] if state.checkpoint else []
            said = not_yet_an_entry(said, row, held)
            record = self._writer(state, said)
            turns_max = self._context.turns_max or None
            if turns_max:
                record.learn_turns(source.after(0))
            history = ConversationHistory(
                session_id, [*checkpoint, *held], row=row, turns_max=turns_max
            )
            return Opened(record=record, history=history, row=row, partial_answer=said), record
        except RedisError:
            raise  # the lease lapses, or serves the next attempt
        except BaseException as error:
            keys = self._keyspace.of(session_id)
            with suppress(RedisError):
                self._leases.give_back(keys.base)
                if isinstance(error, ConversationDamaged):
                    # So that lists show it; what is there is left as it is.
                    self._connection.call("HSET", keys.meta, "damaged", error.reason)
            raise

    def _writer(self, state: WriterState, said: PartialAnswer | None = None) -> RedisRecord:
        answers = PartialAnswers(self._sender, self._context, state.row.session_id, said)
        return RedisRecord(
            state, context=self._context, partial_answers=answers, closed=self._forget_writer
        )

    async def page(self, session_id: str, query: PageQuery) -> MessagePage:
        def read() -> MessagePage:
            row = self._reader.row(session_id)
            return read_page(query, self._reader.source(row), row.hidden, row.unfinished)

        return await self._connection.in_thread(read)

    async def text_of(self, session_id: str, seq: int) -> str | None:
        def read() -> str | None:
            entry = self._reader.source(self._reader.row(session_id)).at(seq)
            return None if entry is None else content_of(entry)

        return await self._connection.in_thread(read)

    async def prompt_by_message_id(self, session_id: str, message_id: str) -> SentBefore | None:
        return await self._connection.in_thread(
            partial(self._reader.prompt, session_id, message_id)
        )

    async def blob(self, session_id: str, blob_id: str, offset: int, length: int) -> bytes:
        if offset < 0 or length < 0:
            raise BadEntry("a range of bytes begins at 0 or later and has no negative length")

        def read() -> bytes:
            self._reader.row(session_id)
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
        begin = partial(self._reader.entries, session_id, after=after, through=through)
        walk = await self._connection.in_thread(begin)
        while batch := await self._connection.in_thread(lambda: list(islice(walk, _BATCH_ENTRIES))):
            yield batch

    async def origin(self, session_id: str) -> Origin:
        def read() -> Origin:
            self._reader.row(session_id)
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
            finished = builder.finished(ttl_milliseconds=self._ttl_milliseconds)
            await self._run(scripts.PUBLISH, session_id, *finished, also=builder.base)
        except BaseException:
            await builder.drop()
            raise

    async def delete(self, session_id: str) -> None:
        trash = self._keyspace.in_trash(session_id).base
        at = self._clock()
        when = (time_as_text(at), int(at.timestamp() * 1000), session_id)
        await self._run(scripts.DELETE, session_id, TRASH_SECONDS * 1000, *when, also=trash)
        if writer := self._writers.pop(session_id, None):
            writer.is_lost()

    async def undelete(self, session_id: str, *, user: str | None = None) -> None:
        trash = self._keyspace.in_trash(session_id).base
        ttl = self._ttl_milliseconds
        whose = () if user is None else (user,)
        await self._run(scripts.UNDELETE, session_id, ttl, session_id, *whose, also=trash)

    async def is_trash_of_another(self, session_id: str, user: str) -> bool:
        meta = self._keyspace.in_trash(session_id).meta
        whose = await self._connection.in_thread(lambda: self._connection.ask("HGET", meta, "user"))
        return whose not in (None, user.encode())

    async def trash(self, user: str) -> Sequence[DeletedConversation]:
        return await self._connection.in_thread(partial(self._reader.trash, user))

    # All of them

    async def row(self, session_id: str) -> ConversationRow | None:
        if not is_session_id(session_id):
            return None
        return await self._connection.in_thread(partial(self._reader.row_of, session_id))

    async def list(self, user: str, query: RowQuery) -> RowPage:
        return await self._connection.in_thread(partial(self._reader.page, user, query))

    async def count(self, user: str) -> int:
        return await self._connection.in_thread(partial(self._reader.count, user))

    async def search(self, user: str, query: SearchQuery) -> SearchPage:
        """Reads everything the user has: Redis alone has no index of words."""

        def pairs() -> Iterator[tuple[ConversationRow, Entry]]:
            for row in self._reader.rows(user):
                for entry in self._reader.source(row).after(0):
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
