"""The connection to Redis, the names of keys, and leases.

Every command has a deadline, and none is repeated automatically, because only the
caller knows whether it may run twice. Commands run in worker threads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from threading import Event, Lock, Thread
from typing import Any, Final, TypeAlias, TypeVar

import anyio
import anyio.to_thread
import redis
from msgspec import Struct
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from nplt_storage.codec import (
    BadLine,
    decode_line,
    decode_verified,
    encode_line,
    time_as_text,
    verify_line,
)
from nplt_storage.entries import CheckpointEntry, Entry, ModelInputEntry
from nplt_storage.errors import BadEntry, ConversationDamaged, StorageUnavailable
from nplt_storage.ids import new_entry_id
from nplt_storage.redis import scripts
from nplt_storage.rows import RowPlace

log = logging.getLogger(__name__)

T = TypeVar("T")
Argument: TypeAlias = bytes | str | int

CONNECTIONS_MAX: Final = 16
OLDEST_VERSION: Final = (6, 2)

_REFUSALS: Final = {
    "OOM": "Redis has no memory left",
    "READONLY": "this Redis is a read-only replica",
    "MISCONF": "Redis can't write to its disk",
}


class RedisConnection:
    """Blocking calls, for use inside `in_thread`; the client behind it keeps a pool."""

    def __init__(self, url: str, *, timeout_seconds: float) -> None:
        self._client = redis.Redis.from_url(
            url,
            protocol=2,
            socket_timeout=timeout_seconds,
            socket_connect_timeout=timeout_seconds,
            retry=Retry(NoBackoff(), 0),
            max_connections=2 * CONNECTIONS_MAX,
        )
        self._scripts: dict[str, Callable[..., Any]] = {}
        self._threads: anyio.CapacityLimiter | None = None
        self.trouble: str | None = None
        """Why the last command that failed did so, until one gets through."""

    def call(self, *command: Argument) -> Any:
        return self._client.execute_command(*command)  # type: ignore[no-untyped-call]

    def ask(self, *command: Argument) -> Any:
        """A question: asked once more if the connection turns out to be dead."""
        try:
            return self.call(*command)
        except redis.ConnectionError:
            return self.call(*command)

    def call_many(self, commands: Iterable[Sequence[Argument]]) -> list[Any]:
        """One after the other, without waiting for each answer; an error is raised."""
        with self._client.pipeline(transaction=False) as pipeline:
            for command in commands:
                pipeline.execute_command(*command)  # type: ignore[no-untyped-call]
            return pipeline.execute()

    def ask_many(self, commands: Sequence[Sequence[Argument]]) -> list[Any]:
        try:
            return self.call_many(commands)
        except redis.ConnectionError:
            return self.call_many(commands)

    def run(self, script: str, keys: Sequence[str], *arguments: Argument) -> Any:
        known = self._scripts.get(script)
        if known is None:
            known = self._scripts[script] = self._client.register_script(script)
        return known(keys=keys, args=arguments)

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Runs to its end also if whoever waits is cancelled: half-known is worse than late."""
        if self._threads is None:
            self._threads = anyio.CapacityLimiter(CONNECTIONS_MAX)
        try:
            done = await anyio.to_thread.run_sync(work, limiter=self._threads)
        except RedisError as error:
            translated = unavailable(error)
            self.trouble = str(translated)
            raise translated from error
        self.trouble = None
        return done

    def close(self) -> None:
        self._client.close()


def unavailable(error: RedisError) -> StorageUnavailable:
    match error:
        case redis.BusyLoadingError():
            return StorageUnavailable("Redis is still reading its data")
        case redis.AuthenticationError():
            return StorageUnavailable("Redis does not accept these credentials")
        case redis.TimeoutError():
            return StorageUnavailable("Redis does not answer")
        case redis.ConnectionError():
            return StorageUnavailable("Redis can't be reached")
        case _:
            told = str(error)  # a script wraps the code in words of its own
            known = (reason for code, reason in _REFUSALS.items() if code in told)
            return StorageUnavailable(next(known, f"Redis refused: {told}"))


def check_version(connection: RedisConnection) -> None:
    info = connection.ask("INFO", "server")
    version = str(info.get("redis_version", "0"))
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers < OLDEST_VERSION:
        raise StorageUnavailable(f"Redis 6.2 or later is needed; this is {version}")


