"""The connection to Redis: one, one behind Sentinel, or a cluster.

Every command has a deadline, and none is repeated automatically, because only the
caller knows whether it may run twice. Commands run in worker threads.
"""

from __future__ import annotations

import hashlib
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial, wraps
from queue import SimpleQueue
from threading import Event, Lock, Thread
from time import monotonic
from types import CoroutineType
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeAlias, TypeVar

import anyio
import anyio.to_thread
import redis
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode
from redis.connection import SSLConnection, parse_url
from redis.exceptions import (
    ClusterDownError,
    MasterDownError,
    NoPermissionError,
    NoScriptError,
    RedisClusterException,
    RedisError,
)
from redis.retry import Retry
from redis.sentinel import Sentinel

from nplt_storage.errors import StorageAway, StorageUnavailable
from nplt_storage.redis.address import RedisAddress, read_address
from nplt_storage.redis.circuit import Circuit
from nplt_storage.redis.scripts import Keyspace
from nplt_storage.store import SharedCounts

log = logging.getLogger(__name__)

T = TypeVar("T")
P = ParamSpec("P")
Argument: TypeAlias = bytes | str | int
Client: TypeAlias = "redis.Redis | redis.RedisCluster"

CONNECTIONS_MAX: Final = 16
CONNECT_SECONDS_MAX: Final = 1.0
COMMAND_SECONDS_MAX: Final = 2.0

# These have no types.
_parse_url: Callable[[str], Any] = parse_url
_ClusterNode: Callable[[str, int], ClusterNode] = ClusterNode
_Sentinel: Callable[..., Any] = Sentinel
_node_from_key: Callable[[redis.RedisCluster, str], Any] = redis.RedisCluster.get_node_from_key

_REASONS: Final = (
    ((), "CERTIFICATE_VERIFY_FAILED", "Redis has a certificate that is not trusted: {}"),
    ((), "SSL", "no TLS connection to Redis is possible: {}"),
    (NoPermissionError, "permissions", "this user of Redis lacks a permission: {}"),
    ((), "can't run this command", "this user of Redis lacks a permission: {}"),
    (redis.BusyLoadingError, "", "Redis is still reading its data"),
    (redis.AuthenticationError, "", "Redis does not accept these credentials"),
    (redis.TimeoutError, "", "Redis does not answer"),
    (redis.ConnectionError, "", "Redis can't be reached"),
    (redis.OutOfMemoryError, "OOM", "Redis has no memory left"),
    (redis.ReadOnlyError, "READONLY", "this Redis is a read-only replica"),
    ((), "MISCONF", "Redis can't write to its disk"),
    ((), "NOREPLICAS", "Redis has too few replicas to accept writes"),
    (MasterDownError, "MASTERDOWN", "this Redis is a replica that has lost its primary"),
    (ClusterDownError, "CLUSTERDOWN", "the Redis cluster is down"),
    ((), "TTL exhausted", "the Redis cluster is moving it to another node"),
)
"""The class of an error, its code, and the message shown to people. Before version 7 a script wraps
the code in text of its own; since then the client maps it to a class."""
_PASSING: Final = (redis.ConnectionError, redis.TimeoutError, MasterDownError, ClusterDownError)


def reason_of(error: RedisError) -> str:
    for kind, code, reason in _REASONS:
        if isinstance(error, kind) or (code and code in str(error)):
            return reason.format(error)
    return f"Redis refused: {error}"


def may_pass(error: BaseException | None) -> bool:
    """Whether the same command may succeed later without a change of settings."""
    is_settings = isinstance(error, redis.AuthenticationError) or "SSL" in str(error)
    return isinstance(error, _PASSING) and not is_settings


