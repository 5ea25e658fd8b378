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
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from itertools import islice
from threading import Condition, Lock, Thread
from typing import Final, NamedTuple

import orjson
from redis.exceptions import RedisError

from nplt_storage.entries import Entry
from nplt_storage.errors import StorageError
from nplt_storage.redis import scripts
from nplt_storage.redis.connection import RedisConnection
from nplt_storage.redis.ownership import Leases, Ownership
from nplt_storage.store import DeltaKind, PartialAnswer, outdates

log = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 0.2
_AT_ONCE: Final = 200
"""The most conversations in one pipeline."""


class _Write(NamedTuple):
    call: tuple[str, int]
    at: int
    """The number of bytes that Redis has already; 0 to write the text anew."""
    data: bytes


class LiveText:
    """The text of one conversation's running call. May be used from any thread."""

    def __init__(self, owned: Ownership, partial_answer: PartialAnswer | None) -> None:
        """`partial_answer` is the text that Redis holds of a call whose server died."""
        self.owned = owned
        self.sending = Lock()
        """Held while pieces are being sent, so that none arrives after the call's entry."""
        self._call = (partial_answer.turn_id, partial_answer.call) if partial_answer else None
        self._text = bytearray()
        """The encoded pieces of the call, from its beginning."""
        self._stored_bytes = 0
        """How many bytes of them Redis has for certain."""
        self._waiting: list[tuple[int, Future[bool]]] = []
        """The end of each piece that is not stored yet, and the future of its writer."""
        self._lock = Lock()

    def add(self, turn_id: str, call: int, kind: DeltaKind, text: str) -> Future[bool]:
        """The future tells whether the piece was stored, so that it may be shown."""
        encodable = text.encode(errors="replace").decode()  # half a surrogate pair is not
        stored: Future[bool] = get_running_loop().create_future()
        with self._lock:
            if self._call != (turn_id, call):
                self._reset((turn_id, call))
            self._text += orjson.dumps((turn_id, call, kind, encodable)) + b"\n"
            self._waiting.append((len(self._text), stored))
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
            self._settle_waiting()

    def next_write(self) -> _Write | None:
        with self._lock:
            if not self._waiting or self._call is None:
                return None
            at = self._stored_bytes
            return _Write(self._call, at, bytes(self._text[at:]))

    def written(self, write: _Write) -> None:
        with self._lock:
            if (write.call, write.at) != (self._call, self._stored_bytes):
                return  # another call has begun meanwhile
            self._stored_bytes += len(write.data)
            done = [stored for end, stored in self._waiting if end <= self._stored_bytes]
            self._waiting = self._waiting[len(done) :]
        _settle(done, is_stored=True)

    def write_whole(self) -> None:
        """It is not known what Redis has."""
        with self._lock:
            self._stored_bytes = 0

    def _reset(self, call: tuple[str, int] | None) -> None:
        self._call = call
        self._text = bytearray()
        self._stored_bytes = 0
        self._settle_waiting()

    def _settle_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        _settle([stored for _, stored in waiting], is_stored=False)


def _settle(futures: Sequence[Future[bool]], *, is_stored: bool) -> None:
    def settle() -> None:
        for stored in futures:
            if not stored.done():
                stored.set_result(is_stored)

    if futures:
        with suppress(RuntimeError):  # the loop has ended, so no caller waits
            futures[0].get_loop().call_soon_threadsafe(settle)


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
    """Sends to one node. After a failure it tries again until it succeeds."""

    def __init__(self, connection: RedisConnection, leases: Leases) -> None:
        self._connection = connection
        self._leases = leases
        self._posted: dict[LiveText, None] = {}
        self._changed = Condition()
        self._is_closed = False
        self._thread = Thread(target=self._work, name="redis live journal", daemon=True)
        self._thread.start()

    def post(self, *lives: LiveText) -> None:
        with self._changed:
            self._posted.update(dict.fromkeys(lives))
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        is_well = True
        while batch := self._next_batch():
            try:
                self._send(batch)
                is_well = True
            except Exception as error:
                if is_well:
                    expected = isinstance(error, RedisError)
                    log.warning("running answers wait: %s", error, exc_info=not expected)
                is_well = False
                for live in batch:
                    live.write_whole()
                self.post(*batch)
                with self._changed:
                    self._changed.wait_for(lambda: self._is_closed, _RETRY_SECONDS)

    def _next_batch(self) -> list[LiveText]:
        """Empty when the journal is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._posted or self._is_closed)
            if self._is_closed:
                return []
            batch = list(islice(self._posted, _AT_ONCE))
            for live in batch:
                del self._posted[live]
            return batch

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
                [(live.owned.keys, (token, lasts, *write[1:])) for live, token, write in group],
            )
        for (live, token, write), reply in zip(group, replies, strict=True):
            match reply:
                case b"done":
                    self._leases.extend(live.owned, token, asked_at)
                    live.written(write)
                case b"gap":
                    live.write_whole()
                    self.post(live)
                case b"fenced":
                    if self._is_reclaimed(live, token):
                        self.post(live)
                case _:  # it was deleted
                    live.drop()

    def _is_reclaimed(self, live: LiveText, token: str | None = None) -> bool:
        """Reclaims the lease, or drops the text if another server has the conversation."""
        try:
            self._leases.reclaim(live.owned, token)
        except StorageError as error:
            log.info("%s: its running answer ends here: %s", live.owned.session_id, error)
            live.drop()
            return False
        return True
