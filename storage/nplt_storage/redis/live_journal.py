"""The live journal in Redis: the text of running answers, stored before it is shown.

`LiveText` is the text of one conversation's running call. A piece may be shown when Redis has
stored it; then a server that takes the conversation over has it too. So a server that was stopped
and overtaken shows nothing that is in no record.

While Redis is away the pieces wait. The next write then holds the whole text of the call, because
it is unknown what arrived; so it does if Redis has less than it should (after a failover or a
restart). The stored text therefore never has a gap.

`LiveJournal` sends the pieces of all conversations, in one thread for each node of a cluster, so
that a node that hangs delays only its own. Whatever has gathered is sent in one pipeline.
"""

from __future__ import annotations

import logging
from asyncio import Future, get_running_loop
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from io import StringIO
from itertools import groupby, islice
from operator import itemgetter
from threading import Condition, Lock, Thread
from time import monotonic
from typing import Final, NamedTuple

import orjson
from redis.exceptions import RedisError

from nplt_storage.entries import Entry
from nplt_storage.errors import StorageError
from nplt_storage.partial_answers import DeltaKind, PartialAnswer, outdates
from nplt_storage.redis import scripts
from nplt_storage.redis.connection import RedisConnection
from nplt_storage.redis.ownership import Leases, Ownership

log = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 0.2
_AT_ONCE: Final = 200
"""The most conversations in one pipeline."""


class _Piece(NamedTuple):
    kind: DeltaKind
    text: str
    stored: Future[bool]


class _Write(NamedTuple):
    version: int
    at: int
    """The number of bytes that Redis has already; 0 to write the whole text."""
    data: bytes
    pieces: int
    """The number of waiting pieces that it stores."""


class LiveText:
    """The text of one conversation's running call. May be used from any thread."""

    def __init__(self, owned: Ownership, partial_answer: PartialAnswer | None) -> None:
        """`partial_answer` is the text that Redis holds of a call whose server died."""
        self.owned = owned
        self.sending = Lock()
        """Held while pieces are being sent, so that none arrives after the call's entry, or after
        the lease was returned."""
        self._call = (partial_answer.turn_id, partial_answer.call) if partial_answer else None
        self._whole: dict[DeltaKind, StringIO] = {}
        """The text of the call, from its beginning."""
        self._stored_bytes = 0
        """How many encoded bytes Redis has for certain."""
        self._waiting: list[_Piece] = []
        """The pieces that are not stored yet."""
        self._version = 0
        """Changes when what is being sent no longer counts."""
        self.has_gap = False
        """Whether it is not known what Redis has, so that the next write has the whole text."""
        self._is_closed = False
        self._lock = Lock()

    def add(self, turn_id: str, call: int, kind: DeltaKind, text: str) -> Future[bool]:
        """The future tells whether the piece was stored, so that it may be shown."""
        encodable = text.encode(errors="replace").decode()  # half a surrogate pair is not
        stored: Future[bool] = get_running_loop().create_future()
        with self._lock:
            if self._is_closed:
                stored.set_result(False)
                return stored
            if self._call != (turn_id, call):
                self._reset((turn_id, call))
            self._whole.setdefault(kind, StringIO()).write(encodable)
            self._waiting.append(_Piece(kind, encodable, stored))
        return stored

    def is_outdated_by(self, entry: Entry) -> bool:
        """Whether this entry holds the running call's whole answer, or ends its turn. Then nothing
        more of the call is sent. Blocks while a piece is being sent."""
        if self._call is None or not outdates(entry, *self._call):
            return False
        with self.sending:
            self.drop()
        return True

    def forget(self) -> None:
        """Forgets the call, because the entry that outdates it is stored."""
        with self._lock:
            self._reset(None)

    def drop(self) -> None:
        """The pieces that wait are neither sent nor shown."""
        with self._lock:
            self._drop()

    def close(self) -> None:
        """Ends the journal of the conversation: nothing more is sent or shown."""
        with self._lock:
            self._is_closed = True
            self._reset(None)

    def next_write(self) -> _Write | None:
        with self._lock:
            if not self._waiting or self._call is None:
                return None
            pieces: list[tuple[DeltaKind, str]] = (
                [(piece.kind, piece.text) for piece in self._waiting]
                if self._stored_bytes
                else [(kind, text.getvalue()) for kind, text in self._whole.items()]
            )
            data = _encoded(self._call, pieces)
            return _Write(self._version, self._stored_bytes, data, len(self._waiting))

    def written(self, write: _Write) -> None:
        with self._lock:
            if write.version != self._version:
                return  # another call has begun meanwhile
            self._stored_bytes = write.at + len(write.data)
            self.has_gap = False
            done, self._waiting = self._waiting[: write.pieces], self._waiting[write.pieces :]
        _settle(done, is_stored=True)

    def write_whole(self) -> None:
        with self._lock:
            self._stored_bytes = 0
            self.has_gap = True

    def _reset(self, call: tuple[str, int] | None) -> None:
        self._call = call
        self._whole = {}
        self.has_gap = False
        self._drop()

    def _drop(self) -> None:
        self._version += 1
        self._stored_bytes = 0  # should the call go on, its next write has the dropped pieces too
        waiting, self._waiting = self._waiting, []
        _settle(waiting, is_stored=False)


