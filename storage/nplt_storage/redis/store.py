"""The store whose conversations are kept in Redis; the package's docstring has the layout."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Any, Final

import orjson
from msgspec.json import decode
from msgspec.structs import replace
from redis.exceptions import RedisError

from nplt_storage.codec import time_as_text
from nplt_storage.entries import BlobReference, CheckpointEntry, Entry
from nplt_storage.errors import (
    BadEntry,
    ConversationDamaged,
    ConversationExists,
    ConversationHeld,
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
from nplt_storage.redis.ownership import LEASE_SECONDS, Leases, Ownership
from nplt_storage.redis.record import (
    AccessTimes,
    PartialAnswers,
    RedisContext,
    RedisRecord,
    Sender,
    UserLists,
    decode_pieces,
)
from nplt_storage.redis.scripts import Keyspace
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
    Member,
    Opened,
    Origin,
    PartialAnswer,
    Record,
    StoreDescription,
    check_byte_range,
    not_yet_an_entry,
)

_ROW_FIELDS: Final = ("row", "accessed", "damaged")
_ROWS_AT_ONCE: Final = 200
_COUNTED_AT_ONCE: Final = 1000
_REPAIRS_MAX: Final = 3
"""Of one part of a list, while others write."""


class RedisReader:
    """Rows, lists, lines and prompts. Blocking: used inside a worker thread."""

    def __init__(self, context: RedisContext, touches: AccessTimes) -> None:
        self._connection = context.connection
        self._keyspace = context.keyspace
        self._lists = context.lists
        self._touches = touches

    # Rows and lists: a sorted set per user holds the order
    #
    # What it holds is compared with the rows, and put right where they differ. One that
    # moves in the list while it is read appears at its new place or not at all.

    def row_of(self, session_id: str) -> ConversationRow | None:
        return self._read(session_id)[0]

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
        wanted.sort(key=place_of, reverse=True)  # one may have been met at an older place
        return cut_page(wanted, query.limit)

    def count(self, user: str) -> int:
        self._lists.flush()
        places = self._connection.ask("ZRANGE", self._keyspace.list_of(user), 0, -1)
        ids = sorted({session_id_in(place) for place in places})
        there = 0
        for start in range(0, len(ids), _COUNTED_AT_ONCE):
            some = ids[start : start + _COUNTED_AT_ONCE]
            asked = [("HGET", self._keyspace.of(id_).meta, "user") for id_ in some]
            for id_, owner in zip(some, self._connection.ask_many(asked), strict=True):
                if owner is None:
                    with suppress(ConversationHeld):
                        there += self.adopt(id_)
                else:
                    there += owner.decode() == user
        return there

    def rows(
        self, user: str, cursor: str | None = None, *, at_first: int = _ROWS_AT_ONCE
    ) -> Iterator[ConversationRow]:
        self._lists.flush()
        count = min(at_first, _ROWS_AT_ONCE)
        below = None if cursor is None else place_as_bytes(read_cursor(cursor))
        met: set[str] = set()
        repairs_left = _REPAIRS_MAX
        while True:
            places = self._connection.ask(
                *("ZREVRANGEBYLEX", self._keyspace.list_of(user)),
                *("+" if below is None else b"(" + below, "-", "LIMIT", 0, count),
            )
            there, moved = self._put_right(user, places)
            is_read_again = bool(moved) and repairs_left > 0
            # One that belongs further up was missed, which only matters to who began at the top.
            wanted = [
                row
                for place, row in moved
                if cursor is None and below is not None and place > below
            ]
            for row in wanted if is_read_again else wanted + there:
                if row.session_id not in met:
                    met.add(row.session_id)
                    yield row
            if is_read_again:
                repairs_left -= 1
            elif len(places) < count:
                return
            else:
                below, count, repairs_left = places[-1], _ROWS_AT_ONCE, _REPAIRS_MAX

    def _put_right(
        self, user: str, places: list[bytes]
    ) -> tuple[list[ConversationRow], list[tuple[bytes, ConversationRow]]]:
        """Those that are where the list says, and those that were not, with their places."""
        there: list[ConversationRow] = []
        moved: list[tuple[bytes, ConversationRow]] = []
        for listed, row in zip(places, self._rows_at(places), strict=True):
            if row is None:
                try:
                    row = self.row_of(session_id_in(listed))
                except ConversationHeld:
                    continue
            if row is None or row.user != user:
                self._lists.forget(user, listed)
                continue
            place = place_as_bytes(place_of(row))
            if place == listed:
                there.append(row)
            else:
                self._lists.replace(user, [listed], place)
                moved.append((place, row))
        return there, moved

    def _rows_at(self, places: list[bytes]) -> list[ConversationRow | None]:
        ids = [session_id_in(place) for place in places]
        noted = [self._touches.noted(id_) for id_ in ids]  # forgotten once Redis has them
        found = self._connection.ask_many(
            [("HMGET", self._keyspace.of(id_).meta, *_ROW_FIELDS) for id_ in ids]
        )
        return [decode_row(fields, at) for fields, at in zip(found, noted, strict=True)]

    def _read(
        self, session_id: str, *more: str, in_trash: bool = False
    ) -> tuple[ConversationRow | None, list[bytes | None]]:
        """Its row, and more fields; of the layout before, it is brought to this one first."""
        noted = self._touches.noted(session_id)  # forgotten once Redis has it
        keyspace = self._keyspace
        keys = keyspace.in_trash(session_id) if in_trash else keyspace.of(session_id)
        command = ("HMGET", keys.meta, *_ROW_FIELDS, *more)
        found: list[bytes | None] = self._connection.ask(*command)
        if found[0] is None and self.adopt(session_id, in_trash=in_trash):
            found = self._connection.ask(*command)
        return decode_row(found, noted), found[len(_ROW_FIELDS) :]

    def trash(self, user: str) -> list[DeletedConversation]:
        """Those that have expired, or were replaced by another's, leave the list."""
        found: list[DeletedConversation] = []
        listed = self._connection.ask(
            "ZREVRANGE", self._keyspace.deleted_of(user), 0, -1, "WITHSCORES"
        )
        for place, score in zip(listed[::2], listed[1::2], strict=True):
            session_id = place.decode()
            row, at = self.deleted(session_id)
            if row is None or at is None or row.user != user:
                self._lists.forget_deleted(user, session_id, float(score))
            else:
                found.append(DeletedConversation(row=row, deleted_at=at))
        return found

    def deleted(self, session_id: str) -> tuple[ConversationRow | None, datetime | None]:
        row, (at,) = self._read(session_id, "deleted", in_trash=True)
        return row, None if at is None else datetime.fromisoformat(at.decode())

    # The layout before: the same keys without a hash tag, blobs and the checkpoint apart

    def adopt(self, session_id: str, *, in_trash: bool = False) -> bool:
        """Whether it was there in the layout before; it is in this one then."""
        if self._connection.is_cluster:
            return False  # which never accepted those keys
        prefix = f"{self._keyspace.prefix}{'@trash:' if in_trash else ''}{session_id}"
        keyspace = self._keyspace
        keys = keyspace.in_trash(session_id) if in_trash else keyspace.of(session_id)
        if not self._connection.ask("EXISTS", f"{prefix}:meta"):
            return False
        parts = ("meta", "log", "live", "prompts", "blobs", "checkpoint", "owner")
        blobs = [blob.decode() for blob in self._connection.ask("SMEMBERS", f"{prefix}:blobs")]
        before = [f"{prefix}:{part}" for part in parts] + [f"{prefix}:blob:{id_}" for id_ in blobs]
        answer = self._connection.run(scripts.ADOPT, [*keys, *before], *blobs)
        if answer == b"held":
            raise ConversationHeld(session_id)
        return True  # by us, or by another server just now

    # One conversation and its lines

    def find(self, session_id: str) -> tuple[ConversationRow, CheckpointEntry | None]:
        """As of one moment."""
        _check_id(session_id)
        row, (checkpoint,) = self._read(session_id, "checkpoint")
        if row is None:
            raise ConversationNotFound(session_id)
        return row, decode_checkpoint(session_id, checkpoint)

    def check_ends(self, row: ConversationRow, checkpoint: CheckpointEntry | None) -> None:
        """Redis evicts keys one by one: what is left may look whole."""
        source = self.source(row)
        if row.first_seq > 1 and checkpoint is None:
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
        row, checkpoint = self.find(session_id)
        last = row.head_seq if through is None else min(through, row.head_seq)

        def walk() -> Iterator[Entry]:
            if checkpoint is not None and after < checkpoint.seq <= last:
                yield checkpoint
            yield from self.source(row, head_seq=last).after(after)

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
        keys = self._keyspace.of(session_id)
        noted, is_all = self._connection.run(scripts.PROMPT_BY_MESSAGE_ID, keys, message_id)
        return (None if noted is None else orjson.loads(noted)), bool(is_all)

    def _note_again(self, row: ConversationRow) -> None:
        keys = self._keyspace.of(row.session_id)
        self._connection.call_many(
            ("HSETNX", keys.prompts, name, place_in_stream(entry))
            for entry in self.source(row).after(0)
            if (name := name_of(entry))
        )
        self._connection.run(scripts.COUNT_PROMPTS, keys)