def configured(connection: RedisConnection) -> dict[str, str]:
    """Its settings about the log of commands; `ResponseError` where one may not ask."""
    found = [bytes(word).decode() for word in connection.ask("CONFIG", "GET", "append*")]
    return dict(zip(found[::2], found[1::2], strict=True))


def how_durable(connection: RedisConnection) -> str:
    """What an acknowledged entry survives, as far as Redis tells."""
    try:
        found = configured(connection)
    except redis.ResponseError:
        return "as durable as this Redis is; it does not say how much that is"
    if found.get("appendonly") != "yes":
        return "as durable as this Redis: what it has not saved yet is lost when it stops"
    match found.get("appendfsync"):
        case "always":
            return "as durable as this Redis: on its disk before it is acknowledged"
        case "everysec":
            return "as durable as this Redis: a power cut may take the last second or two"
        case _:
            return "as durable as this Redis: a power cut may take what it has not written yet"


# ------------------------------------------------------------------------------
# Names of keys; the package's docstring lists them


class Keys(Struct, frozen=True):
    """The keys of one conversation, wherever it stands: in use, in the trash, on its way."""

    base: str

    @property
    def log(self) -> str:
        return f"{self.base}:log"

    @property
    def meta(self) -> str:
        return f"{self.base}:meta"

    @property
    def checkpoint(self) -> str:
        return f"{self.base}:checkpoint"

    @property
    def prompts(self) -> str:
        return f"{self.base}:prompts"

    def blob(self, blob_id: str) -> str:
        return f"{self.base}:blob:{blob_id}"


class Keyspace(Struct, frozen=True):
    prefix: str

    def of(self, session_id: str) -> Keys:
        return Keys(f"{self.prefix}{session_id}")

    def in_trash(self, session_id: str) -> Keys:
        return Keys(f"{self.prefix}@trash:{session_id}")

    def deleted_of(self, user: str) -> str:
        return f"{self.prefix}@deleted:{user}"

    def being_made(self, token: str) -> Keys:
        return Keys(f"{self.prefix}@new:{token}")

    def list_of(self, user: str) -> str:
        return f"{self.prefix}@user:{user}"


def place_as_bytes(place: RowPlace) -> bytes:
    """Sorts as places do, so that Redis can keep a user's list in order."""
    pinned, updated_at, session_id = place
    return f"{int(pinned)}{time_as_text(updated_at)}{session_id}".encode()


def session_id_in(place: bytes) -> str:
    return place[33:].decode()


def name_of(entry: Entry) -> str:
    """The message_id of a prompt; empty for every other entry."""
    return (entry.message_id or "") if isinstance(entry, ModelInputEntry) else ""


def place_in_stream(entry: Entry) -> bytes:
    """What is noted under a prompt's name as long as its line is kept."""
    return b"[%d]" % entry.seq


def stream_id(seq: int) -> str:
    return f"{seq}-0"


# ------------------------------------------------------------------------------
# Leases: which server has a conversation open
#
# Opening a conversation takes its lease in the same step; other servers are refused
# meanwhile. A thread renews the leases of open conversations; closing returns them, and
# those of a dead process expire. Redis measures the time.
#
# A lease avoids conflicts; it is not what keeps the record consistent. If it expires
# while its owner lives, an entry of a writer that is behind is still refused by its
# number.


LEASE_SECONDS: Final = 15.0
"""Longer: who restarts after a kill waits longer. Shorter: a hiccup loses it."""
_RENEWALS_PER_LEASE: Final = 3
_RENEWED_AT_ONCE: Final = 500


class Leases:
    """The leases of one store, from its opening to its end."""

    def __init__(self, connection: RedisConnection, *, seconds: float = LEASE_SECONDS) -> None:
        self.arguments = (new_entry_id(), max(1, int(seconds * 1000)))
        """What scripts are told: the owner, and for how many milliseconds."""
        self._connection = connection
        self._renewed_after_seconds = seconds / _RENEWALS_PER_LEASE
        self._kept: set[str] = set()
        self._changing = Lock()
        """A renewal on its way must not bring back what is given back meanwhile."""
        self._stopped = Event()
        self._thread: Thread | None = None

    def keep(self, base: str) -> None:
        self._kept.add(base)
        if self._thread is None:
            self._thread = Thread(target=self._work, name="redis leases", daemon=True)
            self._thread.start()

    def forget(self, base: str) -> None:
        """The conversation is gone: its lease is not renewed."""
        self._kept.discard(base)

    # In a worker thread

    def give_back(self, base: str) -> None:
        with self._changing:
            self._kept.discard(base)
            self._connection.run(scripts.RELEASE, [base], *self.arguments)

    def renew(self) -> None:
        with self._changing:
            bases = sorted(self._kept)
            for start in range(0, len(bases), _RENEWED_AT_ONCE):
                some = bases[start : start + _RENEWED_AT_ONCE]
                self._connection.run(scripts.RENEW, some, *self.arguments)

    def close(self) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        is_well = True
        while not self._stopped.wait(self._renewed_after_seconds):
            try:
                self.renew()
                is_well = True
            except RedisError as error:
                if is_well:
                    log.warning("conversations may be opened by another server: %s", error)
                is_well = False
            except Exception:  # without this thread every lease would lapse
                log.exception("renewing leases failed; going on")


