"""Fixtures every room may use."""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers
from tests.support.raw_client import RawClient
from tests.support.redis_server import RedisServer
from tests.support.server_process import ServerProcess

# Examples may be slow on a busy machine; that is never a failure. Few of them
# each time, for `make test` is run often; `--hypothesis-profile=thorough` is for
# whoever has changed something that properties are about.
settings.register_profile(
    # The same examples each time: what lands must not depend on luck. `thorough` looks further.
    "house",
    deadline=None,
    print_blob=True,
    max_examples=50,
    derandomize=True,
)
settings.register_profile("thorough", deadline=None, print_blob=True, max_examples=1_000)
settings.load_profile("house")


def pytest_sessionstart() -> None:
    """Hypothesis also takes examples from the constants of imported modules whose path has
    no `tests` in it. Which these are depends on where the checkout is, and on the tests that
    ran before in the same process."""
    if settings.get_current_profile_name() == "house":
        providers._get_local_constants = lambda: providers._local_constants  # empty until asked


gc.disable()  # until all is imported


def pytest_collection_finish() -> None:
    """What was imported stays: the garbage collector need not look at it again and again."""
    gc.enable()
    gc.collect()
    gc.freeze()


# Servers say there where they listen: not to the `nplt` of whoever runs the tests.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="nplt-tests-")
# Nor do they look for servers with models that happen to run on this machine.
os.environ["NPLT_LOCAL_SERVERS"] = "{}"


class Connect(Protocol):
    def __call__(self, to: ServerProcess | None = None) -> RawClient: ...


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[Callable[..., ServerProcess]]:
    """Starts servers that are gone when the test is over."""
    started: list[ServerProcess] = []

    def start(*flags: str, **configured: object) -> ServerProcess:
        server = ServerProcess(tmp_path / f"data{len(started)}", *flags, settings=configured)
        started.append(server)
        return server.start()

    yield start
    for server in started:
        server.kill()


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server for all tests that don't mind each other's conversations."""
    server = ServerProcess(tmp_path_factory.mktemp("shared") / "data").start()
    yield server
    assert server.terminate() == 0


@pytest.fixture
def server(start_server: Callable[..., ServerProcess]) -> ServerProcess:
    """One of its own, empty."""
    return start_server()


@pytest.fixture
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    """Raw connections, to the test's `server` unless told otherwise; closed
    when the test is over."""
    opened: list[RawClient] = []

    def connect(to: ServerProcess | None = None) -> RawClient:
        server: ServerProcess = to or request.getfixturevalue("server")
        opened.append(RawClient(server.port))
        return opened[-1]

    yield connect
    for client in opened:
        client.sock.close()


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    """A Redis of the test's own, which has on disk what it has confirmed."""
    server = RedisServer(tmp_path / "redis", appendfsync="always").start()
    yield server
    server.kill()


@pytest.fixture
def client(connect: Connect) -> RawClient:
    """A client of the structured dialect, in a fresh conversation."""
    raw = connect()
    raw.hello()
    return raw
