"""The store whose conversations are kept in Redis. The package's docstring has the layout."""

from __future__ import annotations

import builtins
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

import anyio
import orjson
from msgspec import Struct
from msgspec.json import decode
from redis.exceptions import RedisError

from nplt_storage.codec import time_as_text
from nplt_storage.entries import CheckpointEntry, Entry
from nplt_storage.errors import (
    BadEntry,
    ConversationDamaged,
    ConversationExists,
    ConversationHeld,
    ConversationNotFound,
    ConversationReadOnly,
    StorageAway,
)
from nplt_storage.history import ConversationHistory
from nplt_storage.ids import is_session_id, new_entry_id
from nplt_storage.json_values import check_text
from nplt_storage.messages import LevelMaker, content_of, no_levels
from nplt_storage.pages import MessagePage, PageQuery, read_end, read_page
from nplt_storage.partial_answers import Piece, join_pieces, unless_stored
from nplt_storage.redis import scripts
from nplt_storage.redis.changes import RedisChanges
from nplt_storage.redis.connection import (
    COMMAND_SECONDS_MAX,
    RedisConnection,
    Sender,
    in_worker_thread,
)
from nplt_storage.redis.examination import Examined, examine
from nplt_storage.redis.files import RedisFiles
from nplt_storage.redis.live_journal import LiveJournal
from nplt_storage.redis.membership import Membership
from nplt_storage.redis.ownership import LEASE_SECONDS, Leases, Ownership
from nplt_storage.redis.record import RedisRecord, StoreParts, origin_as_bytes
from nplt_storage.redis.row_reader import FRESH, RowReader, decode_row
from nplt_storage.redis.scripts import IN_TRASH
from nplt_storage.redis.search_index import SearchIndex
from nplt_storage.redis.shared_turns import SharedTurns
from nplt_storage.redis.streams import (
    NewStream,
    StreamSource,
    decode_checkpoint,
    message_id_of,
    place_in_stream,
)
from nplt_storage.redis.user_lists import UserLists
from nplt_storage.rows import (
    ConversationRow,
    RowPage,
    RowQuery,
    new_row,
    row_as_lines,
    unknown_since,
    with_added_fields,
)
from nplt_storage.search import SearchPage, SearchQuery
from nplt_storage.sent_before import SentBefore, sent_before
from nplt_storage.store import (
    Builder,
    DeletedConversation,
    Member,
    MemberNote,
    Opened,
    Origin,
    Record,
    SharedCounts,
    SharedView,
    StoreDescription,
    check_byte_range,
)

log = logging.getLogger(__name__)

TRASH_SECONDS: Final = 30 * 24 * 3600
_BATCH_ENTRIES: Final = 100
_LINES_AT_ONCE: Final = 1000
_MINUTE_MILLISECONDS: Final = 60_000
_TRIED_AGAIN_SECONDS: Final = 0.5
WAIT_SECONDS: Final = 30.0
"""How long a server waits at its start for a Redis that is away."""


class StoredParts(Struct, frozen=True, kw_only=True):
    """A conversation as Redis has it, unverified."""

    lines: Sequence[bytes]
    checkpoint: bytes | None
    blobs: Mapping[str, bytes]
    """Blobs and the pieces of attached files (`files`), by name."""