def _encoded(call: tuple[str, int], pieces: Iterable[tuple[DeltaKind, str]]) -> bytes:
    """One line for each run of pieces of the same kind."""
    runs = groupby(pieces, key=itemgetter(0))
    return b"".join(
        orjson.dumps((*call, kind, "".join(text for _, text in run))) + b"\n" for kind, run in runs
    )


def _settle(pieces: Sequence[_Piece], *, is_stored: bool) -> None:
    def settle() -> None:
        for piece in pieces:
            if not piece.stored.done():
                piece.stored.set_result(is_stored)

    if pieces:
        with suppress(RuntimeError):  # the loop has ended, so no caller waits
            pieces[0].stored.get_loop().call_soon_threadsafe(settle)


class LiveJournal:
    """Sends the pieces of all conversations of a store."""

    def __init__(self, connection: RedisConnection, leases: Leases) -> None:
        self._connection = connection
        self._leases = leases
        self._senders: dict[str, _Sender] = {}

    def post(self, live: LiveText) -> None:
        node = self._connection.node_name(live.owned.keys.live)
        sender = self._senders.get(node)
        if sender is None:
            sender = self._senders[node] = _Sender(self._connection, self._leases)
        sender.post(live)

    def close(self) -> None:
        for sender in self._senders.values():
            sender.close()


class _Sender:
    """Sends to one node. What fails is sent again until it succeeds."""

    def __init__(self, connection: RedisConnection, leases: Leases) -> None:
        self._connection = connection
        self._leases = leases
        self._posted: dict[LiveText, None] = {}
        self._failed: dict[LiveText, None] = {}
        """The texts that Redis refused. They are sent again at `_retry_at`."""
        self._retry_at = 0.0
        self._is_well = True
        self._changed = Condition()
        self._is_closed = False
        self._thread = Thread(target=self._work, name="redis live journal", daemon=True)
        self._thread.start()

    def post(self, live: LiveText) -> None:
        with self._changed:
            self._posted[live] = None
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        while batch := self._next_batch():
            try:
                self._send(batch)
            except Exception as error:
                for live in batch:
                    self._send_again(live, error)
                with self._changed:  # no other can be sent either
                    self._changed.wait_for(lambda: self._is_closed, _RETRY_SECONDS)

    def _next_batch(self) -> list[LiveText]:
        """Empty when the journal is closed."""
        with self._changed:
            while not self._is_closed:
                now = monotonic()
                if self._failed and now >= self._retry_at:
                    self._posted.update(self._failed)
                    self._failed.clear()
                if self._posted:
                    batch = list(islice(self._posted, _AT_ONCE))
                    for live in batch:
                        del self._posted[live]
                    return batch
                self._changed.wait(self._retry_at - now if self._failed else None)
            return []

    def _send(self, batch: Sequence[LiveText]) -> None:
        with ExitStack() as held:
            group: list[tuple[LiveText, str, _Write]] = []
            for live in batch:
                held.enter_context(live.sending)
                if (write := live.next_write()) is None:
                    continue
                if not self._leases.is_over(live.owned) or self._is_reclaimed(live):
                    group.append((live, live.owned.token, write))
            if not group:
                return
            asked_at = self._leases.clock()
            lasts = self._leases.milliseconds
            replies = self._connection.run_many(
                scripts.APPEND_LIVE,
                [
                    (live.owned.keys, (token, lasts, write.at, write.data))
                    for live, token, write in group
                ],
            )
            for (live, token, write), reply in zip(group, replies, strict=True):
                match reply:
                    case b"done":
                        self._is_well = True
                        self._leases.extend(live.owned, token, asked_at)
                        self._connection.counts.journal_gaps_mended += live.has_gap
                        live.written(write)
                    case b"gap":
                        live.write_whole()
                        self.post(live)
                    case b"fenced":
                        if self._is_reclaimed(live, token):
                            self.post(live)
                    case RedisError():  # of this conversation alone
                        self._send_again(live, reply)
                    case _:  # it was deleted
                        live.drop()

    def _send_again(self, live: LiveText, error: Exception) -> None:
        if self._is_well:
            expected = isinstance(error, RedisError)
            log.warning("running answers wait: %s", error, exc_info=not expected)
        self._is_well = False
        live.write_whole()
        with self._changed:
            self._failed[live] = None
            self._retry_at = monotonic() + _RETRY_SECONDS

    def _is_reclaimed(self, live: LiveText, token: str | None = None) -> bool:
        """Reclaims the lease, or drops the text if another server has the conversation."""
        try:
            self._leases.reclaim(live.owned, token)
        except StorageError as error:
            log.info("%s: its running answer ends here: %s", live.owned.session_id, error)
            live.drop()
            return False
        return True
