"""The changes of rows that any server of the same Redis makes.

Each script that changes a row publishes that on a channel of the conversation's user, in the same
step. A server follows the channels of the users whose rows are watched here, in one thread; its own
changes arrive the same way. Redis does not keep what it publishes. So when the connection was lost,
or Redis was silent for too long, the listener learns that changes were missed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from threading import Event, Lock, Thread
from typing import Any, Final, get_args

import redis
from redis.exceptions import RedisError

from nplt_storage.changes import Change, RowChanges
from nplt_storage.redis.connection import RedisConnection

log = logging.getLogger(__name__)

_PING_SECONDS: Final = 5.0
"""The silence after which Redis is sent a PING, and the time that it has to reply."""
_PAUSE_SECONDS: Final = 0.5
_CHANGES: Final = frozenset(get_args(Change))


class RedisChanges(RowChanges):
    def __init__(self, connection: RedisConnection, *, timeout_seconds: float = 5.0) -> None:
        super().__init__()
        self._connection = connection
        self._timeout_seconds = timeout_seconds
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = Lock()
        """Held while channels are added or removed."""
        self._followed: dict[str, str] = {}
        """The users by channel."""
        self._confirmed: dict[str, Event] = {}
        """Events by channel, set when Redis has confirmed the first subscription."""
        self._pubsub: Any = None
        self._stopped = Event()
        self._thread: Thread | None = None

    async def watch(self, user: str) -> None:
        self._loop = asyncio.get_running_loop()
        await super().watch(user)
        await self._connection.in_thread(self._follow, user)

    def unwatch(self, user: str) -> None:
        super().unwatch(user)
        channel = self._connection.keyspace.of_user("changes", user)
        with self._lock:
            if self._followed.pop(channel, None) is not None:
                del self._confirmed[channel]
                if self._pubsub is not None:
                    with suppress(RedisError, OSError):  # the thread will notice
                        self._pubsub.unsubscribe(channel)

    def close(self) -> None:
        """Blocks."""
        self._stopped.set()
        with self._lock:
            if self._pubsub is not None:
                with suppress(RedisError, OSError):
                    self._pubsub.close()
        if self._thread is not None:
            self._thread.join()

    # In a worker thread

    def _follow(self, user: str) -> None:
        channel = self._connection.keyspace.of_user("changes", user)
        with self._lock:
            confirmed = self._confirmed.get(channel)
            if confirmed is None:
                confirmed = self._confirmed[channel] = Event()
                self._followed[channel] = user
                if self._pubsub is not None:
                    with suppress(RedisError, OSError):  # the thread subscribes again
                        self._pubsub.subscribe(channel)
            if self._thread is None:
                self._thread = Thread(target=self._work, name="redis changes", daemon=True)
                self._thread.start()
        if not confirmed.wait(self._timeout_seconds):
            raise redis.TimeoutError("the channel of changes does not answer")

    # In the thread that receives them

    def _work(self) -> None:
        is_well = True
        while not self._stopped.is_set():
            try:
                self._receive_all()
                is_well = True
            except (RedisError, OSError) as error:
                if is_well and not self._stopped.is_set():
                    log.warning("changes of other servers are not received now: %s", error)
                is_well = False
            except Exception:
                log.exception("receiving the changes of other servers failed; going on")
            self._stopped.wait(_PAUSE_SECONDS)

    def _receive_all(self) -> None:
        pubsub = self._connection.pubsub()
        with self._lock:
            self._pubsub = pubsub
            if self._followed:
                pubsub.subscribe(*self._followed)
        try:
            asked_at: float | None = None
            while not self._stopped.is_set():
                message = pubsub.get_message(timeout=_PING_SECONDS)
                if message is not None:
                    asked_at = None
                    self._receive(message)
                elif not pubsub.subscribed:
                    asked_at = None
                elif asked_at is None:
                    asked_at = time.monotonic()
                    pubsub.ping()
                elif time.monotonic() - asked_at >= _PING_SECONDS:
                    raise redis.TimeoutError("Redis does not answer")
        finally:
            with self._lock:
                self._pubsub = None
            with suppress(RedisError, OSError):
                pubsub.close()

    def _receive(self, message: dict[str, Any]) -> None:
        channel = message["channel"].decode() if message.get("channel") else ""
        with self._lock:
            user, confirmed = self._followed.get(channel), self._confirmed.get(channel)
        if user is None or confirmed is None:
            return
        if message["type"] == "subscribe":
            if confirmed.is_set():  # the connection was lost in between
                self._on_loop(self.note_missed, user)
            confirmed.set()
        elif message["type"] == "message":
            change, _, session_id = message["data"].decode().partition(" ")
            known: Any = change if change in _CHANGES else "entry"  # of a later version
            self._on_loop(self.note, user, session_id, known)

    def _on_loop(self, call: Any, *arguments: str) -> None:
        assert self._loop is not None
        with suppress(RuntimeError):  # the loop was closed
            self._loop.call_soon_threadsafe(call, *arguments)