class RedisStore:
    def __init__(
        self,
        parts: StoreParts,
        *,
        clock: Callable[[], datetime],
        membership: Membership,
        levels: LevelMaker = no_levels,
        scratch: Path | None = None,
    ) -> None:
        """Use `open_url`, which connects and examines the Redis."""
        self._membership = membership
        self._clock = clock
        self._levels = levels
        self._parts = parts
        self._connection = parts.connection
        self._keyspace = parts.connection.keyspace
        self._leases = parts.leases
        self._lists = parts.lists
        self.changes = parts.changes
        self.commits = parts.commits
        self._sender = parts.sender
        self._turns = SharedTurns(parts.connection, parts.sender, parts.leases.milliseconds)
        parts.leases.keep_more = self._turns.keep
        self._ttl_milliseconds = parts.ttl_milliseconds
        self._writers = parts.writers
        self._files = RedisFiles(parts.connection, parts.ttl_milliseconds)
        self._rows = RowReader(parts, clock)
        self._search_index = SearchIndex(parts, self._rows, scratch)
        self._unconfirmed: dict[str, str] = {}
        """The nonces of creations that may have succeeded, by session id."""

    @classmethod
    async def open_url(  # noqa: PLR0913
        cls,
        url: str,
        *,
        clock: Callable[[], datetime],
        key_prefix: str = "nplt:",
        ttl_seconds: int | None = None,
        max_turns: int | None = None,
        timeout_seconds: float = COMMAND_SECONDS_MAX,
        lease_seconds: float = LEASE_SECONDS,
        wait_seconds: float = 0.0,
        advertise: str | None = None,
        is_server: bool = False,
        levels: LevelMaker = no_levels,
        scratch: Path | None = None,
    ) -> RedisStore:
        """`advertise` is the address at which other servers reach this one. A Redis that is away is
        waited for up to `wait_seconds`. With `is_server`, a Redis that may lose conversations is
        refused, and times are those of Redis's clock, not of `clock`. `scratch` is a directory for
        files that last as long as they are open."""
        connection = RedisConnection(url, timeout_seconds=timeout_seconds, key_prefix=key_prefix)
        expires = bool(ttl_seconds)
        try:
            examined = await _examined(connection, wait_seconds, expires=expires)
            leases = Leases(connection, seconds=lease_seconds, address=advertise)
            membership = Membership(connection, leases, examined, expires=expires)
            if is_server:
                await connection.in_thread(membership.check)
        except BaseException:
            connection.close()
            raise
        parts = StoreParts(
            connection=connection,
            leases=leases,
            lists=UserLists(connection),
            sender=Sender(),
            journal=LiveJournal(connection, leases),
            ttl_milliseconds=(ttl_seconds or 0) * 1000,
            turns_max=max_turns or 0,
            changes=RedisChanges(connection, timeout_seconds=timeout_seconds),
        )
        own_clock = membership.clock if is_server else clock
        return cls(parts, clock=own_clock, membership=membership, levels=levels, scratch=scratch)

    @property
    def description(self) -> StoreDescription:
        promise = self._membership.examined.promise
        return StoreDescription(backend="redis", promise=promise)

    @property
    def examined(self) -> Examined:
        """How the Redis is set up, as it was examined last."""
        return self._membership.examined

    @property
    def read_only_reason(self) -> str | None:
        return self._connection.trouble

    async def close(self) -> None:
        for writer in [writer for writer in self._writers.values() if writer is not None]:
            await writer.close()
        await self._connection.in_thread(self._search_index.close)
        parts = self._parts
        self._turns.close()
        background = (self._membership, self._leases, self._sender, self._lists, parts.journal)
        for part in (self.changes, *background):
            await self._connection.in_thread(part.close)
        self._connection.close()

    # The servers that share it

    @property
    def counts(self) -> SharedCounts:
        return self._connection.counts

    @property
    def view(self) -> SharedView:
        return self._membership.view

    @in_worker_thread
    def join(self, note: MemberNote) -> None:
        self._leases.start()
        self._membership.join(note)

    @in_worker_thread
    def compare(self, note: MemberNote) -> None:
        self._membership.compare(note)

    @in_worker_thread
    def agreed_key(self, offered: bytes) -> bytes:
        self._connection.call("SET", self._keyspace.id_key, offered, "NX")
        return bytes(self._connection.ask("GET", self._keyspace.id_key))

    def now(self) -> datetime:
        return self._membership.clock()

    @property
    def server_id(self) -> str:
        return self._leases.own.id

    async def ask_for(self, held: ConversationHeld) -> None:
        if held.token is not None:
            await self._connection.in_thread(self._leases.ask_for, held.session_id, held.token)

    @in_worker_thread
    def members(self) -> Sequence[Member]:
        """Asks Redis for the members, and examines it."""
        members = self._membership.refresh()
        self._membership.examine()
        return members

    async def take_turn(self, user: str, turn_id: str, turns_max: int) -> bool:
        return await self._turns.take(user, turn_id, turns_max)

    def end_turn(self, user: str, turn_id: str) -> None:
        self._turns.end(user, turn_id)

    @in_worker_thread
    def count_prompt(self, user: str, per_minute: float) -> float:
        keys, size = [self._keyspace.of_user("rate", user)], f"{per_minute:g}"
        return (
            int(self._connection.run(scripts.COUNT_PROMPT, keys, size, _MINUTE_MILLISECONDS)) / 1000
        )

    @in_worker_thread
    def note_redacted_prompts(self, user: str, message_ids: Sequence[str], kept: int) -> None:
        key = self._keyspace.of_user("redacted", user)
        for message_id in message_ids:
            self._connection.call("LREM", key, 0, message_id)
        self._connection.call("RPUSH", key, *message_ids)
        self._connection.call("LTRIM", key, -kept, -1)

    @in_worker_thread
    def redacted_prompts(self, user: str) -> Sequence[str]:
        ids = self._connection.ask("LRANGE", self._keyspace.of_user("redacted", user), 0, -1)
        return [bytes(one).decode() for one in ids]

    def is_usable(self, session_id: str) -> bool:
        return not self._connection.is_away(self._keyspace.of(session_id).meta)

    # Attached files

    @in_worker_thread
    def keep_file(self, session_id: str, file_id: str, path: Path) -> None:
        self._files.keep(session_id, file_id, path)

    async def file_pieces(self, session_id: str, file_id: str) -> AsyncIterator[bytes]:
        pieces = self._files.pieces(session_id, file_id)
        while (piece := await self._connection.in_thread(lambda: next(pieces, None))) is not None:
            yield piece

    @in_worker_thread
    def has_file(self, session_id: str, file_id: str) -> bool:
        return self._files.has(session_id, file_id)

    async def note_file(self, session_id: str, file_id: str) -> None:
        if (address := self._leases.own.address) is not None:
            await self._connection.in_thread(self._files.note_place, session_id, file_id, address)

    async def server_with_file(self, session_id: str, file_id: str) -> str | None:
        address = await self._connection.in_thread(self._files.place, session_id, file_id)
        return None if address == self._leases.own.address else address

    @in_worker_thread
    def drop_file(self, session_id: str, file_id: str) -> None:
        self._files.drop(session_id, file_id)

    # Creating and opening

    async def create(self, session_id: str, *, user: str) -> Record:
        _check_id(session_id)
        check_text(user, "the user's name")
        row = new_row(session_id, user=user, created_at=self._clock())
        nonce = self._unconfirmed.pop(session_id, None) or new_entry_id()
        try:
            record = await self._connection.in_thread(self._create, row, nonce)
        except ConversationExists:
            raise
        except BaseException:
            self._unconfirmed[session_id] = nonce
            raise
        return self._registered(record)

    def _create(self, row: ConversationRow, nonce: str) -> RedisRecord:
        if self._rows.row(row.session_id) is None:
            self._lists.add(row)  # before: one that is there is in the list, whatever happens
        origin = origin_as_bytes(Origin(user=row.user, created_at=row.created_at))
        asked_at = self._leases.clock()
        token = self._connection.run(
            scripts.CREATE,
            self._keyspace.of(row.session_id),
            *(nonce, self._leases.server, self._leases.milliseconds),
            *(row_as_lines(row), row.user, origin, self._ttl_milliseconds),
            *self._parts.announced(row, "new"),
        )
        if token == b"taken":
            raise ConversationExists(row.session_id)
        owned = self._leases.owned(row.session_id, token, asked_at)
        return RedisRecord(self._parts, row, owned)

    def _registered(self, record: RedisRecord) -> RedisRecord:
        self._writers[record.session_id] = record
        self._leases.keep(record.owned)
        return record

    async def open(self, session_id: str) -> Opened:
        _check_id(session_id)
        if session_id in self._writers:
            raise ConversationReadOnly(session_id, "it is open already")
        self._writers[session_id] = None  # reserved while it is being opened
        try:
            opened, record = await self._connection.in_thread(self._open, session_id)
            self._registered(record)
            return opened
        finally:
            if self._writers.get(session_id) is None:
                self._writers.pop(session_id, None)

    def _open(self, session_id: str) -> tuple[Opened, RedisRecord]:
        """Opens a conversation. If it fails, nothing remains but a mark on a damaged conversation.
        Blocks."""
        noted = self._rows.noted_access(session_id)
        owned, found = self._acquire(session_id)
        try:
            row = decode_row(found, noted)
            assert row is not None
            checkpoint = decode_checkpoint(session_id, found[4])
            source = self._source(row)
            row = _brought_up_to_date(row, found[1], source)
            _check_ends(source, row, checkpoint)
            held = read_end(source, row)
            pieces = [decode(line, type=Piece) for line in (found[5] or b"").splitlines()]
            partial_answer = unless_stored(join_pieces(pieces), row, held)
            record = RedisRecord(self._parts, row, owned, checkpoint, partial_answer)
            turns_max = self._parts.turns_max or None
            if turns_max:
                record.learn_turns(source.after(0))
            entries = [checkpoint, *held] if checkpoint else held
            history = ConversationHistory(session_id, entries, row=row, turns_max=turns_max)
            opened = Opened(record=record, history=history, row=row, partial_answer=partial_answer)
            return opened, record
        except RedisError:
            raise  # the lease lapses, or serves the next attempt
        except BaseException as error:
            with suppress(RedisError):
                if isinstance(error, ConversationDamaged):
                    # So that lists show it; what is there is left as it is.
                    damaged = decode_row(found, noted)
                    assert damaged is not None
                    self._connection.run(
                        scripts.NOTE_DAMAGE,
                        *(owned.keys, owned.token, self._leases.milliseconds, error.reason),
                        *self._parts.announced(damaged, "damaged"),
                    )
                self._leases.give_back(owned)
            raise

    def _acquire(self, session_id: str) -> tuple[Ownership, Sequence[Any]]:
        """The ownership, and the reply of `scripts.OPEN`: row (two fields), accessed, damaged,
        checkpoint, live, token, and 1 if the owner before had not given it up."""
        asked_at = self._leases.clock()
        claim = partial(
            self._leases.claim,
            *(scripts.OPEN, session_id, self._keyspace.of(session_id)),
            *(new_entry_id(), self._leases.milliseconds, self._ttl_milliseconds),
        )
        try:
            found = claim()
        except ConversationNotFound:
            if not self._rows.adopt(session_id):
                raise
            found = claim()
        self._connection.counts.takeovers += found[7]
        return self._leases.owned(session_id, found[6], asked_at), found

    # Reading one conversation

    def _source(self, row: ConversationRow) -> StreamSource:
        return StreamSource(self._connection, row.session_id, row.head_seq)

    @in_worker_thread
    def page(self, session_id: str, query: PageQuery) -> MessagePage:
        row = self._rows.found(session_id)
        return read_page(query, self._source(row), row.hidden, row.unfinished, self._levels)

    @in_worker_thread
    def text_of(self, session_id: str, seq: int) -> str | None:
        entry = self._source(self._rows.found(session_id)).at(seq)
        return None if entry is None else content_of(entry)

    @in_worker_thread
    def blob(self, session_id: str, blob_id: str, offset: int, length: int) -> bytes:
        check_byte_range(offset, length)
        self._rows.found(session_id)
        keys = self._keyspace.of(session_id)
        data = self._connection.run(scripts.BLOB, keys, blob_id, offset, length)
        if data is None:
            raise BadEntry(f"there is no blob {blob_id!r}")
        return bytes(data)

    @in_worker_thread
    def origin(self, session_id: str) -> Origin:
        self._rows.found(session_id)
        meta = self._keyspace.of(session_id).meta
        return decode(self._connection.ask("HGET", meta, "origin"), type=Origin)

    @in_worker_thread
    def stored_parts(self, session_id: str) -> StoredParts:
        """Reads a whole conversation without verifying it."""
        keys = self._keyspace.of(session_id)
        lines: builtins.list[bytes] = []
        after = "-"
        while found := self._connection.ask(
            *("XRANGE", keys.log, after, "+", "COUNT", _LINES_AT_ONCE)
        ):
            lines += [bytes(fields.get(b"line", b"")) for _, fields in found]
            after = f"({found[-1][0].decode()}"
        blobs = self._connection.ask("HGETALL", keys.blobs)
        return StoredParts(
            lines=lines,
            checkpoint=self._connection.ask("HGET", keys.meta, "checkpoint"),
            blobs={name.decode(): bytes(data) for name, data in blobs.items()},
        )

    async def entries(
        self, session_id: str, *, after: int = 0, through: int | None = None
    ) -> AsyncIterator[Sequence[Entry]]:
        walk = self._walk(session_id, after, through)
        while batch := await self._connection.in_thread(lambda: list(islice(walk, _BATCH_ENTRIES))):
            yield batch

    def _walk(self, session_id: str, after: int, through: int | None) -> Iterator[Entry]:
        """Yields the entries; if lines were trimmed, the checkpoint that replaces them comes
        first."""
        _check_id(session_id)
        row, (line,) = self._rows.read(session_id, "checkpoint")
        if row is None:
            raise ConversationNotFound(session_id)
        checkpoint = decode_checkpoint(session_id, line)
        last = row.head_seq if through is None else min(through, row.head_seq)
        if checkpoint is not None and after < checkpoint.seq <= last:
            yield checkpoint
        yield from StreamSource(self._connection, session_id, last).after(after)

    # Finding a prompt by its message_id
    #
    # A hash has the number of every prompt that has a message_id. Of a trimmed one it
    # keeps the turn and its state, so that it does not run again either. A number is
    # believed once its line was read. `meta` counts the names: if some are missing
    # (Redis evicts keys), the stream is read and they are added again.

    @in_worker_thread
    def prompt_by_message_id(self, session_id: str, message_id: str) -> SentBefore | None:
        if writer := self._writers.get(session_id):
            writer.settle()  # else a prompt could be found that the next entry replaces
        row, keys = self._rows.found(session_id), self._keyspace.of(session_id)

        def ask() -> tuple[Any, bool]:
            """The value noted under that message id, and whether all ids are there."""
            found, is_all = self._connection.run(scripts.PROMPT_BY_MESSAGE_ID, keys, message_id)
            return (None if found is None else orjson.loads(found)), bool(is_all)

        noted, is_all = ask()
        if not is_all:
            self._connection.call_many(
                ("HSETNX", keys.prompts, prompt_id, place_in_stream(entry))
                for entry in self._source(row).after(0)
                if (prompt_id := message_id_of(entry))
            )
            self._connection.run(scripts.COUNT_PROMPTS, keys)
            noted, _ = ask()
        if noted is None:
            return None
        source = StreamSource(self._connection, session_id, max(row.head_seq, noted[0]))
        following = source.after(noted[0] - 1)
        if found := sent_before(following, message_id=message_id, hidden=row.hidden):
            return found
        match ask():  # trimmed, perhaps just now
            case [int(seq), str(turn_id), "completed" | "interrupted" | "failed" as state], _:
                return SentBefore(seq=seq, turn_id=turn_id, state=state, text=None)
            case _:
                return None

    # Building and deleting

    @asynccontextmanager
    async def build(self, session_id: str, origin: Origin) -> AsyncIterator[Builder]:
        _check_id(session_id)
        if await self.row(session_id) is not None:
            raise ConversationExists(session_id)
        row = new_row(session_id, user=origin.user, created_at=origin.created_at)
        made = NewStream(self._connection, row)
        try:
            yield made
            await self._connection.in_thread(self._publish, made, origin)
        except BaseException:
            await self._connection.in_thread(made.drop)
            raise

    def _publish(self, made: NewStream, origin: Origin) -> None:
        row = made.row
        self._lists.add(row)
        reply = self._connection.run(
            scripts.PUBLISH,
            [*self._keyspace.of(row.session_id), *made.keys],
            *(row_as_lines(row), row.user, origin_as_bytes(origin), row.head_seq),
            *(made.checkpoint_line, self._ttl_milliseconds),
            *self._parts.announced(row, "new"),
        )
        if reply == b"taken":
            raise ConversationExists(row.session_id)

    async def delete(self, session_id: str) -> None:
        """Raises `ConversationHeld` while another server has it open."""
        await self._connection.in_thread(self._delete, session_id)
        if writer := self._writers.pop(session_id, None):
            writer.stop_writing()

    def _delete(self, session_id: str) -> None:
        row, at = self._rows.found(session_id), self._clock()
        keys = [*self._keyspace.of(session_id), *self._keyspace.of(session_id, IN_TRASH)]
        score = int(at.timestamp() * 1000)
        self._connection.call(
            "ZADD", self._keyspace.of_user("deleted", row.user), score, session_id
        )
        when = (TRASH_SECONDS * 1000, time_as_text(at))
        told = self._parts.announced(row, "deleted")
        self._leases.claim(scripts.DELETE, session_id, keys, *when, *told)
        self._lists.remove(row)

    @in_worker_thread
    def undelete(self, session_id: str, *, user: str | None = None) -> None:
        _check_id(session_id)
        row, _ = self._deleted(session_id)
        if row is None or user not in (None, row.user):
            raise ConversationNotFound(session_id)
        if self._rows.row(session_id) is not None:
            raise ConversationExists(session_id)
        self._lists.add(row)
        keys = [*self._keyspace.of(session_id), *self._keyspace.of(session_id, IN_TRASH)]
        told = self._parts.announced(row, "new")
        reply = self._connection.run(scripts.UNDELETE, keys, self._ttl_milliseconds, *told)
        if reply == b"gone":
            raise ConversationNotFound(session_id)
        if reply == b"taken":
            raise ConversationExists(session_id)
        self._connection.call("ZREM", self._keyspace.of_user("deleted", row.user), session_id)

    @in_worker_thread
    def is_trash_of_another(self, session_id: str, user: str) -> bool:
        row, _ = self._deleted(session_id)
        return row is not None and row.user != user

    @in_worker_thread
    def trash(self, user: str, *, limit: int | None = None) -> Sequence[DeletedConversation]:
        """The deleted conversations. Those that have expired or were replaced are removed from the
        list."""
        found: list[DeletedConversation] = []
        key = self._keyspace.of_user("deleted", user)
        listed = self._connection.ask("ZREVRANGE", key, 0, -1, "WITHSCORES")
        last_score = b""
        for place, score in zip(listed[::2], listed[1::2], strict=True):
            if limit is not None and len(found) >= limit and score != last_score:
                break
            last_score = score
            row, at = self._deleted(place.decode())
            if row is not None and at is not None and row.user == user:
                found.append(DeletedConversation(row=row, deleted_at=at))
            elif float(score) < (self._clock() - FRESH).timestamp() * 1000:
                self._connection.call("ZREM", key, place)
        return found

    def _deleted(self, session_id: str) -> tuple[ConversationRow | None, datetime | None]:
        row, (at,) = self._rows.read(session_id, "deleted", place=IN_TRASH)
        return row, None if at is None else datetime.fromisoformat(at.decode())

    # Rows and lists

    @in_worker_thread
    def row(self, session_id: str) -> ConversationRow | None:
        return self._rows.row(session_id)

    def touch(self, session_id: str, at: datetime) -> None:
        self._rows.touch(session_id, at)

    @in_worker_thread
    def seen(self, session_ids: Sequence[str]) -> Mapping[str, int]:
        return self._rows.seen(session_ids)

    @in_worker_thread
    def mark_seen(self, session_id: str, seq: int, *, unread: bool = False) -> int:
        return self._rows.mark_seen(session_id, seq, unread=unread)

    @in_worker_thread
    def list(self, user: str, query: RowQuery) -> RowPage:
        return self._rows.list(user, query)

    @in_worker_thread
    def count(self, user: str) -> int:
        return self._rows.count(user)

    async def search(self, user: str, query: SearchQuery) -> SearchPage:
        return await self._search_index.search(user, query)