class RedisConnection:
    """Blocking calls, for use inside `in_thread`; the client keeps a pool of connections."""

    def __init__(
        self, url: str, *, timeout_seconds: float = COMMAND_SECONDS_MAX, key_prefix: str = ""
    ) -> None:
        self.keyspace = Keyspace(key_prefix)
        self._address = read_address(url)
        self._timeout_seconds = timeout_seconds
        self._connected: Client | None = None
        self._connecting = Lock()
        self._threads: anyio.CapacityLimiter | None = None
        self._circuits: dict[str, Circuit] = defaultdict(Circuit)
        """The state of each node of a cluster, by its name."""
        self._pubsubs = 0
        self.counts = SharedCounts()
        self._away_since = 0.0
        self.trouble: str | None = None
        """The reason for the last failure, until a command succeeds."""

    @property
    def is_cluster(self) -> bool:
        return self._address.kind == "cluster"

    @property
    def _client(self) -> Client:
        """The client, made on first use, because a cluster's asks for its nodes at once."""
        with self._connecting:
            if self._connected is None:
                self._connected = _client_of(self._address, self._timeout_seconds)
            return self._connected

    def call(self, *command: Argument) -> Any:
        try:
            with self._circuit_of(command).command(), _cluster_errors():
                return self._client.execute_command(*command)  # type: ignore[no-untyped-call]
        except redis.ConnectionError:
            if isinstance(self._connected, redis.Redis):  # the other connections are lost too
                self._connected.connection_pool.disconnect(inuse_connections=False)
            raise
        except redis.ResponseError as error:
            is_demoted = isinstance(error, redis.ReadOnlyError) or "READONLY" in str(error)
            if is_demoted and isinstance(self._connected, redis.Redis):
                # Behind Sentinel, new connections find the new primary.
                self._connected.connection_pool.disconnect()
            raise

    def ask(self, *command: Argument) -> Any:
        """Sends a read command, and sends it again if the connection turns out to be dead."""
        try:
            return self.call(*command)
        except redis.ConnectionError:
            return self.call(*command)

    def call_many(self, commands: Iterable[Sequence[Argument]]) -> list[Any]:
        """Sends the commands in one pipeline and returns the replies in order; raises the first
        error."""
        commands = list(commands)
        circuit = self._circuit_of(commands[0]) if commands else Circuit()
        with (
            circuit.command(),
            _cluster_errors(),
            self._client.pipeline(transaction=False) as pipeline,
        ):
            for command in commands:
                pipeline.execute_command(*command)
            return list(pipeline.execute())

    def _circuit_of(self, command: Sequence[Argument]) -> Circuit:
        if not self.is_cluster:
            return self._circuits[""]
        place = 3 if command[0] in ("EVAL", "EVALSHA") else 1
        key = command[place] if len(command) > place else ""
        return self._circuits[self.node_name(key if isinstance(key, str) else "")]

    def ask_many(self, commands: Sequence[Sequence[Argument]]) -> list[Any]:
        try:
            return self.call_many(commands)
        except redis.ConnectionError:
            return self.call_many(commands)

    def ask_each(
        self, keys: Sequence[str], commands: Sequence[Sequence[Argument]]
    ) -> list[Any | RedisError]:
        """Asks each node of a cluster for itself. In place of the replies of a node that is away
        there are errors; if all are away, the error is raised."""
        if not self.is_cluster or not commands:
            return self.ask_many(commands)
        replies: dict[int, Any | RedisError] = {}
        by_node: dict[str, list[int]] = defaultdict(list)
        for place, key in enumerate(keys):
            by_node[self.node_name(key)].append(place)
        failure: RedisError | None = None
        for places in by_node.values():
            try:
                found: Sequence[Any] = self.ask_many([commands[place] for place in places])
            except (redis.ConnectionError, redis.TimeoutError, ClusterDownError) as error:
                failure, found = error, [error] * len(places)
            replies |= dict(zip(places, found, strict=True))
        if failure is not None and all(isinstance(each, RedisError) for each in replies.values()):
            raise failure
        return [replies[place] for place in range(len(commands))]

    def is_away(self, key: str) -> bool:
        """Whether the server that has this key did not answer the last command."""
        return self._circuits[self.node_name(key) if self.is_cluster else ""].has_failed

    def run(self, script: str, keys: Sequence[str], *arguments: Argument) -> Any:
        try:
            return self.call("EVALSHA", _sha1(script), len(keys), *keys, *arguments)
        except NoScriptError:
            return self.call("EVAL", script, len(keys), *keys, *arguments)

    def by_node(self, keys: Iterable[str]) -> list[list[str]]:
        """The keys grouped by cluster node, so that a node that is down fails alone."""
        groups: dict[int, list[str]] = {}
        for key in keys:
            groups.setdefault(id(self._node_of(key)), []).append(key)
        return list(groups.values())

    def run_many(
        self, script: str, group: Sequence[tuple[Sequence[str], Sequence[Argument]]]
    ) -> list[Any]:
        """Runs a script for the keys of many conversations on one node. It bypasses the cluster
        client, which would ask some other node, perhaps one that is down, which keys a script
        has. A refusal is returned in place of the reply."""
        commands = [
            ("EVALSHA", _sha1(script), len(keys), *keys, *arguments) for keys, arguments in group
        ]
        try:
            with (
                self._circuit_of(commands[0]).watched(),
                self._node_of(group[0][0][0]).pipeline(transaction=False) as pipeline,
            ):
                for command in commands:
                    pipeline.execute_command(*command)  # type: ignore[no-untyped-call]
                replies = pipeline.execute(raise_on_error=False)
        except (redis.ConnectionError, redis.TimeoutError):
            if self.is_cluster:
                self.call(*commands[0])  # which looks for the node that took its place
            raise
        for place, reply in enumerate(replies):
            if isinstance(reply, redis.ResponseError):
                # Perhaps its slot was moved, or Redis has forgotten the script.
                keys, arguments = group[place]
                try:
                    replies[place] = self.run(script, keys, *arguments)
                except RedisError as error:
                    replies[place] = error
        return replies

    def node_name(self, key: str) -> str:
        """The name of the cluster node that has the key, as far as is known; else ""."""
        if isinstance(client := self._connected, redis.RedisCluster):
            with suppress(RedisClusterException, RedisError):  # nobody has it now
                return str(_node_from_key(client, key).name)
        return ""

    def _node_of(self, key: str) -> redis.Redis:
        return self.nodes(lambda cluster: [_node_from_key(cluster, key)])[0]

    def nodes(
        self, chosen: Callable[[Any], list[ClusterNode]] = redis.RedisCluster.get_nodes
    ) -> list[redis.Redis]:
        """The servers of a cluster, for commands about a server itself; by default all that hold
        data."""
        client = self._client
        if isinstance(client, redis.RedisCluster):
            return [client.get_redis_connection(node) for node in chosen(client)]
        return [client]

    def pubsub(self) -> Any:
        """A connection of its own that receives what is published. In a cluster every node passes
        that on to all, so each call takes another node: the last one may be away."""
        with _cluster_errors():
            client = self._client
            if not isinstance(client, redis.RedisCluster):
                return client.pubsub()  # type: ignore[no-untyped-call]
            nodes = client.get_primaries()  # type: ignore[no-untyped-call]
            self._pubsubs += 1
            node = nodes[self._pubsubs % len(nodes)]
            return client.pubsub(node=node)  # type: ignore[no-untyped-call]

    def keys_matching(self, pattern: str) -> Iterator[bytes]:
        """Scans the whole database in small steps."""
        with _cluster_errors():
            yield from self._client.scan_iter(match=pattern, count=1000)

    async def in_thread(
        self,
        work: Callable[..., T],
        *arguments: Any,
        limiter: anyio.CapacityLimiter | None = None,
    ) -> T:
        """Runs the work in a thread, to its end even if the caller is cancelled: an unknown outcome
        is worse than a late one. Long work has a limiter of its own."""
        if self._threads is None:
            self._threads = anyio.CapacityLimiter(CONNECTIONS_MAX)
        try:
            done = await anyio.to_thread.run_sync(
                work, *arguments, limiter=limiter or self._threads
            )
        except RedisError as error:
            if self.trouble is None:
                self._away_since = monotonic()
                self.counts.outages += 1
            self.trouble = reason_of(error)
            kind = StorageAway if may_pass(error) else StorageUnavailable
            raise kind(self.trouble) from error
        if self.trouble is not None:
            self.counts.outage_seconds += monotonic() - self._away_since
            self.trouble = None
        return done

    def close(self) -> None:
        if self._connected is not None:
            self._connected.close()


