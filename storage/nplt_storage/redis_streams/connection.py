"""The one door to Redis: commands in worker threads, and what its errors mean.

Nothing waits for ever: every answer has a deadline, and nothing is tried again
behind our back, because only the caller knows whether a command may run twice.
A connection that broke is replaced when the next command needs one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias, TypeVar

import anyio
import anyio.to_thread
import redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from nplt_storage.errors import StorageUnavailable

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
