"""Several servers over one Redis: the processes, the links between them, and a reader.

Each server reaches Redis and is reached by its peers over links of its own, which can be cut:
by a reset, or silently, so that nothing arrives and nothing is said. What is in Redis is read
by `Streams`, which shares no line with the storage package.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import redis
from redis.cluster import ClusterNode
from tests.support.clocks import Clock, find_compiler
from tests.support.fork_server import ForkServer
from tests.support.ports import free_port
from tests.support.redis_server import (
    RedisClusterServers,
    RedisServer,
    SentinelServers,
    find_redis_server,
)

from faults.counted_model import CALLS_FILE, WINDOW
from faults.plan import Plan
from faults.results import CannotBeDone
from faults.serving import PATIENCE_SECONDS, DidNotStart, clean_environment

LEASE_SECONDS = 2.0
_HOST = "127.0.0.1"
_PIECE_BYTES = 64 * 1024


# ------------------------------------------------------------------------------
# Links


class Link:
    """A port that leads to another one, as long as it is not cut. Runs in a thread of its own."""

    def __init__(self, target: int) -> None:
        self.port = free_port()
        self._target = target
        self._is_open = threading.Event()
        self._is_open.set()
        self._is_refusing = False
        self._ends: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._listening = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        if not self._listening.wait(PATIENCE_SECONDS):
            raise DidNotStart("a link does not listen")

    def cut(self, *, silently: bool) -> None:
        self._is_refusing = not silently
        self._is_open.clear()
        if not silently:
            self._loop.call_soon_threadsafe(self._reset_all)

    def mend(self) -> None:
        """What was held back on a silent link does not arrive any more: its ends are reset."""
        self._is_open.set()
        if not self._is_refusing:
            self._loop.call_soon_threadsafe(self._reset_all)
        self._is_refusing = False

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._arrive, _HOST, self.port))
        self._listening.set()
        self._loop.run_forever()
        server.close()
        self._reset_all()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    def _arrive(self, near: asyncio.StreamReader, to_near: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._carry_both_ways(near, to_near))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _reset_all(self) -> None:
        for end in self._ends:
            end.transport.abort()

    async def _carry_both_ways(
        self, near: asyncio.StreamReader, to_near: asyncio.StreamWriter
    ) -> None:
        if self._is_refusing:
            to_near.transport.abort()
            return
        with suppress(OSError):
            far, to_far = await asyncio.open_connection(_HOST, self._target)
            self._ends |= {to_near, to_far}
            try:
                there = asyncio.create_task(self._carry(near, to_far))
                back = asyncio.create_task(self._carry(far, to_near))
                await asyncio.wait({there, back}, return_when=asyncio.FIRST_COMPLETED)
                for task in (there, back):
                    task.cancel()
            finally:
                self._ends -= {to_near, to_far}
                to_far.transport.abort()
        to_near.close()

    async def _carry(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(_PIECE_BYTES):
                if self._is_open.is_set():
                    sink.write(data)
                    await sink.drain()


# ------------------------------------------------------------------------------
# Redis


class Storage(Protocol):
    """One kind of Redis, started."""

    @property
    def url(self) -> str:
        """Without options."""
        ...

    @property
    def port(self) -> int | None:
        """Where it is, if it is one; servers get links to it then."""
        ...

    def connect(self) -> Any:
        """A client of redis-py, for the reader."""
        ...

    def kill(self) -> None: ...


class SingleRedis:
    """Every command is on disk before it is answered."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self.server = RedisServer(directory, appendfsync="always", port=self.port).start()

    @property
    def url(self) -> str:
        return f"redis://{_HOST}:{self.port}/0"

    def connect(self) -> redis.Redis:
        return redis.Redis(port=self.port, protocol=2)

    def restart(self) -> None:
        self.server.restart()

    def kill(self) -> None:
        self.server.kill()


class SentinelRedis:
    port = None

    def __init__(self, directory: Path) -> None:
        self.servers = SentinelServers(directory, password="sesame")
        self.servers.start()

    @property
    def url(self) -> str:
        return str(self.servers.url)

    def connect(self) -> redis.Redis:
        primary = next(each for each in self.servers.servers if each.process is not None)
        return redis.Redis(port=primary.port, password="sesame", protocol=2)

    def kill(self) -> None:
        self.servers.kill()


class ClusterRedis:
    port = None

    def __init__(self, directory: Path) -> None:
        self.servers = RedisClusterServers(directory).start()

    @property
    def url(self) -> str:
        return str(self.servers.url)

    def connect(self) -> redis.RedisCluster:
        nodes = [ClusterNode(_HOST, node.port) for node in self.servers.nodes]  # type: ignore[no-untyped-call]
        return redis.RedisCluster(startup_nodes=nodes, protocol=2)

    def kill(self) -> None:
        self.servers.kill()


KINDS: dict[str, type[SingleRedis] | type[SentinelRedis] | type[ClusterRedis]] = {
    "single": SingleRedis,
    "sentinel": SentinelRedis,
    "cluster": ClusterRedis,
}