_LINES_AT_FIRST: Final = 24
_LINES_MAX: Final = 1000
_BYTES_AT_ONCE: Final = 1024 * 1024


class StreamSource:
    """The lines up to `head_seq`, as they are in Redis when they are met."""

    def __init__(
        self, session_id: str, log: str, connection: RedisConnection, *, head_seq: int
    ) -> None:
        self.head_seq = head_seq
        self.bytes_read = 0
        self._session_id = session_id
        self._log = log
        self._connection = connection

    def before(self, seq: int) -> Iterator[Entry]:
        for line in self.lines_before(seq):
            yield self._decoded(line)

    def after(self, seq: int) -> Iterator[Entry]:
        for line in self.lines_after(seq):
            yield self._decoded(line)

    def at(self, seq: int) -> Entry | None:
        if not 1 <= seq <= self.head_seq:
            return None
        found = self._read("XRANGE", seq, seq, 1)
        return self._decoded(found[0][1]) if found else None

    def lines_before(self, seq: int) -> Iterator[bytes]:
        yield from self._walk("XREVRANGE", min(seq - 1, self.head_seq), -1)

    def lines_after(self, seq: int) -> Iterator[bytes]:
        yield from self._walk("XRANGE", max(seq, 0) + 1, 1)

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
        found = self._connection.ask(
            command, self._log, stream_id(start), stream_id(last), "COUNT", count
        )
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
    """Blocking: used inside a worker thread."""

    def __init__(self, connection: RedisConnection, keyspace: Keyspace) -> None:
        self.keys = keyspace.being_made(new_entry_id())
        self.last_seq = 0
        self._connection = connection
        self._keyspace = keyspace

    def add(self, entries: Iterable[Entry]) -> None:
        commands: list[tuple[Argument, ...]] = []
        size = 0
        for command in self._commands(entries):
            commands.append(command)
            size += len(command[-1]) if isinstance(command[-1], bytes) else 0
            if size > _BYTES_AT_ONCE:
                self._send(commands)
                commands, size = [], 0
        self._send(commands)

    def add_checkpoint(self, checkpoint: CheckpointEntry) -> None:
        """The state before the first entry, where it is not the first there ever was."""
        self._send([("SET", self.keys.checkpoint, encode_line(checkpoint))])
        self.last_seq = checkpoint.seq

    def keep_blob(self, blob_id: str, data: bytes) -> None:
        self._send(
            [
                ("SET", self.keys.blob(blob_id), data, "EX", _KEPT_SECONDS),
                ("SADD", f"{self.keys.base}:blobs", blob_id),
            ]
        )

    def drop(self) -> None:
        self._connection.run(scripts.DROP, [self.keys.base, self._keyspace.prefix])

    def _commands(self, entries: Iterable[Entry]) -> Iterator[tuple[Argument, ...]]:
        for entry in entries:
            if entry.seq != self.last_seq + 1:
                raise BadEntry(f"entry {entry.seq} can't follow entry {self.last_seq}")
            yield ("XADD", self.keys.log, stream_id(entry.seq), "line", encode_line(entry))
            if name := name_of(entry):
                yield ("HSETNX", self.keys.prompts, name, place_in_stream(entry))
            self.last_seq = entry.seq

    def _send(self, commands: list[tuple[Argument, ...]]) -> None:
        keys = self.keys
        lasting = [keys.log, keys.checkpoint, keys.prompts, f"{keys.base}:blobs"]
        expiring = [("EXPIRE", key, _KEPT_SECONDS) for key in lasting]
        self._connection.call_many([*commands, *expiring])
