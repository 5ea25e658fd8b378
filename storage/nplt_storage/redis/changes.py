"""The changes of rows that any server of the same Redis makes.

Each script that changes a row publishes that on a channel of the conversation's user, in the same
step. A server follows the channels of the users whose rows are watched here, and of those who
search here (`search_index`), in one thread; its own changes arrive the same way. Redis does not
keep what it publishes. So when the connection was lost, or Redis was silent for too long, the
listener learns that changes were missed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from threading import Event, Lock, Thread
from typing import Any, Final, Literal, TypeAlias, get_args

import redis
from msgspec import Struct, field
from redis.exceptions import NoPermissionError, RedisError

from nplt_storage.changes import Change, RowChanges
from nplt_storage.ids import new_entry_id
from nplt_storage.redis.connection import RedisConnection

log = logging.getLogger(__name__)

_PING_SECONDS: Final = 5.0
"""The silence after which Redis is sent a PING, and the time that it has to reply."""
_PAUSE_SECONDS: Final = 0.5
_CHANGES: Final = frozenset(get_args(Change))
_WITHOUT_TEXT: Final = frozenset({"seen", "state", "renamed", "model", "pinned", "archived"})
_ANEW: Final = frozenset({"new", "deleted", "redacted"})
"""The changes after which what was read before counts no longer."""

Published: TypeAlias = Change | Literal["redacted"]
"""The kinds of changes that are published. A redaction is a change of messages for watchers."""


class TextChanges:
    """The conversations of one user whose messages may have changed since they were taken."""

    def __init__(self) -> None:
        self._changed: dict[str, bool] = {}
        self._has_missed = True
        self._lock = Lock()

    def note(self, session_id: str, *, is_rewritten: bool) -> None:
        with self._lock:
            self._changed[session_id] = is_rewritten or self._changed.get(session_id, False)

    def note_missed(self) -> None:
        with self._lock:
            self._has_missed = True

    def take(self) -> Mapping[str, bool] | None:
        """By session id, whether earlier messages were rewritten; `None` if any conversation may
        have changed, as at first."""
        with self._lock:
            changed, self._changed = self._changed, {}
            has_missed, self._has_missed = self._has_missed, False
        return None if has_missed else changed


class _Channel(Struct, eq=False):
    user: str
    is_watched: bool = False
    texts: TextChanges | None = None
    confirmed: Event = field(default_factory=Event)
    """Set when Redis has confirmed the first subscription."""


def are_published(connection: RedisConnection) -> bool:
    """Whether this user of Redis may publish changes. One who may not can still write."""
    try:
        channel = connection.keyspace.of_user("changes", "")  # nobody follows it
        connection.call("PUBLISH", channel, "")
    except NoPermissionError:
        return False
    return True


class RedisChanges(RowChanges):
    def __init__(self, connection: RedisConnection, *, timeout_seconds: float = 5.0) -> None:
        super().__init__()
        self._connection = connection
        self._timeout_seconds = timeout_seconds
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = Lock()
        """Held while channels are added or removed."""
        self._channels: dict[str, _Channel] = {}
        self._pongs: dict[bytes, Event] = {}
        """Set when Redis has replied to the PING with that payload."""
        self._pubsub: Any = None
        self._stopped = Event()
        self._in_use = Event()
        """Set while there are channels, and when it is closed."""
        self._thread: Thread | None = None

    async def watch(self, user: str) -> None:
        self._loop = asyncio.get_running_loop()
        await super().watch(user)
        await self._connection.in_thread(self._watch, user)

    def unwatch(self, user: str) -> None:
        super().unwatch(user)
        with self._lock:
            if channel := self._channels.get(self._name(user)):
                channel.is_watched = False
                self._leave_if_unused(channel)

    def close(self) -> None:
        """Blocks."""
        self._stopped.set()
        self._in_use.set()
        with self._lock:
            if self._pubsub is not None:
                with suppress(RedisError, OSError):
                    self._pubsub.close()
        if self._thread is not None:
            self._thread.join()

    # In a worker thread

    def follow_texts(self, user: str) -> TextChanges:
        """Every change of messages after this returns is noted there."""
        with self._lock:
            channel = self._followed(user)
            texts = channel.texts = channel.texts or TextChanges()
        self._wait_for(channel)
        return texts

    def unfollow_texts(self, user: str) -> None:
        with self._lock:
            if channel := self._channels.get(self._name(user)):
                channel.texts = None
                self._leave_if_unused(channel)

    def settle(self) -> None:
        """Blocks until every change that was published before has been received. In a cluster one
        that was published at another node may arrive a moment later."""
        payload, pong = new_entry_id(), Event()
        self._pongs[payload.encode()] = pong
        try:
            with self._lock:
                if self._pubsub is None:
                    raise redis.ConnectionError("the channel of changes is away")
                self._pubsub.ping(payload)
            if not pong.wait(self._timeout_seconds):
                self._connect_again()
                raise redis.TimeoutError("the channel of changes does not answer")
        finally:
            del self._pongs[payload.encode()]

    def _connect_again(self) -> None:
        with self._lock:
            if self._pubsub is not None:
                with suppress(RedisError, OSError):
                    self._pubsub.close()

    def _watch(self, user: str) -> None:
        with self._lock:
            channel = self._followed(user)
            channel.is_watched = True
        self._wait_for(channel)

    def _followed(self, user: str) -> _Channel:
        name = self._name(user)
        channel = self._channels.get(name)
        if channel is None:
            channel = self._channels[name] = _Channel(user)
            if self._pubsub is not None:
                with suppress(RedisError, OSError):  # the thread subscribes again
                    self._pubsub.subscribe(name)
            self._in_use.set()
        if self._thread is None:
            self._thread = Thread(target=self._work, name="redis changes", daemon=True)
            self._thread.start()
        return channel

    def _leave_if_unused(self, channel: _Channel) -> None:
        if channel.is_watched or channel.texts is not None:
            return
        name = self._name(channel.user)
        del self._channels[name]
        if not self._channels and not self._stopped.is_set():
            self._in_use.clear()
        if self._pubsub is not None:
            with suppress(RedisError, OSError):  # the thread will notice
                self._pubsub.unsubscribe(name)

    def _wait_for(self, channel: _Channel) -> None:
        if not channel.confirmed.wait(self._timeout_seconds):
            self._connect_again()
            raise redis.TimeoutError("the channel of changes does not answer")

    def _name(self, user: str) -> str:
        return self._connection.keyspace.of_user("changes", user)

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
            if self._channels:
                pubsub.subscribe(*self._channels)
        try:
            asked_at: float | None = None
            while self._is_in_use():
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

    def _is_in_use(self) -> bool:
        """Waits until there is a channel; false if it is closed. What redis-py waits for while
        nothing is subscribed could not be interrupted."""
        self._in_use.wait()
        return not self._stopped.is_set()

    def _receive(self, message: dict[str, Any]) -> None:
        if message["type"] == "pong":
            if pong := self._pongs.get(message["data"]):
                pong.set()
            return
        with self._lock:
            channel = self._channels.get((message["channel"] or b"").decode())
        if channel is None:
            return
        if message["type"] == "subscribe":
            if channel.confirmed.is_set():  # the connection was lost in between
                if channel.texts is not None:
                    channel.texts.note_missed()
                if channel.is_watched:
                    self._on_loop(self.note_missed, channel.user)
            channel.confirmed.set()
        elif message["type"] == "message":
            change, _, session_id = message["data"].decode().partition(" ")
            if channel.texts is not None and change not in _WITHOUT_TEXT:
                channel.texts.note(session_id, is_rewritten=change in _ANEW)
            if channel.is_watched:
                change = "message" if change == "redacted" else change
                known: Any = change if change in _CHANGES else "entry"  # of a later version
                self._on_loop(self.note, channel.user, session_id, known)

    def _on_loop(self, call: Any, *arguments: str) -> None:
        assert self._loop is not None
        with suppress(RuntimeError):  # the loop was closed
            self._loop.call_soon_threadsafe(call, *arguments)
