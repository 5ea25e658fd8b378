"""The store whose conversations are kept in Redis, and the writer of one of them.

The package's docstring has the layout. Redis decides whether an entry follows the last one,
so two servers can't both succeed. When a reply is lost, it is not known whether the entry
arrived: the record remembers it as doubtful, and the next step (another append, a close)
first removes it if it did. An entry that was reported as failed so does not appear later, as
long as this process lives.
"""

from __future__ import annotations

import hashlib
import logging
import time
from asyncio import Future, get_running_loop
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from itertools import islice
from queue import SimpleQueue
from threading import Event, Lock, Thread
from typing import Any, Final, TypeAlias

import orjson
import redis
from msgspec import Struct
from msgspec.json import decode
from msgspec.structs import replace
from redis.exceptions import RedisError

from nplt_storage.codec import (
    BadLine,
    decode_line,
    decode_verified,
    encode_line,
    time_as_text,
    verify_line,
)
from nplt_storage.entries import (
    BlobReference,
    CheckpointEntry,
    Entry,
    FaultEntry,
    ForkedEntry,
    ModelInputEntry,
    ModelOutputEntry,
    RollbackEntry,
)
from nplt_storage.errors import (
    BadEntry,
    ConversationDamaged,
    ConversationExists,
    ConversationHeld,
    ConversationNotFound,
    ConversationReadOnly,
    StorageError,
    WrittenElsewhere,
)
from nplt_storage.history import ConversationHistory, Ranges, SentBefore, is_in, sent_before
from nplt_storage.ids import is_session_id, new_entry_id
from nplt_storage.json_values import check_text
from nplt_storage.messages import LevelMaker, content_of, no_levels
from nplt_storage.pages import MessagePage, PageQuery, read_end, read_page
from nplt_storage.redaction import blobs_named_by, redacted, without_words_of
from nplt_storage.redis import scripts
from nplt_storage.redis.connection import (
    Argument,
    RedisConnection,
    check_version,
    configured,
    how_durable,
    in_worker_thread,
)
from nplt_storage.redis.ownership import LEASE_SECONDS, Leases, Ownership
from nplt_storage.redis.scripts import IN_TRASH
from nplt_storage.rows import (
    Checkpoint,
    ConversationRow,
    RowPage,
    RowPlace,
    RowQuery,
    StateEntry,
    checkpoint_state,
    cut_page,
    fold,
    fold_all,
    hidden_after,
    matches,
    new_row,
    place_of,
    read_checkpoint,
    read_cursor,
    row_as_bytes,
    row_from_bytes,
    state_seqs_of,
)
from nplt_storage.search import SearchPage, SearchQuery, search_entries
from nplt_storage.store import (
    Builder,
    DeletedConversation,
    DeltaKind,
    Member,
    Opened,
    Origin,
    PartialAnswer,
    Piece,
    Record,
    StoreDescription,
    check_byte_range,
    joined,
    not_yet_an_entry,
    outdates,
)

log = logging.getLogger(__name__)

# ------------------------------------------------------------------------------
# Places in lists, and lines in streams


def place_as_bytes(place: RowPlace) -> bytes:
    """Encodes a place so that the bytes sort as places do, and Redis can keep a user's list in
    order."""
    pinned, updated_at, session_id = place
    return f"{int(pinned)}{time_as_text(updated_at)}{session_id}".encode()


def read_place(place: bytes) -> tuple[str, str]:
    """The time, as text, and the session id."""
    return place[1:33].decode(), place[33:].decode()


def name_of(entry: Entry) -> str:
    """The message_id of a prompt; empty for every other entry."""
    return (entry.message_id or "") if isinstance(entry, ModelInputEntry) else ""


def place_in_stream(entry: Entry) -> bytes:
    """The value noted under a prompt's message id while its line is kept."""
    return b"[%d]" % entry.seq


_LINES_AT_FIRST: Final = 24
_LINES_MAX: Final = 1000
_BYTES_AT_ONCE: Final = 1024 * 1024


