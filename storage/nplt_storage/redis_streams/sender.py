"""What is told to Redis without anyone waiting: last-access times, and words in flight.

One thread, in order. What fails is dropped, with one line in the log until
something gets through again: none of it is more than a courtesy.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from datetime import datetime
from queue import SimpleQueue
from threading import Event, Lock, Thread

import orjson
from redis.exceptions import RedisError

from nplt_storage.facts.entries import Entry
from nplt_storage.facts.entry_to_json import time_as_text
from nplt_storage.redis_streams import scripts
from nplt_storage.redis_streams.connection import Argument, RedisConnection
from nplt_storage.redis_streams.keys import Keyspace
from nplt_storage.redis_streams.leases import Leases
from nplt_storage.said import Piece, joined, outdates
from nplt_storage.store import SaidSoFar

log = logging.getLogger(__name__)


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


class Touches:
    """Last-access times on their way; readers of this process see them at once."""

    def __init__(
        self,
        sender: Sender,
        connection: RedisConnection,
        keyspace: Keyspace,
        *,
        ttl_milliseconds: int,
    ) -> None:
        self._sender = sender
        self._connection = connection
        self._keyspace = keyspace
        self._ttl_milliseconds = ttl_milliseconds
        self._waiting: dict[str, datetime] = {}

    def note(self, session_id: str, at: datetime) -> None:
        self._waiting[session_id] = max(at, self._waiting.get(session_id, at))
        self._sender.post(self._send)

    def noted(self, session_id: str) -> datetime | None:
        return self._waiting.get(session_id)

    def _send(self) -> None:
        for session_id, at in list(self._waiting.items()):
            try:
                keys = [self._keyspace.of(session_id).base, self._keyspace.prefix]
                self._connection.run(scripts.TOUCH, keys, time_as_text(at), self._ttl_milliseconds)
            finally:
                if self._waiting.get(session_id) == at:
                    del self._waiting[session_id]


class Talk:
    """What the running call of one conversation says, piece by piece.

    After a piece that did not get through, nothing more of that call is sent:
    what is there must be how it began, not a text with a hole.
    """

    def __init__(
        self,
        sender: Sender,
        connection: RedisConnection,
        keys: list[str],
        so_far: SaidSoFar | None,
        *,
        leases: Leases,
    ) -> None:
        self._sender = sender
        self._connection = connection
        self._keys = keys
        self._leases = leases
        self._call = (so_far.turn_id, so_far.call) if so_far else None
        self._pieces: deque[tuple[tuple[str, int], bytes]] = deque()
        self._sent_call = self._call
        self._is_broken = False
        self._sending = Lock()

    def say(self, piece: Piece) -> None:
        self._call = piece[:2]
        try:
            encoded = orjson.dumps(piece) + b"\n"
        except orjson.JSONEncodeError:
            encoded = b""  # half a surrogate pair: nobody could read it
        self._pieces.append((self._call, encoded))
        self._sender.post(self._send)

    def is_outdated_by(self, entry: Entry) -> bool:
        return self._call is not None and outdates(entry, *self._call)

    def is_over(self) -> None:
        """Blocks while a piece is on its way, so that none arrives after this."""
        with self._sending:
            self._pieces.clear()
            self._call = self._sent_call = None

    def flush(self) -> None:
        self._sender.flush()

    def _send(self) -> None:
        with self._sending:
            pieces = [self._pieces.popleft() for _ in range(len(self._pieces))]
            if not pieces:
                return
            call = pieces[-1][0]
            spoken = [encoded for of, encoded in pieces if of == call]
            begins = call != self._sent_call
            if self._is_broken and not begins:
                return
            self._sent_call, self._is_broken = call, True
            if all(spoken):
                said: list[Argument] = [int(begins), b"".join(spoken)]
                self._connection.run(scripts.SAY, self._keys, *self._leases.arguments, *said)
                self._is_broken = False


def decode_pieces(data: bytes) -> SaidSoFar | None:
    return joined(
        (str(t), int(c), k, str(s)) for t, c, k, s in map(orjson.loads, data.splitlines())
    )
