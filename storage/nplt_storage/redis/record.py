"""The writer of one conversation that is kept in a Redis stream.

Redis decides whether an entry follows the last one, so two servers can't both succeed.
When a reply is lost, it is not known whether the entry arrived: the record remembers it
as doubtful, and the next step (another append, a close) first removes it if it did. An
entry that was reported as failed so does not appear later, as long as this process
lives.
"""

from __future__ import annotations

import hashlib
import logging
import time
from asyncio import Future, get_running_loop
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from queue import SimpleQueue
from threading import Event, Lock, Thread
from typing import Final, TypeAlias

import orjson
import redis
from msgspec import Struct, field
from msgspec.structs import replace
from redis.exceptions import RedisError

from nplt_storage.codec import encode_line
from nplt_storage.entries import (
    BlobReference,
    CheckpointEntry,
    Entry,
    FaultEntry,
    ForkedEntry,
    ModelOutputEntry,
    RollbackEntry,
)
from nplt_storage.errors import (
    BadEntry,
    ConversationDamaged,
    ConversationNotFound,
    ConversationReadOnly,
    StorageError,
    WrittenElsewhere,
)
from nplt_storage.history import Ranges, is_in, sent_before
from nplt_storage.ids import new_entry_id
from nplt_storage.redaction import blobs_named_by, redacted, without_words_of
from nplt_storage.redis import scripts
from nplt_storage.redis.connection import (
    Argument,
    NewStream,
    RedisConnection,
    StreamSource,
    configured,
    decode_checkpoint,
    in_worker_thread,
    name_of,
    place_as_bytes,
)
from nplt_storage.redis.ownership import Leases, Ownership
from nplt_storage.rows import (
    Checkpoint,
    ConversationRow,
    StateEntry,
    checkpoint_state,
    fold,
    fold_all,
    hidden_after,
    new_row,
    place_of,
    read_checkpoint,
    row_as_bytes,
    state_seqs_of,
)
from nplt_storage.store import DeltaKind, PartialAnswer, Piece, outdates

log = logging.getLogger(__name__)

# ------------------------------------------------------------------------------
# Redaction: the one rewrite of a stream
#
# Redis can't change an entry of a stream, and a deleted one stays in memory for a while.
# So the stream is copied and replaced in one step. Redis is asked to rewrite its own file
# at once; older snapshots and backups are the operator's concern.


_ASKED_SECONDS_MAX: Final = 10.0
_ASKED_AGAIN_SECONDS: Final = 0.02


def ask_for_a_new_file(connection: RedisConnection) -> None:
    """Where Redis keeps a log of commands, the erased words are in it until it
    writes a new one. One that it is writing already began before, and won't do."""
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
        """Blocks until what was posted before has been dealt with."""
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
    """Keeps the indexes of users' conversations in the order of lists. They are in other slots
    of a cluster than the conversations, so they are written after a commit, and whoever reads
    them puts right what is out of date. A sender of its own: its node may be down while others
    answer."""

    def __init__(self, connection: RedisConnection) -> None:
        super().__init__()
        self._connection = connection
        self._waiting: dict[str, tuple[str, bytes, set[bytes]]] = {}
        """User, place, and the places before, by id."""
        self._is_posted = False
        self._lock = Lock()

    def moved(self, before: ConversationRow, after: ConversationRow) -> None:
        """To be written soon; who reads through this store waits for it."""
        place, gone = place_as_bytes(place_of(after)), {place_as_bytes(place_of(before))}
        with self._lock:
            _, _, earlier = self._waiting.get(after.session_id, ("", b"", set()))
            self._waiting[after.session_id] = (after.user, place, earlier | gone)
            is_posted, self._is_posted = self._is_posted, True
        if not is_posted:
            self.post(self._send)

    def replace(self, user: str, gone: Iterable[bytes], place: bytes) -> None:
        """Blocks. In this order it is never missing."""
        key = self._connection.keyspace.list_of(user)
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


