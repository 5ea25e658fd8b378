"""Fixtures for what is remembered."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from tests.support.redis_server import RedisServer


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