def decode_row(found: Sequence[bytes | None], noted: datetime | None) -> ConversationRow | None:
    """From the fields row, accessed, damaged; `noted` is an access that is on its way."""
    data, accessed, damaged = found[:3]
    if data is None:
        return None
    row = row_from_bytes(data)
    times = [row.last_accessed]
    if accessed is not None:
        times.append(datetime.fromisoformat(accessed.decode()))
    if noted is not None:
        times.append(noted)
    return replace(row, last_accessed=max(times), damaged=damaged is not None)


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
        self.made = NewStream(connection, keyspace, session_id)
        self.row = new_row(session_id, user=origin.user, created_at=origin.created_at)

    async def add(self, entries: Sequence[Entry]) -> None:
        await self._connection.in_thread(partial(self._add, entries))

    async def keep_blob(self, data: bytes) -> BlobReference:
        blob = BlobReference.of(data)
        await self._connection.in_thread(partial(self.made.keep_blob, blob.blob_id, data))
        return blob

    def _add(self, entries: Sequence[Entry]) -> None:
        first = entries[0] if entries else None
        if self.row.head_seq == 0 and isinstance(first, CheckpointEntry) and first.seq > 1:
            self._begin_with(first)
            entries = entries[1:]
        self.made.add(entries)
        self.row = fold_all(self.row, entries)

    def _begin_with(self, first: CheckpointEntry) -> None:
        """A copy of a conversation that was trimmed begins with what is left of the rest."""
        found = read_checkpoint(first)
        if found is None:
            raise BadEntry(f"entry {first.seq} can't be the first: its state can't be read")
        self.made.begin_after(first)
        self.row = replace(
            fold(found.row, first),
            session_id=self.row.session_id,
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


TRASH_SECONDS: Final = 30 * 24 * 3600
_BATCH_ENTRIES: Final = 100
_MINUTE: Final = 60_000
"""In milliseconds."""


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
        self._lists = context.lists
        self._ttl_milliseconds = context.ttl_milliseconds
        self._sender = Sender()
        self._touches = AccessTimes(self._sender, context)
        self._reader = RedisReader(context, self._touches)
        self._writers: dict[str, RedisRecord | None] = {}
        self._unheard: dict[str, str] = {}
        """Creations that may have succeeded: their nonces, by id."""

    @classmethod
    async def open_url(  # noqa: PLR0913
        cls,
        url: str,
        *,
        clock: Callable[[], datetime],
        key_prefix: str = "nplt:",
        ttl_seconds: int | None = None,
        max_turns: int | None = None,
        timeout_seconds: float = 5.0,
        lease_seconds: float = LEASE_SECONDS,
        advertise: str | None = None,
    ) -> RedisStore:
        """`advertise` is the address of this server that others are told."""
        connection = RedisConnection(url, timeout_seconds=timeout_seconds)

        def greet() -> str:
            check_version(connection)
            return how_durable(connection)

        try:
            promise = await connection.in_thread(greet)
        except BaseException:
            connection.close()
            raise
        keyspace = Keyspace(key_prefix)
        context = RedisContext(
            connection=connection,
            keyspace=keyspace,
            leases=Leases(connection, keyspace, seconds=lease_seconds, address=advertise),
            lists=UserLists(connection, keyspace, clock),
            ttl_milliseconds=(ttl_seconds or 0) * 1000,
            turns_max=max_turns or 0,
        )
        return cls(context, clock=clock, promise=promise)

    @property
    def read_only_reason(self) -> str | None:
        return self._connection.trouble

    # The servers that share it

    def join(self) -> None:
        self._leases.start(announces=True)

    @property
    def server_id(self) -> str:
        return self._leases.server_id

    async def ask_for(self, held: ConversationHeld) -> None:
        if held.token is not None:
            ask = partial(self._leases.ask_for, held.session_id, held.token)
            await self._connection.in_thread(ask)

    async def members(self) -> Sequence[Member]:
        def read() -> tuple[Sequence[Member], str]:
            return self._leases.members(), how_durable(self._connection)

        members, promise = await self._connection.in_thread(read)
        self.description = replace(self.description, promise=promise)
        return members

    async def take_turn(self, user: str, turn_id: str, turns_max: int) -> bool:
        return await self._connection.in_thread(
            partial(self._leases.take_turn, user, turn_id, turns_max)
        )

    def end_turn(self, user: str, turn_id: str) -> None:
        self._sender.post(partial(self._leases.end_turn, user, turn_id))

    async def count_prompt(self, user: str, per_minute: float) -> float:
        keys, size = [self._keyspace.rate_of(user)], f"{per_minute:g}"
        count = partial(self._connection.run, scripts.COUNT_PROMPT, keys, size, _MINUTE)
        return int(await self._connection.in_thread(count)) / 1000

    # One conversation

    async def create(self, session_id: str, *, user: str) -> Record:
        _check_id(session_id)
        check_text(user, "the user's name")
        row = new_row(session_id, user=user, created_at=self._clock())
        nonce = self._unheard.pop(session_id, None) or new_entry_id()
        try:
            record = await self._connection.in_thread(partial(self._create, row, nonce))
        except ConversationExists:
            raise
        except BaseException:
            self._unheard[session_id] = nonce
            raise
        return self._registered(record)

    def _create(self, row: ConversationRow, nonce: str) -> RedisRecord:
        session_id = row.session_id
        if self._reader.row_of(session_id) is None:
            self._lists.add(row)  # before: one that is there is in the list, whatever happens
        keys = self._keyspace.of(session_id)
        origin = origin_as_bytes(Origin(user=row.user, created_at=row.created_at))
        asked_at = self._leases.clock()
        token = self._connection.run(
            scripts.CREATE,
            keys,
            *(nonce, self._leases.server, self._leases.milliseconds),
            *(row_as_bytes(row), row.user, origin, self._ttl_milliseconds),
        )
        if token == b"taken":
            raise ConversationExists(session_id)
        owned = self._leases.owned(session_id, keys, token, asked_at)
        return self._writer(row, owned)

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
        noted = self._touches.noted(session_id)
        owned, found = self._acquire(session_id)
        try:
            row = decode_row(found, noted)
            assert row is not None
            checkpoint = decode_checkpoint(session_id, found[3])
            self._reader.check_ends(row, checkpoint)
            source = self._reader.source(row)
            held = read_end(source, row)
            said = not_yet_an_entry(decode_pieces(found[4] or b""), row, held)
            record = self._writer(row, owned, checkpoint, said)
            turns_max = self._context.turns_max or None
            if turns_max:
                record.learn_turns(source.after(0))
            history = ConversationHistory(
                session_id,
                [checkpoint, *held] if checkpoint else held,
                row=row,
                turns_max=turns_max,
            )
            return Opened(record=record, history=history, row=row, partial_answer=said), record
        except RedisError:
            raise  # the lease lapses, or serves the next attempt
        except BaseException as error:
            with suppress(RedisError):
                if isinstance(error, ConversationDamaged):
                    # So that lists show it; what is there is left as it is.
                    lease = (owned.token, self._leases.milliseconds)
                    self._connection.run(scripts.NOTE_DAMAGE, owned.keys, *lease, error.reason)
                self._leases.give_back(owned)
            raise

    def _acquire(self, session_id: str) -> tuple[Ownership, list[bytes | None]]:
        """With what `scripts.OPEN` gives: row, accessed, damaged, checkpoint, live, token."""
        keys = self._keyspace.of(session_id)
        asked_at = self._leases.clock()
        claim = partial(
            self._leases.claim,
            *(scripts.OPEN, session_id, keys),
            *(new_entry_id(), self._leases.milliseconds, self._ttl_milliseconds),
        )
        try:
            found = claim()
        except ConversationNotFound:
            if not self._reader.adopt(session_id):
                raise
            found = claim()
        return self._leases.owned(session_id, keys, found[5], asked_at), found

    def _writer(
        self,
        row: ConversationRow,
        owned: Ownership,
        checkpoint: CheckpointEntry | None = None,
        said: PartialAnswer | None = None,
    ) -> RedisRecord:
        return RedisRecord(
            row,
            owned,
            checkpoint=checkpoint,
            context=self._context,
            partial_answers=PartialAnswers(self._sender, self._context, owned, said),
            closed=self._forget_writer,
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
        check_byte_range(offset, length)

        def read() -> bytes:
            self._reader.row(session_id)
            keys = self._keyspace.of(session_id)
            data = self._connection.run(scripts.BLOB, keys, blob_id, offset, length)
            if data is None:
                raise BadEntry(f"there is no blob {blob_id!r}")
            return bytes(data)

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
            return decode(self._connection.ask("HGET", meta, "origin"), type=Origin)

        return await self._connection.in_thread(read)

    @asynccontextmanager
    async def build(self, session_id: str, origin: Origin) -> AsyncIterator[Builder]:
        _check_id(session_id)
        if await self.row(session_id) is not None:
            raise ConversationExists(session_id)
        builder = RedisBuilder(session_id, origin, self._connection, self._keyspace)
        try:
            yield builder
            await self._connection.in_thread(partial(self._publish, builder, origin))
        except BaseException:
            await self._connection.in_thread(builder.made.drop)
            raise

    def _publish(self, builder: RedisBuilder, origin: Origin) -> None:
        row, made = builder.row, builder.made
        self._lists.add(row)
        answer = self._connection.run(
            scripts.PUBLISH,
            [*self._keyspace.of(row.session_id), *made.keys],
            *(row_as_bytes(row), row.user, origin_as_bytes(origin), row.head_seq),
            *(made.checkpoint_line, self._ttl_milliseconds),
        )
        if answer == b"taken":
            raise ConversationExists(row.session_id)

    async def delete(self, session_id: str) -> None:
        """`ConversationHeld` while another server has it open."""
        await self._connection.in_thread(partial(self._delete, session_id))
        if writer := self._writers.pop(session_id, None):
            writer.is_lost()

    def _delete(self, session_id: str) -> None:
        row, at = self._reader.row(session_id), self._clock()
        keys, trash = self._keyspace.of(session_id), self._keyspace.in_trash(session_id)
        self._lists.add_deleted(row, at)
        when = (TRASH_SECONDS * 1000, time_as_text(at))
        self._leases.claim(scripts.DELETE, session_id, keys, *when, also=trash)
        self._lists.remove(row)

    async def undelete(self, session_id: str, *, user: str | None = None) -> None:
        _check_id(session_id)
        await self._connection.in_thread(partial(self._undelete, session_id, user))

    def _undelete(self, session_id: str, user: str | None) -> None:
        row, _ = self._reader.deleted(session_id)
        if row is None or user not in (None, row.user):
            raise ConversationNotFound(session_id)
        if self._reader.row_of(session_id) is not None:
            raise ConversationExists(session_id)
        self._lists.add(row)
        keys, trash = self._keyspace.of(session_id), self._keyspace.in_trash(session_id)
        answer = self._connection.run(scripts.UNDELETE, [*keys, *trash], self._ttl_milliseconds)
        if answer == b"gone":
            raise ConversationNotFound(session_id)
        if answer == b"taken":
            raise ConversationExists(session_id)
        self._lists.remove_deleted(row.user, session_id)

    async def is_trash_of_another(self, session_id: str, user: str) -> bool:
        row, _ = await self._connection.in_thread(partial(self._reader.deleted, session_id))
        return row is not None and row.user != user

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
        await self._connection.in_thread(self._lists.close)
        self._connection.close()

    def _registered(self, record: RedisRecord) -> RedisRecord:
        self._writers[record.session_id] = record
        self._leases.keep(record.owned)
        return record

    def _forget_writer(self, record: RedisRecord) -> None:
        if self._writers.get(record.session_id) is record:
            del self._writers[record.session_id]


def _check_id(session_id: str) -> None:
    if not is_session_id(session_id):
        raise ConversationNotFound(session_id)
