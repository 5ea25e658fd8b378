"""The one writer of a conversation that is kept in a stream.

Redis decides whether an entry follows the last one, so two servers can't both
be right. When an answer is lost nobody knows whether the entry arrived: the
record remembers it as doubtful, and the next step (another append, a close)
first takes it back if it did. Whoever was told that an entry failed will
not find it there later, as long as this process lives to see to it.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from threading import Lock
from typing import Literal

import redis
from redis.exceptions import RedisError

from nplt_storage.conversation.checkpoints import Checkpoint, read_checkpoint
from nplt_storage.conversation.row_json import row_as_bytes
from nplt_storage.conversation.row_lists import place_of
from nplt_storage.conversation.rows import ConversationRow, fold, new_row
from nplt_storage.errors import (
    BadEntry,
    ConversationDamaged,
    ConversationNotFound,
    ConversationReadOnly,
    StorageError,
    WrittenElsewhere,
)
from nplt_storage.facts.entries import CheckpointEntry, Entry, RollbackEntry
from nplt_storage.facts.lines import encode_line
from nplt_storage.facts.tool_calls import BlobReference
from nplt_storage.ids import new_entry_id
from nplt_storage.redis_streams import scripts
from nplt_storage.redis_streams.connection import Argument, RedisConnection
from nplt_storage.redis_streams.keys import Keys, Keyspace, name_of, place_as_bytes
from nplt_storage.redis_streams.leases import Leases
from nplt_storage.redis_streams.making import UnseenStream
from nplt_storage.redis_streams.reading import StreamSource, decode_checkpoint
from nplt_storage.redis_streams.rewriting import Rewrite, ask_for_a_new_file, write_without
from nplt_storage.redis_streams.sender import Talk
from nplt_storage.redis_streams.trimming import TurnSpans, checkpoint_after, ends_turn, what_is_left

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class WriterState:
    """What the writer believes Redis holds."""

    row: ConversationRow
    rev: str
    checkpoint: CheckpointEntry | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    ttl_milliseconds: int = 0
    max_turns: int = 0
    """0: no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What all writers of a store share."""

    connection: RedisConnection
    keyspace: Keyspace
    limits: Limits
    leases: Leases


class RedisRecord:
    def __init__(
        self,
        state: WriterState,
        *,
        around: Surroundings,
        talk: Talk,
        closed: Callable[[], None],
    ) -> None:
        self.session_id = state.row.session_id
        self._state = state
        self._connection = around.connection
        self._keyspace = around.keyspace
        self._limits = around.limits
        self._leases = around.leases
        self._talk = talk
        self._closed = closed
        self._is_closed = False
        self._lock = Lock()
        self._spans = TurnSpans()
        self._doubts: set[str] = set()
        """Digests of lines that may or may not be there, one number above the head."""
        self._is_floor_known = True
        """Whether the first entry there is is the one we believe."""

    @property
    def _keys(self) -> Keys:
        return self._keyspace.of(self.session_id)

    # The port

    async def append(self, entry: Entry) -> None:
        await self._connection.in_thread(partial(self._append, entry))

    def say(self, turn_id: str, call: int, kind: Literal["text", "reasoning"], text: str) -> None:
        if not self._is_closed:
            self._talk.say((turn_id, call, kind, text))

    async def keep_blob(self, data: bytes) -> BlobReference:
        digest = hashlib.sha256(data).hexdigest()
        keep = partial(self._run, scripts.KEEP_BLOB, digest, data, self._limits.ttl_milliseconds)
        await self._connection.in_thread(keep)
        return BlobReference(blob_id=digest, size=len(data), sha256=digest)

    async def redact(self, seq: int, *, at: datetime) -> Entry:
        tombstone = await self._connection.in_thread(partial(self._redact, seq, at))
        await self._connection.in_thread(partial(ask_for_a_new_file, self._connection))
        return tombstone

    async def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            try:
                await self._connection.in_thread(self._leave)
            finally:
                self._leases.forget(self._keys.base)
                self._closed()

    def is_lost(self) -> None:
        """It was deleted: nothing is written any more."""
        self._is_closed = True
        self._leases.forget(self._keys.base)

    # In a worker thread

    def learn_turns(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self._spans.add(entry)

    def _append(self, entry: Entry) -> None:
        with self._lock:
            if not self._is_floor_known:
                self._learn_floor()
            row = self._state.row
            line = encode_line(entry)
            if self._is_closed:
                raise ConversationReadOnly(self.session_id, "this record was closed")
            if entry.seq != row.head_seq + 1:
                raise BadEntry(f"entry {entry.seq} can't follow entry {row.head_seq}")
            if isinstance(entry, RollbackEntry) and entry.to_seq < row.first_seq - 1:
                raise BadEntry(f"entry {entry.to_seq} is no longer kept: nothing leads back to it")
            is_said = self._talk.is_outdated_by(entry)
            if is_said:
                self._talk.is_over()
            row = fold(row, entry)
            self._commit(entry, line, row, forget=is_said)
            self._state.row = row
            if self._limits.max_turns:
                self._spans.add(entry)
                if ends_turn(entry):
                    self._trim()

    def _commit(self, entry: Entry, line: bytes, row: ConversationRow, *, forget: bool) -> None:
        def attempt() -> None:
            doubts = "".join(self._doubts)
            self._doubts.add(hashlib.sha1(line, usedforsecurity=False).hexdigest())
            self._run(
                scripts.APPEND,
                *(entry.seq, line, row_as_bytes(row), place_as_bytes(place_of(row))),
                *(self._state.rev, self._limits.ttl_milliseconds, int(forget), doubts),
                *(row.first_seq, name_of(entry)),
            )
            self._doubts.clear()

        try:
            attempt()
        except redis.ConnectionError:
            # Often only this connection is dead. Should the entry be there
            # already, the second attempt finds it doubtful and replaces it.
            attempt()

    def _run(self, script: str, *arguments: Argument, also: str | None = None) -> None:
        keys = [self._keys.base, self._keyspace.prefix, *([also] if also else [])]
        match self._connection.run(script, keys, *self._leases.arguments, *arguments):
            case b"gone":
                self._doubts.clear()
                raise ConversationNotFound(self.session_id)
            case b"held":
                self._doubts.clear()
                raise WrittenElsewhere("another server has opened it meanwhile")
            case b"lost":
                self._doubts.clear()
                head_seq = self._state.row.head_seq
                raise ConversationDamaged(self.session_id, f"entry {head_seq} is not there")
            case b"stale":
                self._doubts.clear()
                head_seq = self._state.row.head_seq
                raise WrittenElsewhere(f"another server has written to it after entry {head_seq}")

    def _settle(self) -> None:
        """Takes a doubtful entry back, if it is there."""
        if self._doubts:
            row = self._state.row
            self._run(
                scripts.SETTLE,
                *(row.head_seq + 1, row_as_bytes(row), place_as_bytes(place_of(row))),
                *(self._state.rev, "".join(self._doubts)),
            )
            self._doubts.clear()

    def _leave(self) -> None:
        self._talk.flush()
        try:
            with self._lock:
                self._settle()
        except (RedisError, StorageError) as error:
            log.warning("%s: an entry that failed may be there: %s", self.session_id, error)
        try:
            self._leases.give_back(self._keys.base)
        except RedisError as error:
            log.warning("%s: other servers can't open it at once: %s", self.session_id, error)

    # Cutting and erasing

    def _trim(self) -> None:
        """The entry is in already, whatever comes of this: the next turn tries again."""
        row = self._state.row
        first = self._spans.first_to_keep(self._limits.max_turns)
        if first <= row.first_seq:
            return
        try:
            gone = list(self._source(first - 1).after(row.first_seq - 1))
            if len(gone) != first - row.first_seq:
                raise ConversationDamaged(self.session_id, "entries are missing")
            checkpoint = checkpoint_after(self._floor(), gone, entry_id=new_entry_id())
            trimmed = replace(row, first_seq=first)
            self._run(
                scripts.TRIM,
                *(row.head_seq, self._state.rev, first, encode_line(checkpoint)),
                *(row_as_bytes(trimmed), place_as_bytes(place_of(trimmed))),
                self._limits.ttl_milliseconds,
                *what_is_left(gone, hidden=row.hidden),
            )
        except Exception as error:  # whatever it is, who wrote the entry must hear that it is in
            log.warning("%s: can't be trimmed: %r", self.session_id, error)
            self._is_floor_known = False
            return
        self._state.row, self._state.checkpoint = trimmed, checkpoint
        self._spans.forget_before(first)

    def _learn_floor(self) -> None:
        """After a cut of which we don't know whether it was made."""
        line = self._connection.ask("GET", self._keys.checkpoint)
        checkpoint = decode_checkpoint(self.session_id, line)
        if checkpoint is not None:
            first_seq = checkpoint.seq + 1
            self._state.row = replace(self._state.row, first_seq=first_seq)
            self._state.checkpoint = checkpoint
            self._spans.forget_before(first_seq)
        self._is_floor_known = True

    def _redact(self, seq: int, at: datetime) -> Entry:
        with self._lock:
            if self._is_closed:
                raise ConversationReadOnly(self.session_id, "this record was closed")
            self._settle()
            if not self._is_floor_known:
                self._learn_floor()
            row = self._state.row
            made = UnseenStream(self._connection, self._keyspace)
            try:
                rewrite = write_without(
                    seq,
                    made,
                    source=self._source(row.head_seq),
                    checkpoint=self._state.checkpoint,
                    floor=self._floor(),
                    at=at,
                )
                self._take_over(made, rewrite)
            except BaseException:
                made.drop()
                raise
            return rewrite.tombstone

    def _take_over(self, made: UnseenStream, rewrite: Rewrite) -> None:
        rev = new_entry_id()
        self._run(
            scripts.REWRITE,
            *(rewrite.row.head_seq, self._state.rev, row_as_bytes(rewrite.row)),
            *(place_as_bytes(place_of(rewrite.row)), rev, self._limits.ttl_milliseconds),
            *rewrite.blobs_gone,
            also=made.keys.base,
        )
        self._state.row, self._state.rev = rewrite.row, rev
        self._state.checkpoint = rewrite.checkpoint

    def _source(self, head_seq: int) -> StreamSource:
        return StreamSource(self.session_id, self._keys.log, self._connection, head_seq=head_seq)

    def _floor(self) -> Checkpoint:
        """How it stood before the first entry there is."""
        row = self._state.row
        if self._state.checkpoint is None:
            return Checkpoint(
                row=new_row(self.session_id, user=row.user, created_at=row.created_at)
            )
        found = read_checkpoint(self._state.checkpoint)
        if found is None:
            raise ConversationDamaged(self.session_id, "its checkpoint can't be read")
        return found