class Streams:
    """Reads the conversations in Redis as anybody could: docs/cluster.md names the keys."""

    def __init__(self, client: Any, prefix: str = "nplt:") -> None:
        self._client = client
        self._prefix = prefix
        self.complaints: list[str] = []

    def records(self, session_ids: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
        return {session_id: self._entries(session_id) for session_id in session_ids}

    def key(self, session_id: str, part: str) -> str:
        return f"{self._prefix}{{{session_id}}}:{part}"

    def _entries(self, session_id: str) -> list[dict[str, Any]]:
        entries = []
        for number, fields in self._client.xrange(self.key(session_id, "log")):
            line = bytes(fields[b"line"])
            body, _, checksum = line.rpartition(b',"crc":"')
            if checksum != b'%08x"}' % zlib.crc32(body):
                self.complaints.append(f"{session_id}: the checksum of {number} is wrong")
            entry: dict[str, Any] = json.loads(line)
            if int(number.partition(b"-")[0]) != entry["seq"]:
                self.complaints.append(f"{session_id}: entry {entry['seq']} is at {number}")
            entries.append(entry)
        head = int(self._client.hget(self.key(session_id, "meta"), "head") or 0)
        if head != len(entries):
            self.complaints.append(f"{session_id}: the head is {head} of {len(entries)} entries")
        return entries


# ------------------------------------------------------------------------------
# Servers


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the servers of a cluster have their files, and what they share."""

    directory: Path
    storage: Storage
    secret_file: Path
    calls_file: Path
    redis_options: str
    """Of the servers' connections to Redis, as in a URL."""


class Member:
    """One server. Its port stays the same over its lives."""

    def __init__(
        self,
        place: Place,
        number: int,
        limits: dict[str, object],
        fork_server: ForkServer,
        clock: Clock | None = None,
    ) -> None:
        """`fork_server` makes its process; `clock` is what that takes for the time of day."""
        self.name = f"server{number}"
        self.clock = clock
        self.port = free_port()
        self.to_peers = Link(self.port)
        """By which the others reach it."""
        port = place.storage.port
        self.to_redis = Link(port) if port is not None else None
        self._place = place
        self._fork_server = fork_server
        self._limits = limits
        self._pid: int | None = None
        self._is_stopped = False

    @property
    def is_running(self) -> bool:
        return self._pid is not None and not self._is_stopped

    @property
    def log_path(self) -> Path:
        return self._place.directory / f"{self.name}.log"

    @property
    def cpu_seconds(self) -> float:
        stat = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")

    def start(self) -> None:
        config = self._place.directory / f"{self.name}.yaml"
        config.write_text(json.dumps(self._settings()))  # JSON is YAML
        ready = self._place.directory / f"{self.name}.said"
        if not ready.exists():
            os.mkfifo(ready)
        self._pid = self._fork_server.start(
            ["--config", str(config)], ready=ready, log=self.log_path
        )
        with ready.open() as pipe:
            line = pipe.readline()
        if not line.startswith("listening on "):
            self.kill()
            raise DidNotStart(f"{self.name}: {line!r}; {self.log_path.read_text()[-2_000:]}")

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def terminate(self) -> None:
        self._end(signal.SIGTERM)

    def stop(self) -> None:
        """SIGSTOP: it does nothing, and does not know it."""
        assert self._pid is not None
        os.kill(self._pid, signal.SIGSTOP)
        self._is_stopped = True

    def go_on(self) -> None:
        assert self._pid is not None
        os.kill(self._pid, signal.SIGCONT)
        self._is_stopped = False

    def close(self) -> None:
        self.kill()
        self.to_peers.close()
        if self.to_redis is not None:
            self.to_redis.close()

    def _end(self, number: int) -> None:
        pid, self._pid = self._pid, None
        if pid is not None:
            os.kill(pid, number)
            self._fork_server.wait_for(pid)
        self._is_stopped = False

    def _settings(self) -> dict[str, object]:
        url = self._place.storage.url
        if self.to_redis is not None:
            url = url.replace(f":{self._place.storage.port}/", f":{self.to_redis.port}/")
        if self._place.redis_options:
            url = f"{url}?{self._place.redis_options}"
        return {
            # A balancer may run as another user of this machine.
            "listen": {"host": _HOST, "port": self.port, "local_users": "any"},
            "data_dir": str(self._place.directory / self.name),
            "histories": [
                {"id": "team", "backend": {"type": "redis", "url": url, "lease": LEASE_SECONDS}}
            ],
            "providers": [
                {"id": "counted", "type": "python", "function": "faults.counted_model:answer"}
            ],
            "extensions": {"tools": ["faults.counted_model:count_once"]},
            "tools": {"count_once": "allow"},
            "cluster": {
                "advertise": f"{_HOST}:{self.to_peers.port}",
                "secret_file": str(self._place.secret_file),
            },
            "limits": {"turns_per_user_max": 64, "waiting_prompts_max": 100, **self._limits},
            "log_level": "warning",
        }


class Cluster:
    """Servers over one Redis, all started."""

    def __init__(self, place: Place, members: list[Member]) -> None:
        self.place = place
        self.members = members
        self.balancer: Balancer | None = None

    @property
    def storage(self) -> Any:
        return self.place.storage

    @property
    def ports(self) -> list[int]:
        """Where clients may go."""
        if self.balancer is not None:
            return [self.balancer.port]
        return [member.port for member in self.members]

    def streams(self) -> Streams:
        return Streams(self.place.storage.connect())

    def logs(self) -> str:
        return "".join(
            member.log_path.read_text() for member in self.members if member.log_path.exists()
        )


@contextmanager
def running_cluster(
    plan: Plan,
    kind: Literal["single", "sentinel", "cluster"] = "single",
    *,
    servers: int = 3,
    balancer: str | None = None,
    limits: dict[str, object] | None = None,
    window: int | None = None,
    redis_options: str = "socket_timeout=1",
    with_clocks: bool = False,
) -> Iterator[Cluster]:
    """`window`: about how many entries of a conversation a server keeps in memory. `with_clocks`:
    each server has a time of day of its own, which is right at first."""
    if find_redis_server() is None:
        raise CannotBeDone("there is no redis-server here")
    if with_clocks and find_compiler() is None:
        raise CannotBeDone("there is no C compiler named cc, which builds a clock that can be set")
    directory = plan.new_path("cluster")
    secret_file, calls_file = directory / "secret", directory / "calls"
    secret_file.touch(mode=0o600)
    secret_file.write_text(secrets.token_urlsafe(32))
    with ExitStack() as stack:
        storage = KINDS[kind](directory / "redis")
        stack.callback(storage.kill)
        environment = {**clean_environment(), CALLS_FILE: str(calls_file)}
        if window is not None:
            environment[WINDOW] = str(window)
        place = Place(
            directory=directory,
            storage=storage,
            secret_file=secret_file,
            calls_file=calls_file,
            redis_options=redis_options,
        )
        members: list[Member] = []
        clocks = [Clock(directory / f"clock{number}") for number in range(servers * with_clocks)]
        fork_servers = [
            stack.enter_context(ForkServer(each))
            for each in [clock.environment(environment) for clock in clocks] or [environment]
        ]
        for number in range(servers):
            clock = clocks[number] if clocks else None
            fork_server = fork_servers[number if clocks else 0]
            member = Member(place, number, limits or {}, fork_server, clock)
            stack.callback(member.close)
            members.append(member)
            member.start()
        cluster = Cluster(place, members)
        if balancer is not None:
            ports = [member.port for member in members]
            cluster.balancer = stack.enter_context(Balancer(balancer, directory, ports))
        yield cluster


# ------------------------------------------------------------------------------
# A balancer in front


# As docs/cluster.md shows them.

HAPROXY = """\
global
    maxconn 2000
defaults
    mode tcp
    timeout connect 1s
    timeout client 1h
    timeout server 1h
    retries 3
    option redispatch
listen nplt
    bind 127.0.0.1:{port}
    balance leastconn
    option tcp-check
    default-server check inter 200ms fall 1 rise 1
{servers}
"""

NGINX = """\
load_module {module};
daemon off;
pid {directory}/nginx.pid;
error_log {directory}/nginx.log warn;
events {{ worker_connections 4000; }}
stream {{
    upstream nplt {{
        least_conn;
{servers}
    }}
    server {{
        listen 127.0.0.1:{port};
        proxy_pass nplt;
        proxy_connect_timeout 1s;
        proxy_timeout 1h;
        proxy_next_upstream on;
    }}
}}
"""
NGINX_STREAM = Path(os.environ.get("NGINX_STREAM", "/usr/lib/nginx/modules/ngx_stream_module.so"))
"""Debian has it in a package of its own, libnginx-mod-stream."""

BALANCERS = ("HAProxy", "nginx")


class Balancer:
    def __init__(self, name: str, directory: Path, ports: Sequence[int]) -> None:
        self.port = free_port()
        self._log = directory / "balancer.log"
        config = directory / "balancer.conf"
        if name == "nginx":
            servers = "\n".join(
                f"        server {_HOST}:{port} max_fails=1 fail_timeout=1s;" for port in ports
            )
            if not NGINX_STREAM.exists():
                raise CannotBeDone("nginx has no stream module here (libnginx-mod-stream)")
            text = NGINX.format(
                port=self.port, servers=servers, module=NGINX_STREAM, directory=directory
            )
            self._command = [_program("nginx"), "-c", str(config), "-e", str(self._log)]
        else:
            servers = "\n".join(f"    server s{port} {_HOST}:{port}" for port in ports)
            text = HAPROXY.format(port=self.port, servers=servers)
            self._command = [_program("haproxy"), "-f", str(config), "-db"]
        config.write_text(text)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Balancer:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            with suppress(OSError), socket.create_connection((_HOST, self.port), timeout=5):
                return self
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise DidNotStart(self._log.read_text())
            time.sleep(0.02)

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()


def _program(name: str) -> str:
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin")
    if found is None:
        raise CannotBeDone(f"there is no {name} here")
    return found