async def _examined(connection: RedisConnection, wait_seconds: float, *, expires: bool) -> Examined:
    """Waits for a Redis that is away."""
    give_up_at = anyio.current_time() + wait_seconds
    is_announced = False
    while True:
        try:
            return await connection.in_thread(partial(examine, connection, expires=expires))
        except StorageAway as error:
            if anyio.current_time() >= give_up_at:
                raise
            if not is_announced:
                log.warning("%s; waiting for it up to %g s", error, wait_seconds)
            is_announced = True
        await anyio.sleep(_TRIED_AGAIN_SECONDS)


def _check_id(session_id: str) -> None:
    if not is_session_id(session_id):
        raise ConversationNotFound(session_id)


def _check_ends(
    source: StreamSource, row: ConversationRow, checkpoint: CheckpointEntry | None
) -> None:
    """Raises if an end of the stream is missing: Redis evicts single keys, and the rest may look
    complete."""
    if row.first_seq > 1 and checkpoint is None:
        raise ConversationDamaged(row.session_id, "its checkpoint is not there")
    for seq in (row.first_seq, row.head_seq):
        if row.first_seq <= row.head_seq and source.at(seq) is None:
            raise ConversationDamaged(row.session_id, f"entry {seq} is not there")


def _brought_up_to_date(
    row: ConversationRow, added: bytes | None, source: StreamSource
) -> ConversationRow:
    """The row after the writes of a server of an older version, which knows only some fields."""
    known = unknown_since(row, added)
    if known >= row.head_seq:
        return row
    return with_added_fields(row, source.after(max(known, row.first_seq - 1)))