class StreamSource:
    """Reads the lines up to `head_seq` from Redis on demand."""

    def __init__(self, connection: RedisConnection, session_id: str, head_seq: int) -> None:
        self.head_seq = head_seq
        self.bytes_read = 0
        self._connection = connection
        self._session_id = session_id
        self._log = connection.keyspace.of(session_id).log

    def before(self, seq: int) -> Iterator[Entry]:
        lines = self._walk("XREVRANGE", min(seq - 1, self.head_seq), -1)
        return map(self._decoded, lines)

    def after(self, seq: int) -> Iterator[Entry]:
        return map(self._decoded, self.lines_after(seq))

    def at(self, seq: int) -> Entry | None:
        if not 1 <= seq <= self.head_seq:
            return None
        found = self._read("XRANGE", seq, seq, 1)
        return self._decoded(found[0][1]) if found else None

    def lines_after(self, seq: int) -> Iterator[bytes]:
        return self._walk("XRANGE", max(seq, 0) + 1, 1)

    def _walk(self, command: str, start: int, step: int) -> Iterator[bytes]:
        last = 1 if step < 0 else self.head_seq
        expected: int | None = None
        count = _LINES_AT_FIRST
        while (last - start) * step >= 0:
            found = self._read(command, start, last, count)
            for seq, line in found:
                if expected is not None and seq != expected:
                    raise self._damaged(f"entry {expected} is missing")
                yield line
                expected = seq + step
            if len(found) < count or expected is None:
                return
            start = expected
            mean = sum(len(line) for _, line in found) // len(found)
            count = max(1, min(_LINES_MAX, _BYTES_AT_ONCE // max(mean, 1)))

    def _read(self, command: str, start: int, last: int, count: int) -> list[tuple[int, bytes]]:
        found = self._connection.ask(command, self._log, start, last, "COUNT", count)
        lines: list[tuple[int, bytes]] = []
        for entry_id, fields in found:
            seq, line = int(entry_id.partition(b"-")[0]), bytes(fields.get(b"line", b""))
            try:
                numbered = verify_line(line)
            except BadLine as error:
                raise self._damaged(f"entry {seq}: {error}") from error
            if numbered != seq:
                raise self._damaged(f"entry {seq} says it is entry {numbered}")
            self.bytes_read += len(line)
            lines.append((seq, line))
        return lines

    def _decoded(self, line: bytes) -> Entry:
        try:
            return decode_verified(line)
        except BadLine as error:
            raise self._damaged(str(error)) from error

    def _damaged(self, reason: str) -> ConversationDamaged:
        return ConversationDamaged(self._session_id, reason)


def decode_checkpoint(session_id: str, line: bytes | None) -> CheckpointEntry | None:
    if not line:
        return None
    try:
        entry = decode_line(line)
    except BadLine as error:
        raise ConversationDamaged(session_id, f"its checkpoint: {error}") from error
    if not isinstance(entry, CheckpointEntry):
        raise ConversationDamaged(session_id, "its checkpoint is something else")
    return entry


# ------------------------------------------------------------------------------
# A stream that is being built or rewritten
#
# It expires an hour after its last line, in case the process dies.

_KEPT_SECONDS: Final = 3600


class NewStream:
    def __init__(self, connection: RedisConnection, row: ConversationRow) -> None:
        self.row = row
        """The row after the entries so far."""
        self.checkpoint_line = b""
        """The state before the first entry, if earlier ones were trimmed."""
        self.keys = connection.keyspace.of(row.session_id, f"@new:{new_entry_id()}:")
        self._connection = connection

    @in_worker_thread
    def add(self, entries: Sequence[Entry]) -> None:
        own, first = self.row, entries[0] if entries else None
        if own.head_seq == 0 and isinstance(first, CheckpointEntry) and first.seq > 1:
            # A copy of a conversation that was trimmed begins with what is left of the rest.
            found = read_checkpoint(first)
            if found is None:
                raise BadEntry(f"entry {first.seq} can't be the first: its state can't be read")
            self.checkpoint_line = encode_line(first)
            named = {"session_id": own.session_id, "user": own.user, "created_at": own.created_at}
            self.row = replace(fold(found.row, first), first_seq=first.seq + 1, **named)
            entries = entries[1:]
        self.write(entries)

    @in_worker_thread
    def keep_blob(self, data: bytes) -> BlobReference:
        blob = BlobReference.of(data)
        self._send(("HSET", self.keys.blobs, blob.blob_id, data))
        return blob

    # In a worker thread

    def write(self, entries: Iterable[Entry]) -> None:
        commands: list[tuple[Argument, ...]] = []
        size = 0
        for entry in entries:
            if entry.seq != self.row.head_seq + 1:
                raise BadEntry(f"entry {entry.seq} can't follow entry {self.row.head_seq}")
            line = encode_line(entry)
            commands.append(("XADD", self.keys.log, f"{entry.seq}-0", "line", line))
            if name := name_of(entry):
                commands.append(("HSETNX", self.keys.prompts, name, place_in_stream(entry)))
            self.row = fold(self.row, entry)
            size += len(line)
            if size > _BYTES_AT_ONCE:
                self._send(*commands)
                commands, size = [], 0
        self._send(*commands)

    def drop(self) -> None:
        self._connection.call("DEL", *self.keys)

    def _send(self, *commands: tuple[Argument, ...]) -> None:
        expiring = [("EXPIRE", key, _KEPT_SECONDS) for key in self.keys]
        self._connection.call_many([*commands, *expiring])


# ------------------------------------------------------------------------------
# Redaction: the one rewrite of a stream
#
# Redis can't change an entry of a stream, and a deleted one stays in memory for a while.
# So the stream is copied and replaced in one step. Redis is asked to rewrite its own file
# at once; older snapshots and backups are the operator's concern.


_ASKED_SECONDS_MAX: Final = 10.0
_ASKED_AGAIN_SECONDS: Final = 0.02


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


# ------------------------------------------------------------------------------
# Writes that nobody waits for: last-access times, and text of running answers
#
# One thread, in order. A failure is logged once and the write is dropped.


class Sender:
    def __init__(self) -> None:
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._is_well = True

    def post(self, job: Callable[[], None]) -> None:
        if self._thread is None:
            self._thread = Thread(target=self._work, name="redis sender", daemon=True)
            self._thread.start()
        self._jobs.put(job)

    def flush(self) -> None:
        """Blocks until every job posted before has run."""
        if self._thread is not None:
            done = Event()
            self._jobs.put(done.set)
            done.wait()

    def close(self) -> None:
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
                self._is_well = True
            except RedisError as error:
                if self._is_well:
                    log.warning("Redis was not told something of little weight: %s", error)
                self._is_well = False
            except Exception:  # whoever waits for this thread must not wait for ever
                log.exception("a job of the Redis sender failed")


class UserLists(Sender):
    """Keeps the sorted lists of users' conversations. They are in other slots of a cluster than the
    conversations, so they are written after a commit, and readers correct what is out of date. It
    is a sender of its own, because its node may be down while others answer."""

    def __init__(self, connection: RedisConnection) -> None:
        super().__init__()
        self._connection = connection
        self._waiting: dict[str, tuple[str, bytes, set[bytes]]] = {}
        """The user, the new place and the earlier places, by session id."""
        self._is_posted = False
        self._lock = Lock()

    def moved(self, before: ConversationRow, after: ConversationRow) -> None:
        """Queues the move; readers of this store wait until it is written."""
        place, gone = place_as_bytes(place_of(after)), {place_as_bytes(place_of(before))}
        with self._lock:
            _, _, earlier = self._waiting.get(after.session_id, ("", b"", set()))
            self._waiting[after.session_id] = (after.user, place, earlier | gone)
            is_posted, self._is_posted = self._is_posted, True
        if not is_posted:
            self.post(self._send)

    def replace(self, user: str, gone: Iterable[bytes], place: bytes) -> None:
        """Adds the new place before removing the old ones, so that the conversation is never
        missing. Blocks."""
        key = self._connection.keyspace.of_user("user", user)
        commands: list[tuple[Argument, ...]] = [("ZADD", key, 0, place)]
        commands += [("ZREM", key, each) for each in gone if each != place]
        self._connection.call_many(commands)

    def _send(self) -> None:
        with self._lock:
            self._is_posted = False
        while self._waiting:
            with self._lock:
                session_id, (user, place, gone) = self._waiting.popitem()
            try:
                self.replace(user, gone, place)
            except BaseException:
                with self._lock:  # with the next one, unless a reader puts it right before
                    later = self._waiting.get(session_id, (user, place, set()))
                    self._waiting[session_id] = (*later[:2], later[2] | gone)
                raise


_WaitingPiece: TypeAlias = tuple[tuple[str, int], bytes, Future[None]]
"""The turn and call, the encoded piece, and a future that ends when it was sent."""


def _settle(pieces: Sequence[_WaitingPiece]) -> None:
    """Releases the callers that wait for these pieces; may be called from any thread."""

    def settle() -> None:
        for _, _, sent in pieces:
            if not sent.done():
                sent.set_result(None)

    if pieces:
        with suppress(RuntimeError):  # the loop has ended, and nobody waits
            pieces[0][2].get_loop().call_soon_threadsafe(settle)


# ------------------------------------------------------------------------------
# Trimming to the newest turns
#
# Turns can overlap, so a cut is only made where no turn lies on both sides of it:
# sometimes more turns are kept than asked for, never fewer and never a part of one.
# Turns that a rollback hid do not count, but are not split either.
#
# A checkpoint holds the state at the cut. It is stored beside the stream under the number
# of the last entry that was removed, and changes in the same step.


class _Span(Struct):
    first: int
    last: int
    end: int
    """The last entry of the turn; `last` may be a rollback that left a part of it."""
    is_ended: bool = False
    is_hidden: bool = False
    counts: bool = True


class TurnSpans:
    """The first and last entries of each turn that is kept."""

    def __init__(self) -> None:
        self._turns: dict[str, _Span] = {}
        self._hidden: Ranges = ()

    def add(self, entry: Entry) -> None:
        if isinstance(entry, RollbackEntry):
            self._roll_back(entry)
        elif isinstance(entry, ForkedEntry):
            for turn in self._turns.values():
                turn.is_ended = True
        elif entry.turn_id is not None:
            turn = self._turns.setdefault(entry.turn_id, _Span(entry.seq, entry.seq, entry.seq))
            turn.last = turn.end = entry.seq
            turn.is_ended = turn.is_ended or ends_turn(entry)

    def first_to_keep(self, turns_max: int) -> int:
        """The number of the first entry to keep; 0 if all are kept."""
        spans = sorted(self._turns.values(), key=lambda turn: turn.first, reverse=True)
        kept = 0
        for place, turn in enumerate(spans):
            kept += turn.is_ended and turn.counts
            older = spans[place + 1 :]
            may_begin = kept >= turns_max and not turn.is_hidden
            if may_begin and all(o.is_ended and o.last < turn.first for o in older):
                return turn.first if older else 0
        return 0

    def forget_before(self, seq: int) -> None:
        self._turns = {id_: turn for id_, turn in self._turns.items() if turn.first >= seq}

    def _roll_back(self, rollback: RollbackEntry) -> None:
        self._hidden = hidden_after(self._hidden, rollback)
        for turn in self._turns.values():
            begins, ends = is_in(self._hidden, turn.first), is_in(self._hidden, turn.end)
            turn.is_ended, turn.is_hidden, turn.counts = True, begins, not (begins or ends)
            # What is left of a turn must stay with the rollback.
            turn.last = rollback.seq if ends and not begins else max(turn.last, turn.end)


def ends_turn(entry: Entry) -> bool:
    if isinstance(entry, ModelOutputEntry):
        return entry.ends_turn
    return isinstance(entry, FaultEntry)


def checkpoint_after(
    before: Checkpoint, gone: Sequence[Entry], *, entry_id: str
) -> CheckpointEntry:
    """The state after these entries have been trimmed too."""
    last = gone[-1]
    row = replace(fold_all(before.row, gone), first_seq=last.seq + 1)
    there = {entry.seq: entry for entry in (*before.told, *gone) if isinstance(entry, StateEntry)}
    told = tuple(there[seq] for seq in state_seqs_of(row).values() if seq in there)
    return CheckpointEntry(
        seq=last.seq,
        id=entry_id,
        timestamp=last.timestamp,
        state=checkpoint_state(Checkpoint(row=row, told=told)),
    )


def what_is_left(gone: Sequence[Entry], *, hidden: Ranges) -> list[Argument]:
    """The message ids of trimmed prompts, each with the facts that are kept about it."""
    left: list[Argument] = []
    for place, entry in enumerate(gone):  # a turn is trimmed whole: its end is among them
        name = name_of(entry)
        known = sent_before(gone[place:], hidden=hidden) if name else None
        if known is not None:
            left += name, orjson.dumps([known.seq, known.turn_id, known.state])
    return left


@dataclass(frozen=True, kw_only=True, eq=False)
class StoreParts:
    """The services and settings that a store and its open records share."""

    connection: RedisConnection
    leases: Leases
    lists: UserLists
    sender: Sender
    ttl_milliseconds: int
    """0 if conversations do not expire."""
    turns_max: int
    """0 for no limit."""
    writers: dict[str, RedisRecord | None] = field(default_factory=dict)
    """The open records by conversation; `None` while one is being opened."""


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
        self._call = self._sent_call = (
            (partial_answer.turn_id, partial_answer.call) if partial_answer else None
        )
        """The running call, and the call whose text is in Redis, at least in part."""
        self._pieces: deque[_WaitingPiece] = deque()
        self._is_broken = False
        self._sending = Lock()
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
    ) -> Future[None] | None:
        """Ends when Redis has stored the piece, or will not."""
        if self._is_closed:
            return None
        self._call = (turn_id, call)
        try:
            encoded = orjson.dumps((turn_id, call, kind, text)) + b"\n"
        except orjson.JSONEncodeError:
            encoded = b""  # half a surrogate pair: nobody could read it
        sent: Future[None] = get_running_loop().create_future()
        self._pieces.append((self._call, encoded, sent))
        self._parts.sender.post(self._send_pieces)
        return sent

    def _send_pieces(self) -> None:
        """Sends the waiting pieces. After a failure nothing more of that call is sent, so that the
        stored text has no gaps."""
        with self._sending:
            pieces = [self._pieces.popleft() for _ in range(len(self._pieces))]
            try:
                call = pieces[-1][0] if pieces else self._sent_call
                spoken = [encoded for of, encoded, _ in pieces if of == call]
                begins = call != self._sent_call
                if not pieces or (self._is_broken and not begins):
                    return
                self._sent_call, self._is_broken = call, True
                if all(spoken) and not self._leases.is_over(self.owned):
                    lease = (self.owned.token, self._leases.milliseconds)
                    text = (int(begins), b"".join(spoken))
                    run = partial(self._connection.run, scripts.APPEND_LIVE, self.owned.keys)
                    self._is_broken = run(*lease, *text) != b"done"
            finally:
                _settle(pieces)

    def _ends_answer(self, entry: Entry) -> bool:
        """Whether this entry holds the running call's whole answer, or ends its turn. Blocks while
        a piece is being sent, so that none arrives later."""
        if self._call is None or not outdates(entry, *self._call):
            return False
        with self._sending:
            _settle([self._pieces.popleft() for _ in range(len(self._pieces))])
            self._call = self._sent_call = None
        return True

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
        try:
            with self._lock:
                self._settle()
        except (RedisError, StorageError) as error:
            log.warning("%s: an entry that failed may be there: %s", self.session_id, error)
        try:
            self._leases.give_back(self.owned)
        except RedisError as error:
            log.warning("%s: other servers can't open it at once: %s", self.session_id, error)

    def is_lost(self) -> None:
        """Stops all writes, because the conversation was deleted."""
        self._is_closed = True
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
            ends_answer = self._ends_answer(entry)
            row = fold(before, entry)
            self._commit(entry, line, row, forget=ends_answer)
            self._row = row
            self._parts.lists.moved(before, row)
            if self._parts.turns_max:
                self._spans.add(entry)
                if ends_turn(entry):
                    self._trim()
            return self._row

    def _commit(self, entry: Entry, line: bytes, row: ConversationRow, *, forget: bool) -> None:
        digest = _digest(line)

        def attempt() -> None:
            doubts = orjson.dumps(self._doubts)
            self._doubts[digest] = name_of(entry)
            self._write(
                scripts.APPEND,
                *(entry.seq, line, row_as_bytes(row), self._parts.ttl_milliseconds),
                *(int(forget), doubts, row.first_seq, name_of(entry)),
            )
            self._doubts.clear()

        try:
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
            lease = (self.owned.token, self._leases.milliseconds)
            keys = [*self.owned.keys, *also]
            answer: bytes = self._connection.run(script, keys, *lease, *arguments)
            if answer == b"done":
                self.owned.until = self._leases.until(asked_at)
            return answer

        answer = b"fenced" if self._leases.is_over(self.owned) else run()
        if answer == b"fenced":
            try:
                self._leases.reclaim(self.owned)
            except StorageError:
                self._doubts.clear()
                raise
            answer = run()
        if answer == b"done":
            return
        self._doubts.clear()
        head_seq = self._row.head_seq
        match answer:
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

    def _settle(self) -> None:
        """Removes a doubtful entry, if it was stored."""
        if self._doubts:
            row, doubts = self._row, orjson.dumps(self._doubts)
            self._write(scripts.SETTLE, row.head_seq + 1, row_as_bytes(row), doubts)
            self._doubts.clear()

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
                *(row.head_seq, first, encode_line(checkpoint), row_as_bytes(trimmed)),
                self._parts.ttl_milliseconds,
                *what_is_left(gone, hidden=row.hidden),
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
                    *(row_as_bytes(made.row), self._parts.ttl_milliseconds),
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


# ------------------------------------------------------------------------------
# The store

_ROW_FIELDS: Final = ("row", "accessed", "damaged")
_ROWS_AT_ONCE: Final = 200
_COUNTED_AT_ONCE: Final = 1000
_REPAIRS_MAX: Final = 3
"""The number of repairs of one part of a list while others write to it."""
_FRESH: Final = timedelta(hours=1)
"""A list entry without a conversation is kept for this long, because the conversation may be about
to appear."""
TRASH_SECONDS: Final = 30 * 24 * 3600
_BATCH_ENTRIES: Final = 100
_MINUTE_MILLISECONDS: Final = 60_000


class RedisStore:
    def __init__(
        self,
        parts: StoreParts,
        *,
        clock: Callable[[], datetime],
        promise: str,
        levels: LevelMaker = no_levels,
    ) -> None:
        """Use `open_url`, which connects and checks the version."""
        self.description = StoreDescription(backend="redis", promise=promise)
        self._clock = clock
        self._levels = levels
        self._parts = parts
        self._connection = parts.connection
        self._keyspace = parts.connection.keyspace
        self._leases = parts.leases
        self._lists = parts.lists
        self._sender = parts.sender
        self._ttl_milliseconds = parts.ttl_milliseconds
        self._writers = parts.writers
        self._accesses: dict[str, datetime] = {}
        """Last-access times that are being sent; readers in this process see them at once."""
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
        timeout_seconds: float = 5.0,
        lease_seconds: float = LEASE_SECONDS,
        advertise: str | None = None,
        levels: LevelMaker = no_levels,
    ) -> RedisStore:
        """`advertise` is the address at which other servers reach this one."""
        connection = RedisConnection(url, timeout_seconds=timeout_seconds, key_prefix=key_prefix)
        try:
            await connection.in_thread(check_version, connection)
            promise = await connection.in_thread(how_durable, connection)
        except BaseException:
            connection.close()
            raise
        parts = StoreParts(
            connection=connection,
            leases=Leases(connection, seconds=lease_seconds, address=advertise),
            lists=UserLists(connection),
            sender=Sender(),
            ttl_milliseconds=(ttl_seconds or 0) * 1000,
            turns_max=max_turns or 0,
        )
        return cls(parts, clock=clock, promise=promise, levels=levels)

    @property
    def read_only_reason(self) -> str | None:
        return self._connection.trouble

    async def close(self) -> None:
        for writer in [writer for writer in self._writers.values() if writer is not None]:
            await writer.close()
        for part in (self._leases, self._sender, self._lists):
            await self._connection.in_thread(part.close)
        self._connection.close()

    # The servers that share it

    def join(self) -> None:
        self._leases.start(announces=True)

    @property
    def server_id(self) -> str:
        return self._leases.own.id

    async def ask_for(self, held: ConversationHeld) -> None:
        if held.token is not None:
            await self._connection.in_thread(self._leases.ask_for, held.session_id, held.token)

    @in_worker_thread
    def members(self) -> Sequence[Member]:
        members = self._leases.members()
        self.description = replace(self.description, promise=how_durable(self._connection))
        return members

    @in_worker_thread
    def take_turn(self, user: str, turn_id: str, turns_max: int) -> bool:
        return self._leases.take_turn(user, turn_id, turns_max)

    def end_turn(self, user: str, turn_id: str) -> None:
        self._sender.post(partial(self._leases.end_turn, user, turn_id))

    @in_worker_thread
    def count_prompt(self, user: str, per_minute: float) -> float:
        keys, size = [self._keyspace.of_user("rate", user)], f"{per_minute:g}"
        return (
            int(self._connection.run(scripts.COUNT_PROMPT, keys, size, _MINUTE_MILLISECONDS)) / 1000
        )

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
        if self._row_of(row.session_id) is None:
            self._list(row)  # before: one that is there is in the list, whatever happens
        origin = origin_as_bytes(Origin(user=row.user, created_at=row.created_at))
        asked_at = self._leases.clock()
        token = self._connection.run(
            scripts.CREATE,
            self._keyspace.of(row.session_id),
            *(nonce, self._leases.server, self._leases.milliseconds),
            *(row_as_bytes(row), row.user, origin, self._ttl_milliseconds),
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
        noted = self._accesses.get(session_id)
        owned, found = self._acquire(session_id)
        try:
            row = decode_row(found, noted)
            assert row is not None
            checkpoint = decode_checkpoint(session_id, found[3])
            source = self._source(row)
            _check_ends(source, row, checkpoint)
            held = read_end(source, row)
            pieces = [decode(line, type=Piece) for line in (found[4] or b"").splitlines()]
            partial_answer = not_yet_an_entry(joined(pieces), row, held)
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
                    lease = (owned.token, self._leases.milliseconds)
                    self._connection.run(scripts.NOTE_DAMAGE, owned.keys, *lease, error.reason)
                self._leases.give_back(owned)
            raise

    def _acquire(self, session_id: str) -> tuple[Ownership, Sequence[Any]]:
        """The ownership, and the reply of `scripts.OPEN`: row, accessed, damaged, checkpoint, live,
        token."""
        asked_at = self._leases.clock()
        claim = partial(
            self._leases.claim,
            *(scripts.OPEN, session_id, self._keyspace.of(session_id)),
            *(new_entry_id(), self._leases.milliseconds, self._ttl_milliseconds),
        )
        try:
            found = claim()
        except ConversationNotFound:
            if not self._adopt(session_id):
                raise
            found = claim()
        return self._leases.owned(session_id, found[5], asked_at), found

    # Reading one conversation

    def _source(self, row: ConversationRow) -> StreamSource:
        return StreamSource(self._connection, row.session_id, row.head_seq)

    @in_worker_thread
    def page(self, session_id: str, query: PageQuery) -> MessagePage:
        row = self._found(session_id)
        return read_page(query, self._source(row), row.hidden, row.unfinished, self._levels)

    @in_worker_thread
    def text_of(self, session_id: str, seq: int) -> str | None:
        entry = self._source(self._found(session_id)).at(seq)
        return None if entry is None else content_of(entry)

    @in_worker_thread
    def blob(self, session_id: str, blob_id: str, offset: int, length: int) -> bytes:
        check_byte_range(offset, length)
        self._found(session_id)
        keys = self._keyspace.of(session_id)
        data = self._connection.run(scripts.BLOB, keys, blob_id, offset, length)
        if data is None:
            raise BadEntry(f"there is no blob {blob_id!r}")
        return bytes(data)

    @in_worker_thread
    def origin(self, session_id: str) -> Origin:
        self._found(session_id)
        meta = self._keyspace.of(session_id).meta
        return decode(self._connection.ask("HGET", meta, "origin"), type=Origin)

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
        row, (line,) = self._read(session_id, "checkpoint")
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
        row, keys = self._found(session_id), self._keyspace.of(session_id)

        def ask() -> tuple[Any, bool]:
            """The value noted under that message id, and whether all ids are there."""
            found, is_all = self._connection.run(scripts.PROMPT_BY_MESSAGE_ID, keys, message_id)
            return (None if found is None else orjson.loads(found)), bool(is_all)

        noted, is_all = ask()
        if not is_all:
            self._connection.call_many(
                ("HSETNX", keys.prompts, name, place_in_stream(entry))
                for entry in self._source(row).after(0)
                if (name := name_of(entry))
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
        self._list(row)
        answer = self._connection.run(
            scripts.PUBLISH,
            [*self._keyspace.of(row.session_id), *made.keys],
            *(row_as_bytes(row), row.user, origin_as_bytes(origin), row.head_seq),
            *(made.checkpoint_line, self._ttl_milliseconds),
        )
        if answer == b"taken":
            raise ConversationExists(row.session_id)

    async def delete(self, session_id: str) -> None:
        """Raises `ConversationHeld` while another server has it open."""
        await self._connection.in_thread(self._delete, session_id)
        if writer := self._writers.pop(session_id, None):
            writer.is_lost()

    def _delete(self, session_id: str) -> None:
        row, at = self._found(session_id), self._clock()
        keys = [*self._keyspace.of(session_id), *self._keyspace.of(session_id, IN_TRASH)]
        score = int(at.timestamp() * 1000)
        self._connection.call(
            "ZADD", self._keyspace.of_user("deleted", row.user), score, session_id
        )
        when = (TRASH_SECONDS * 1000, time_as_text(at))
        self._leases.claim(scripts.DELETE, session_id, keys, *when)
        self._unlist(row)

    @in_worker_thread
    def undelete(self, session_id: str, *, user: str | None = None) -> None:
        _check_id(session_id)
        row, _ = self._deleted(session_id)
        if row is None or user not in (None, row.user):
            raise ConversationNotFound(session_id)
        if self._row_of(session_id) is not None:
            raise ConversationExists(session_id)
        self._list(row)
        keys = [*self._keyspace.of(session_id), *self._keyspace.of(session_id, IN_TRASH)]
        answer = self._connection.run(scripts.UNDELETE, keys, self._ttl_milliseconds)
        if answer == b"gone":
            raise ConversationNotFound(session_id)
        if answer == b"taken":
            raise ConversationExists(session_id)
        self._connection.call("ZREM", self._keyspace.of_user("deleted", row.user), session_id)

    @in_worker_thread
    def is_trash_of_another(self, session_id: str, user: str) -> bool:
        row, _ = self._deleted(session_id)
        return row is not None and row.user != user

    @in_worker_thread
    def trash(self, user: str) -> Sequence[DeletedConversation]:
        """The deleted conversations. Those that have expired or were replaced are removed from the
        list."""
        found: list[DeletedConversation] = []
        key = self._keyspace.of_user("deleted", user)
        listed = self._connection.ask("ZREVRANGE", key, 0, -1, "WITHSCORES")
        for place, score in zip(listed[::2], listed[1::2], strict=True):
            row, at = self._deleted(place.decode())
            if row is not None and at is not None and row.user == user:
                found.append(DeletedConversation(row=row, deleted_at=at))
            elif float(score) < (self._clock() - _FRESH).timestamp() * 1000:
                self._connection.call("ZREM", key, place)
        return found

    def _deleted(self, session_id: str) -> tuple[ConversationRow | None, datetime | None]:
        row, (at,) = self._read(session_id, "deleted", place=IN_TRASH)
        return row, None if at is None else datetime.fromisoformat(at.decode())

    # Rows and lists: a sorted set per user holds the order
    #
    # What it holds is compared with the rows, and put right where they differ. One that
    # moves in the list while it is read appears at its new place or not at all.

    async def row(self, session_id: str) -> ConversationRow | None:
        if not is_session_id(session_id):
            return None
        return await self._connection.in_thread(self._row_of, session_id)

    def _row_of(self, session_id: str) -> ConversationRow | None:
        return self._read(session_id)[0]

    def _found(self, session_id: str) -> ConversationRow:
        _check_id(session_id)
        row = self._row_of(session_id)
        if row is None:
            raise ConversationNotFound(session_id)
        return row

    def _read(
        self, session_id: str, *more: str, place: str = ""
    ) -> tuple[ConversationRow | None, Sequence[bytes | None]]:
        """The row and further fields. A conversation in the older layout is converted first."""
        noted = self._accesses.get(session_id)  # forgotten once Redis has it
        meta = self._keyspace.of(session_id, place).meta
        command = ("HMGET", meta, *_ROW_FIELDS, *more)
        found: Sequence[bytes | None] = self._connection.ask(*command)
        if found[0] is None and self._adopt(session_id, place):
            found = self._connection.ask(*command)
        return decode_row(found, noted), found[len(_ROW_FIELDS) :]

    def touch(self, session_id: str, at: datetime) -> None:
        if is_session_id(session_id):
            self._accesses[session_id] = max(at, self._accesses.get(session_id, at))
            self._sender.post(self._send_accesses)

    def _send_accesses(self) -> None:
        for session_id, at in list(self._accesses.items()):
            try:
                keys = self._keyspace.of(session_id)
                self._connection.run(scripts.TOUCH, keys, time_as_text(at), self._ttl_milliseconds)
            finally:
                if self._accesses.get(session_id) == at:
                    del self._accesses[session_id]

    @in_worker_thread
    def list(self, user: str, query: RowQuery) -> RowPage:
        wanted: list[ConversationRow] = []
        for row in self._rows(user, query.cursor, at_first=query.limit + 1):
            if matches(row, query):
                wanted.append(row)
                if len(wanted) > query.limit:
                    break
        wanted.sort(key=place_of, reverse=True)  # one may have been met at an older place
        return cut_page(wanted, query.limit)

    @in_worker_thread
    def count(self, user: str) -> int:
        self._lists.flush()
        places = self._connection.ask("ZRANGE", self._keyspace.of_user("user", user), 0, -1)
        ids = sorted({read_place(place)[1] for place in places})
        there = 0
        for start in range(0, len(ids), _COUNTED_AT_ONCE):
            some = ids[start : start + _COUNTED_AT_ONCE]
            asked = [("HGET", self._keyspace.of(id_).meta, "user") for id_ in some]
            for id_, owner in zip(some, self._connection.ask_many(asked), strict=True):
                if owner is None:
                    with suppress(ConversationHeld):
                        there += self._adopt(id_)
                else:
                    there += owner.decode() == user
        return there

    @in_worker_thread
    def search(self, user: str, query: SearchQuery) -> SearchPage:
        """Searches all entries of the user, because Redis has no full-text index."""
        rows = self._rows(user)
        pairs = ((row, entry) for row in rows for entry in self._source(row).after(0))
        return search_entries(pairs, query)

    def _rows(
        self, user: str, cursor: str | None = None, *, at_first: int = _ROWS_AT_ONCE
    ) -> Iterator[ConversationRow]:
        self._lists.flush()
        count = min(at_first, _ROWS_AT_ONCE)
        below = None if cursor is None else place_as_bytes(read_cursor(cursor))
        met: set[str] = set()
        repairs_left = _REPAIRS_MAX
        while True:
            places = self._connection.ask(
                *("ZREVRANGEBYLEX", self._keyspace.of_user("user", user)),
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
            for row in wanted if is_read_again else [*wanted, *there]:
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
        self, user: str, places: Sequence[bytes]
    ) -> tuple[Sequence[ConversationRow], Sequence[tuple[bytes, ConversationRow]]]:
        """The rows whose place in the list is right, and those that had to be moved, with their new
        places."""
        there: list[ConversationRow] = []
        moved: list[tuple[bytes, ConversationRow]] = []
        ids = [read_place(place)[1] for place in places]
        noted = [self._accesses.get(id_) for id_ in ids]  # forgotten once Redis has them
        asked = [("HMGET", self._keyspace.of(id_).meta, *_ROW_FIELDS) for id_ in ids]
        found = self._connection.ask_many(asked)
        for listed, fields, at in zip(places, found, noted, strict=True):
            updated_at, session_id = read_place(listed)
            row = decode_row(fields, at)
            if row is None:
                try:
                    row = self._row_of(session_id)
                except ConversationHeld:
                    continue
            if row is None or row.user != user:
                if updated_at < time_as_text(self._clock() - _FRESH):
                    self._connection.call("ZREM", self._keyspace.of_user("user", user), listed)
                continue
            place = place_as_bytes(place_of(row))
            if place == listed:
                there.append(row)
            else:
                self._lists.replace(user, [listed], place)
                moved.append((place, row))
        return there, moved

    def _list(self, row: ConversationRow) -> None:
        place = place_as_bytes(place_of(row))
        self._connection.call("ZADD", self._keyspace.of_user("user", row.user), 0, place)

    def _unlist(self, row: ConversationRow) -> None:
        self._lists.flush()
        place = place_as_bytes(place_of(row))
        self._connection.call("ZREM", self._keyspace.of_user("user", row.user), place)

    # The layout before: the same keys without a hash tag, blobs and the checkpoint apart

    def _adopt(self, session_id: str, place: str = "") -> bool:
        """Converts a conversation from the older layout; returns whether there was one."""
        if self._connection.is_cluster:
            return False  # which never accepted those keys
        prefix = f"{self._keyspace.prefix}{place}{session_id}"
        if not self._connection.ask("EXISTS", f"{prefix}:meta"):
            return False
        parts = ("meta", "log", "live", "prompts", "blobs", "checkpoint", "owner")
        blobs = [blob.decode() for blob in self._connection.ask("SMEMBERS", f"{prefix}:blobs")]
        before = [f"{prefix}:{part}" for part in parts] + [f"{prefix}:blob:{id_}" for id_ in blobs]
        keys = [*self._keyspace.of(session_id, place), *before]
        answer = self._connection.run(scripts.ADOPT, keys, *blobs)
        if answer == b"held":
            raise ConversationHeld(session_id)
        return True  # by us, or by another server just now


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


def decode_row(found: Sequence[bytes | None], noted: datetime | None) -> ConversationRow | None:
    """Decodes the fields row, accessed and damaged; `noted` is an access time that is being
    sent."""
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


def origin_as_bytes(origin: Origin) -> bytes:
    created_at = time_as_text(origin.created_at)
    return orjson.dumps(
        {"user": origin.user, "created_at": created_at, "extra": dict(origin.extra)}
    )