class _Connected(Protocol):
    _connection: RedisConnection


_Self = TypeVar("_Self", bound=_Connected)


def in_worker_thread(
    method: Callable[Concatenate[_Self, P], T],
) -> Callable[Concatenate[_Self, P], CoroutineType[Any, Any, T]]:
    """Makes a blocking method awaitable."""

    @wraps(method)
    async def awaited(self: _Self, /, *arguments: P.args, **options: P.kwargs) -> T:
        return await self._connection.in_thread(partial(method, self, *arguments, **options))

    return awaited  # type: ignore[return-value]  # mypy takes it for any Coroutine


@contextmanager
def _cluster_errors() -> Iterator[None]:
    """Translates the cluster client's own error for unreachable nodes."""
    try:
        yield
    except RedisClusterException as error:
        raise redis.ConnectionError(str(error)) from error


def _client_of(address: RedisAddress, timeout_seconds: float) -> Client:
    common: dict[str, Any] = {
        "protocol": 2,
        "socket_timeout": timeout_seconds,
        "socket_connect_timeout": min(timeout_seconds, CONNECT_SECONDS_MAX),
        "retry": Retry(NoBackoff(), 0),
        "max_connections": 2 * CONNECTIONS_MAX,
    }
    if address.kind == "single":
        return redis.Redis.from_url(address.urls[0], **common)
    every: list[dict[str, Any]] = [dict(_parse_url(url)) for url in address.urls]
    options = every[0]
    places = [(each.pop("host", "localhost"), each.pop("port", 6379)) for each in every]
    if options.pop("connection_class", None) is SSLConnection:
        options["ssl"] = True
    if address.kind == "cluster":
        with _cluster_errors():
            return redis.RedisCluster(
                startup_nodes=[_ClusterNode(*place) for place in places],
                require_full_coverage=False,  # the other slots can be used
                **common | options,
            )
    own = {name: value for name, value in options.items() if name.startswith("ssl")}
    sentinels = _Sentinel(places, sentinel_kwargs={**own, **address.sentinel_options, **common})
    found: redis.Redis = sentinels.master_for(address.service, **common | options)
    return found


@cache
def _sha1(script: str) -> str:
    return hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()


def configured(node: redis.Redis, names: str = "append*") -> dict[str, str]:
    """The server's settings, by default those of its append-only file. Raises `ResponseError` if
    they may not be read."""
    found: Any = node.execute_command("CONFIG", "GET", names)  # type: ignore[no-untyped-call]
    words = [bytes(word).decode() for word in found]
    return dict(zip(words[::2], words[1::2], strict=True))


class Sender:
    """Runs writes that no caller waits for, in one thread and in order. A failure is logged
    once, and the write is dropped."""

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
