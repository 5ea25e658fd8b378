"""The writer of one conversation in Redis.

Redis decides whether an entry follows the last one, so two servers can't both succeed. When a
reply is lost, it is unknown whether the entry arrived. The record remembers it as doubtful, and
the next step (another append, a close) first removes it if it did arrive. So an entry that was
reported as failed does not appear later, as long as this process lives.

Redaction is the one rewrite of a stream. Redis can't change an entry of a stream, and a deleted
one stays in memory for a while, so the stream is copied and replaced in one step. Redis is then
asked to rewrite its own file at once; older snapshots and backups are the operator's concern.
"""

from __future__ import annotations

import hashlib
import logging
import time
from asyncio import Future
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from threading import Lock
from typing import Final

import orjson
import redis
from msgspec.structs import replace
from redis.exceptions import RedisError

from nplt_storage.changes import change_by
from nplt_storage.codec import encode_line, time_as_text
from nplt_storage.durations import Commits
from nplt_storage.entries import BlobReference, CheckpointEntry, Entry, RollbackEntry, ends_turn
from nplt_storage.errors import (
    BadEntry,
    ConversationDamaged,
    ConversationNotFound,
    ConversationReadOnly,
    StorageError,
    WrittenElsewhere,
)
from nplt_storage.ids import new_entry_id
from nplt_storage.partial_answers import DeltaKind, PartialAnswer
from nplt_storage.redaction import blobs_named_by, redacted, without_words_of
from nplt_storage.redis import scripts
from nplt_storage.redis.changes import Published, RedisChanges
from nplt_storage.redis.connection import (
    Argument,
    RedisConnection,
    Sender,
    configured,
    in_worker_thread,
)
from nplt_storage.redis.live_journal import LiveJournal, LiveText
from nplt_storage.redis.ownership import Leases, Ownership
from nplt_storage.redis.streams import NewStream, StreamSource, decode_checkpoint, message_id_of
from nplt_storage.redis.trimming import TurnSpans, checkpoint_after, trimmed_prompts
from nplt_storage.redis.user_lists import UserLists
from nplt_storage.rows import (
    Checkpoint,
    ConversationRow,
    fold,
    is_busy,
    new_row,
    read_checkpoint,
    row_as_lines,
)
from nplt_storage.store import Origin

log = logging.getLogger(__name__)

_ASKED_SECONDS_MAX: Final = 10.0
_ASKED_AGAIN_SECONDS: Final = 0.02


@dataclass(frozen=True, kw_only=True, eq=False)
class StoreParts:
    """The services and settings that a store and its open records share."""

    connection: RedisConnection
    leases: Leases
    lists: UserLists
    sender: Sender
    journal: LiveJournal
    ttl_milliseconds: int
    """0 if conversations do not expire."""
    turns_max: int
    """0 for no limit."""
    changes: RedisChanges
    commits: Commits = field(default_factory=Commits)
    writers: dict[str, RedisRecord | None] = field(default_factory=dict)
    """The open records by conversation; `None` while one is being opened."""

    def announced(self, row: ConversationRow, change: Published) -> tuple[str, str]:
        """The arguments of a script that tell other servers of the change: channel and message."""
        channel = self.connection.keyspace.of_user("changes", row.user)
        return channel, f"{change} {row.session_id}"


