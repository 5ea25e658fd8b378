"""Fixtures for the tests of stores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from tests.support.redis_server import RedisServer

from nplt_storage.entries import Entry
from nplt_storage.redis.streams import StreamSource


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One for all tests of a worker, each with its own prefix. It may be killed and
    restarted: what it has answered is in its log, and the machine goes on."""
    server = RedisServer(tmp_path_factory.mktemp("redis"), appendfsync="no").start()
    yield server
    server.kill()


@pytest.fixture
def start_redis(tmp_path: Path) -> Iterator[Callable[..., RedisServer]]:
    """Starts servers of a test's own, gone when it is over however it went."""
    started: list[RedisServer] = []

    def start(
        *, appendfsync: str | None = None, port: int = 0, options: Sequence[str] = ()
    ) -> RedisServer:
        directory = tmp_path / f"redis{len(started)}"
        started.append(RedisServer(directory, appendfsync=appendfsync, port=port, options=options))
        return started[-1].start()

    yield start
    for server in started:
        server.kill()


@pytest.fixture
def lines_decoded(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The lines of streams that are decoded from now on."""
    lines: list[bytes] = []
    decoded = StreamSource._decoded

    def counted(self: StreamSource, line: bytes) -> Entry:
        lines.append(line)
        return decoded(self, line)

    monkeypatch.setattr(StreamSource, "_decoded", counted)
    return lines