class RedisContext(Struct, frozen=True, kw_only=True):
    """What a store shares with its records."""

    connection: RedisConnection
    leases: Leases
    lists: UserLists
    sender: Sender = field(default_factory=Sender)
    writers: dict[str, RedisRecord | None] = field(default_factory=dict)
    """The open records; `None` while one is being opened."""
    ttl_milliseconds: int
    turns_max: int
    """0: no limit."""


_WaitingPiece: TypeAlias = tuple[tuple[str, int], bytes, Future[None]]
"""Turn and call, the encoded piece, and what ends when it was sent."""


class PartialAnswers:
    """What the running call of one conversation says, piece by piece.

    After a piece that did not get through, nothing more of that call is sent:
    what is there must be how it began, not a text with a hole.
    """

    def __init__(
        self, context: RedisContext, owned: Ownership, so_far: PartialAnswer | None
    ) -> None:
        self._context = context
        self._owned = owned
        self._call = self._sent_call = (so_far.turn_id, so_far.call) if so_far else None
        self._pieces: deque[_WaitingPiece] = deque()
        self._is_broken = False
        self._sending = Lock()

    def journal_delta(self, piece: Piece) -> Future[None]:
        """Done when Redis has it, or won't get it."""
        self._call = piece[:2]
        try:
            encoded = orjson.dumps(piece) + b"\n"
        except orjson.JSONEncodeError:
            encoded = b""  # half a surrogate pair: nobody could read it
        sent: Future[None] = get_running_loop().create_future()
        self._pieces.append((self._call, encoded, sent))
        self._context.sender.post(self._send)
        return sent

    def ended_by(self, entry: Entry) -> bool:
        """Whether this entry holds that call's whole answer, or ends its turn. Blocks while a
        piece is on its way, so that none arrives after this."""
        if self._call is None or not outdates(entry, *self._call):
            return False
        with self._sending:
            _settle([self._pieces.popleft() for _ in range(len(self._pieces))])
            self._call = self._sent_call = None
        return True

    def _send(self) -> None:
        with self._sending:
            pieces = [self._pieces.popleft() for _ in range(len(self._pieces))]
            try:
                if pieces:
                    self._send_all(pieces)
            finally:
                _settle(pieces)

    def _send_all(self, pieces: Sequence[_WaitingPiece]) -> None:
        call = pieces[-1][0]
        spoken = [encoded for of, encoded, _ in pieces if of == call]
        begins = call != self._sent_call
        if self._is_broken and not begins:
            return
        self._sent_call, self._is_broken = call, True
        leases, owned = self._context.leases, self._owned
        if all(spoken) and not leases.is_over(owned):
            lease = (owned.token, leases.milliseconds)
            said = (int(begins), b"".join(spoken))
            run = self._context.connection.run
            self._is_broken = run(scripts.APPEND_LIVE, owned.keys, *lease, *said) != b"done"


def _settle(pieces: Sequence[_WaitingPiece]) -> None:
    """In whatever thread: whoever waits for them goes on."""

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
    """The last of its entries; `last` is a rollback if that left a part of the turn."""
    is_ended: bool = False
    is_hidden: bool = False
    counts: bool = True


class TurnSpans:
    """Where the turns of the kept entries begin and end."""

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
        """The number of the first entry that stays; 0 if all do."""
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
    """The state once these entries are gone too."""
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
    """Names and what stays known, of the prompts among entries that are trimmed."""
    left: list[Argument] = []
    for place, entry in enumerate(gone):  # a turn is trimmed whole: its end is among them
        name = name_of(entry)
        known = sent_before(gone[place:], hidden=hidden) if name else None
        if known is not None:
            left += name, orjson.dumps([known.seq, known.turn_id, known.state])
    return left