class RedisRecord:
    """The writer of one conversation. `row`, `owned` and `checkpoint` are its view of what Redis
    holds."""

    def __init__(
        self,
        parts: StoreParts,
        row: ConversationRow,
        owned: Ownership,
        checkpoint: CheckpointEntry | None = None,
        partial_answer: PartialAnswer | None = None,
    ) -> None:
        self.session_id = row.session_id
        self.owned = owned
        self._row = row
        self._checkpoint = checkpoint
        self._parts = parts
        self._connection = parts.connection
        self._leases = parts.leases
        self._live = LiveText(owned, partial_answer)
        self._is_closed = False
        self._lock = Lock()
        self._spans = TurnSpans()
        self._doubts: dict[str, str] = {}
        """The digests of lines that may have been stored one number above the head, with their
        message ids."""
        self._is_floor_known = True
        """Whether the first stored entry is known for certain."""

    @property
    def is_lapsed(self) -> bool:
        return not self._is_closed and self._leases.is_over(self.owned)

    @property
    def wanted_within(self) -> float | None:
        if self._is_closed or self.owned.wanted_by is None:
            return None
        return self._leases.handed_over_within

    @in_worker_thread
    def reclaim(self) -> None:
        with self._lock:
            if self.is_lapsed:
                self._leases.reclaim(self.owned)

    def journal_delta(
        self, turn_id: str, call: int, kind: DeltaKind, text: str
    ) -> Future[bool] | None:
        stored = self._live.add(turn_id, call, kind, text)
        self._parts.journal.post(self._live)
        return stored

    @in_worker_thread
    def keep_blob(self, data: bytes) -> BlobReference:
        blob = BlobReference.of(data)
        self._write(scripts.KEEP_BLOB, blob.blob_id, data, self._parts.ttl_milliseconds)
        return blob

    async def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            try:
                await self._connection.in_thread(self._leave)
            finally:
                self._leases.forget(self.owned)
                if self._parts.writers.get(self.session_id) is self:
                    del self._parts.writers[self.session_id]

    def _leave(self) -> None:
        self._parts.sender.flush()
        with self._live.sending:  # a piece that arrives later would acquire the lease again
            self._live.close()
        try:
            with self._lock:
                self._settle()
        except (RedisError, StorageError) as error:
            log.warning("%s: an entry that failed may be there: %s", self.session_id, error)
        try:
            self._leases.give_back(self.owned)
        except RedisError as error:
            log.warning("%s: other servers can't open it at once: %s", self.session_id, error)

    def stop_writing(self) -> None:
        """Stops all writes, because the conversation was deleted."""
        self._is_closed = True
        self._live.close()
        self._leases.forget(self.owned)

    def learn_turns(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self._spans.add(entry)

    @in_worker_thread
    def append(self, entry: Entry) -> ConversationRow:
        with self._lock:
            if not self._is_floor_known:
                self._learn_floor()
            before = self._row
            line = encode_line(entry)
            if self._is_closed:
                raise ConversationReadOnly(self.session_id, "this record was closed")
            if entry.seq != before.head_seq + 1:
                raise BadEntry(f"entry {entry.seq} can't follow entry {before.head_seq}")
            if isinstance(entry, RollbackEntry) and entry.to_seq < before.first_seq - 1:
                raise BadEntry(f"entry {entry.to_seq} is no longer kept: nothing leads back to it")
            outdates_live = self._live.is_outdated_by(entry)
            row = fold(before, entry)
            if row.later != before.later and row.due_at is not None:
                self._parts.lists.add_later([(row.user, row.session_id)])
            is_busy_now = is_busy(row) and not is_busy(before)
            self._commit(entry, line, row, forget=outdates_live, is_busy_now=is_busy_now)
            if outdates_live:
                self._live.forget()
            self._row = row
            self._parts.lists.moved(before, row)
            if self._parts.turns_max:
                self._spans.add(entry)
                if ends_turn(entry):
                    self._trim()
            return self._row

    def _commit(
        self, entry: Entry, line: bytes, row: ConversationRow, *, forget: bool, is_busy_now: bool
    ) -> None:
        digest = _digest(line)
        also = self._parts.lists.note_busy(row) if is_busy_now else ()

        def attempt() -> None:
            doubts = orjson.dumps(self._doubts)
            self._doubts[digest] = message_id_of(entry)
            self._write(
                scripts.APPEND,
                *(entry.seq, line, row_as_lines(row), self._parts.ttl_milliseconds),
                *(int(forget), doubts, row.first_seq, message_id_of(entry)),
                *(*self._parts.announced(row, change_by(entry)), self.session_id),
                also=also,
            )
            self._doubts.clear()

        try:
            with self._parts.commits.count():
                attempt()
        except redis.ConnectionError:
            # Often only this connection is dead. Should the entry be there
            # already, the second attempt finds it doubtful and replaces it.
            try:
                attempt()
            except WrittenElsewhere:
                source = StreamSource(self._connection, self.session_id, entry.seq)
                if digest not in map(_digest, source.lines_after(entry.seq - 1)):
                    raise

    def _write(self, script: str, *arguments: Argument, also: Sequence[str] = ()) -> None:
        """Runs a script as the owner, after acquiring the lease again if it has lapsed."""

        def run() -> bytes:
            asked_at = self._leases.clock()
            lease = (token, self._leases.milliseconds)
            keys = [*self.owned.keys, *also]
            reply: bytes = self._connection.run(script, keys, *lease, *arguments)
            if reply == b"done":
                self._leases.extend(self.owned, token, asked_at)
            return reply

        token = self.owned.token
        reply = b"fenced" if self._leases.is_over(self.owned) else run()
        if reply == b"fenced":
            try:
                self._leases.reclaim(self.owned, token)
                token = self.owned.token
            except StorageError:
                self._connection.counts.writes_fenced += 1
                self._doubts.clear()
                raise
            reply = run()
        if reply == b"done":
            return
        self._doubts.clear()
        self._connection.counts.writes_fenced += reply in (b"fenced", b"stale")
        head_seq = self._row.head_seq
        match reply:
            case b"gone":
                raise ConversationNotFound(self.session_id)
            case b"fenced":
                raise WrittenElsewhere("another server has taken it over meanwhile")
            case b"stale":
                raise WrittenElsewhere(f"entry {head_seq} is not the last one any more")
            case b"sent":
                raise BadEntry("a prompt with this message_id is there already")
            case _:
                raise ConversationDamaged(self.session_id, f"entry {head_seq} is not there")

    def settle(self) -> None:
        """Removes a doubtful entry, if it was stored. Blocks."""
        with self._lock:
            self._settle()

    def _settle(self) -> None:
        """The entry stays doubtful: the command that stores it may still be on its way."""
        if self._doubts:
            row, doubts = self._row, orjson.dumps(self._doubts)
            told = self._parts.announced(row, "redacted")
            self._write(scripts.SETTLE, row.head_seq + 1, row_as_lines(row), doubts, *told)

    # Cutting and erasing

    def _trim(self) -> None:
        """Trims old turns. The append has already succeeded, so a failure is left to the next
        turn."""
        row = self._row
        first = self._spans.first_to_keep(self._parts.turns_max)
        if first <= row.first_seq:
            return
        try:
            source = StreamSource(self._connection, self.session_id, first - 1)
            gone = list(source.after(row.first_seq - 1))
            if len(gone) != first - row.first_seq:
                raise ConversationDamaged(self.session_id, "entries are missing")
            floor = self._floor(self._checkpoint)
            checkpoint = checkpoint_after(floor, gone, entry_id=new_entry_id())
            trimmed = replace(row, first_seq=first)
            self._write(
                scripts.TRIM,
                *(row.head_seq, first, encode_line(checkpoint), row_as_lines(trimmed)),
                self._parts.ttl_milliseconds,
                *trimmed_prompts(gone, hidden=row.hidden),
            )
        except Exception as error:  # whatever it is, the entry is stored, and its writer must know
            log.warning("%s: can't be trimmed: %r", self.session_id, error)
            self._is_floor_known = False
            return
        self._row, self._checkpoint = trimmed, checkpoint
        self._spans.forget_before(first)

    def _learn_floor(self) -> None:
        """Reads the checkpoint again after a trim whose outcome is unknown."""
        line = self._connection.ask("HGET", self.owned.keys.meta, "checkpoint")
        checkpoint = decode_checkpoint(self.session_id, line)
        if checkpoint is not None:
            self._row = replace(self._row, first_seq=checkpoint.seq + 1)
            self._checkpoint = checkpoint
            self._spans.forget_before(checkpoint.seq + 1)
        self._is_floor_known = True

    async def redact(self, seq: int, *, at: datetime) -> Entry:
        tombstone = await self._connection.in_thread(self._redact, seq, at)
        await self._connection.in_thread(ask_for_a_new_file, self._connection)
        return tombstone

    def _redact(self, seq: int, at: datetime) -> Entry:
        with self._lock:
            if self._is_closed:
                raise ConversationReadOnly(self.session_id, "this record was closed")
            self._settle()
            if not self._is_floor_known:
                self._learn_floor()
            before, checkpoint = self._row, self._checkpoint
            source = StreamSource(self._connection, self.session_id, before.head_seq)
            is_checkpoint = checkpoint is not None and checkpoint.seq == seq
            erased = checkpoint if is_checkpoint else source.at(seq)
            if erased is None:
                raise BadEntry(f"there is no entry {seq}")
            tombstone = redacted(erased, at)
            if is_checkpoint and isinstance(tombstone, CheckpointEntry):
                checkpoint = tombstone
            first_seq = 1 if checkpoint is None else checkpoint.seq + 1
            floor = self._floor(checkpoint).row
            origin = Origin(user=before.user, created_at=before.created_at)
            blobs: set[str] = set()

            def rewritten() -> Iterator[Entry]:
                for entry in source.after(first_seq - 1):
                    entry = without_words_of(erased, tombstone, entry)
                    blobs.update(blobs_named_by([entry]))
                    yield entry

            made = NewStream(
                self._connection, replace(floor, head_seq=first_seq - 1, first_seq=first_seq)
            )
            try:
                made.write(rewritten())
                self._write(
                    scripts.REWRITE,
                    *(before.head_seq, encode_line(checkpoint) if checkpoint else b""),
                    # Without the fields of another program, which may repeat the words.
                    *(row_as_lines(made.row), origin_as_bytes(origin)),
                    self._parts.ttl_milliseconds,
                    *self._parts.announced(made.row, "redacted"),
                    *sorted(blobs_named_by([erased]) - blobs),
                    also=made.keys,
                )
            except BaseException:
                made.drop()
                raise
            self._row, self._checkpoint = made.row, checkpoint
            self._parts.lists.moved(before, made.row)
            return tombstone

    def _floor(self, checkpoint: CheckpointEntry | None) -> Checkpoint:
        """The state before the first stored entry. A copied checkpoint names another conversation,
        so its identity is replaced."""
        row = self._row
        own = new_row(self.session_id, user=row.user, created_at=row.created_at)
        if checkpoint is None:
            return Checkpoint(row=own)
        found = read_checkpoint(checkpoint)
        if found is None:
            raise ConversationDamaged(self.session_id, "its checkpoint can't be read")
        named = {"session_id": own.session_id, "user": own.user, "created_at": own.created_at}
        return replace(found, row=replace(found.row, **named))


def _digest(line: bytes) -> str:
    return hashlib.sha1(line, usedforsecurity=False).hexdigest()


def ask_for_a_new_file(connection: RedisConnection) -> None:
    """Asks Redis to rewrite its append-only file, which holds the erased words until then. A
    rewrite that is already running began too early to count."""
    deadline = time.monotonic() + _ASKED_SECONDS_MAX
    for node in connection.nodes():
        try:
            is_begun = configured(node).get("appendonly") != "yes"
            while not is_begun:
                try:
                    node.execute_command("BGREWRITEAOF")  # type: ignore[no-untyped-call]
                    is_begun = True
                except redis.ResponseError as refusal:
                    if "in progress" not in str(refusal):
                        raise
                    if time.monotonic() > deadline:
                        raise redis.ResponseError("it is still writing the one before") from None
                    time.sleep(_ASKED_AGAIN_SECONDS)
        except redis.RedisError as error:
            log.warning("Redis may hold erased words on disk until it rewrites its log: %s", error)


def origin_as_bytes(origin: Origin) -> bytes:
    created_at = time_as_text(origin.created_at)
    return orjson.dumps(
        {"user": origin.user, "created_at": created_at, "extra": dict(origin.extra)}
    )