class RedisRecord:
    """What `row`, `owned` and `checkpoint` say is what the writer believes Redis holds."""

    def __init__(
        self,
        context: RedisContext,
        row: ConversationRow,
        owned: Ownership,
        checkpoint: CheckpointEntry | None = None,
        said: PartialAnswer | None = None,
    ) -> None:
        self.session_id = row.session_id
        self.owned = owned
        self._row = row
        self._checkpoint = checkpoint
        self._context = context
        self._connection = context.connection
        self._leases = context.leases
        self._partial_answers = PartialAnswers(context, owned, said)
        self._is_closed = False
        self._lock = Lock()
        self._spans = TurnSpans()
        self._doubts: dict[str, str] = {}
        """Digests of lines that may or may not be there, one number above the head, and the
        message_id of each."""
        self._is_floor_known = True
        """Whether the first entry there is is the one we believe."""

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
        if self._is_closed:
            return None
        return self._partial_answers.journal_delta((turn_id, call, kind, text))

    @in_worker_thread
    def keep_blob(self, data: bytes) -> BlobReference:
        blob = BlobReference.of(data)
        self._write(scripts.KEEP_BLOB, blob.blob_id, data, self._context.ttl_milliseconds)
        return blob

    async def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            try:
                await self._connection.in_thread(self._leave)
            finally:
                self._leases.forget(self.owned)
                if self._context.writers.get(self.session_id) is self:
                    del self._context.writers[self.session_id]

    def _leave(self) -> None:
        self._context.sender.flush()
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
        """It was deleted: nothing is written any more."""
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
            is_said = self._partial_answers.ended_by(entry)
            row = fold(before, entry)
            self._commit(entry, line, row, forget=is_said)
            self._row = row
            self._context.lists.moved(before, row)
            if self._context.turns_max:
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
                *(entry.seq, line, row_as_bytes(row), self._context.ttl_milliseconds),
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
                lines = self._source(entry.seq).lines_after(entry.seq - 1)
                if digest not in map(_digest, lines):
                    raise

    def _write(self, script: str, *arguments: Argument, also: Sequence[str] = ()) -> None:
        """Runs a script of the owner. One whose lease has lapsed first acquires anew."""

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
        """Takes a doubtful entry back, if it is there."""
        if self._doubts:
            row, doubts = self._row, orjson.dumps(self._doubts)
            self._write(scripts.SETTLE, row.head_seq + 1, row_as_bytes(row), doubts)
            self._doubts.clear()

    # Cutting and erasing

    def _trim(self) -> None:
        """The entry is in already, whatever comes of this: the next turn tries again."""
        row = self._row
        first = self._spans.first_to_keep(self._context.turns_max)
        if first <= row.first_seq:
            return
        try:
            gone = list(self._source(first - 1).after(row.first_seq - 1))
            if len(gone) != first - row.first_seq:
                raise ConversationDamaged(self.session_id, "entries are missing")
            floor = self._floor(self._checkpoint)
            checkpoint = checkpoint_after(floor, gone, entry_id=new_entry_id())
            trimmed = replace(row, first_seq=first)
            self._write(
                scripts.TRIM,
                *(row.head_seq, first, encode_line(checkpoint), row_as_bytes(trimmed)),
                self._context.ttl_milliseconds,
                *what_is_left(gone, hidden=row.hidden),
            )
        except Exception as error:  # whatever it is, who wrote the entry must hear that it is in
            log.warning("%s: can't be trimmed: %r", self.session_id, error)
            self._is_floor_known = False
            return
        self._row, self._checkpoint = trimmed, checkpoint
        self._spans.forget_before(first)

    def _learn_floor(self) -> None:
        """After a cut of which we don't know whether it was made."""
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
            source = self._source(before.head_seq)
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
                made.add(rewritten())
                self._write(
                    scripts.REWRITE,
                    *(before.head_seq, encode_line(checkpoint) if checkpoint else b""),
                    *(row_as_bytes(made.row), self._context.ttl_milliseconds),
                    *sorted(blobs_named_by([erased]) - blobs),
                    also=made.keys,
                )
            except BaseException:
                made.drop()
                raise
            self._row, self._checkpoint = made.row, checkpoint
            self._context.lists.moved(before, made.row)
            return tombstone

    def _source(self, head_seq: int) -> StreamSource:
        return StreamSource(
            self.session_id, self.owned.keys.log, self._connection, head_seq=head_seq
        )

    def _floor(self, checkpoint: CheckpointEntry | None) -> Checkpoint:
        """How it stood before the first entry there is. A checkpoint that was copied is that of
        another conversation."""
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
