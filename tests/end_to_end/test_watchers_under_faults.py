"""Watchers end with the same rows as a list: kills, stops, a Redis that goes, two servers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from signal import SIGCONT, SIGSTOP
from time import monotonic

import anyio
import pytest
from tests.support.redis_server import RedisServer
from tests.support.server_cluster import Cluster
from tests.support.server_process import ServerProcess

import nplt_client
from nplt_client import Client, NpltError, Patience, SessionRow

pytestmark = pytest.mark.slow

WATCHERS, CONVERSATIONS, ROUNDS = 20, 60, 2
SECONDS_MAX = 40.0
PATIENCE = Patience(first_seconds=0.1, most_seconds=1.0)
MOVES = {"last_accessed", "is_current"}


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path / "redis", appendfsync="always").start()
    yield server
    server.kill()


@pytest.fixture
def cluster(tmp_path: Path, redis: RedisServer) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path, redis)
    yield cluster
    cluster.end()


def comparable(row: SessionRow) -> dict[str, object]:
    return {name: getattr(row, name) for name in row.__struct_fields__ if name not in MOVES}


class Watcher:
    """Keeps the rows that it was given, as a page of conversations would."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, object]] = {}

    async def run(self, client: Client) -> None:
        async for change in client.watch():
            if change.row is None:
                self.rows.pop(change.session_id, None)
            else:
                self.rows[change.session_id] = comparable(change.row)


def address(server: ServerProcess) -> str:
    return f"nplt://127.0.0.1:{server.port}"


async def write(server: ServerProcess, chance: random.Random, stop: anyio.Event) -> None:
    """Changes conversations in every way until it is stopped; refusals and losses are expected."""
    ids: list[str] = []
    while not stop.is_set():
        try:
            async with nplt_client.connect(address(server), timeout=5.0) as client:
                while not stop.is_set():
                    if len(ids) < CONVERSATIONS // 4 or chance.random() < 0.05:
                        ids.append((await client.new(f"c{len(ids)}")).session_id)
                    else:
                        await client.switch(chance.choice(ids))
                    text = chance.choice(["hello", "!fail", "!slow 0.2 one two"])
                    async with client.ask(text) as turn:
                        if chance.random() < 0.7:
                            async for _ in turn:
                                pass
                    if chance.random() < 0.3:
                        await client.seen(10**6)
                    if chance.random() < 0.1:
                        await client.delete(ids.pop(chance.randrange(len(ids))))
        except NpltError:
            await anyio.sleep(0.1)


async def all_rows(server: ServerProcess) -> dict[str, dict[str, object]]:
    async with nplt_client.connect(address(server), reconnect=PATIENCE) as client:
        return {row.session_id: comparable(row) async for row in client.sessions()}


async def check_equal(fault: str, servers: list[ServerProcess], watchers: list[Watcher]) -> None:
    """Every watcher has, of the conversations it was told of, what lists of both servers say, and
    it was told of all that need attention."""
    deadline, wrong = monotonic() + SECONDS_MAX, ["not compared yet"]
    while wrong:
        assert monotonic() < deadline, (fault, wrong[:5])
        await anyio.sleep(0.3)
        lists = [await all_rows(server) for server in servers]
        if lists[0] != lists[1]:
            wrong = ["the lists differ"]
            continue
        listed = lists[0]
        wrong = [
            f"watcher {number}, {row['name']}: {_differences(watcher.rows.get(session_id), row)}"
            for number, watcher in enumerate(watchers)
            for session_id, row in listed.items()
            if watcher.rows.get(session_id, row if _is_settled(row) else None) != row
        ]
        wrong += [
            f"watcher {number} has {session_id}, which is gone"
            for number, watcher in enumerate(watchers)
            for session_id in watcher.rows.keys() - listed.keys()
        ]


def _differences(found: dict[str, object] | None, listed: dict[str, object]) -> str:
    if found is None:
        return "it has no row"
    differing = {name for name in listed if found[name] != listed[name]}
    return ", ".join(f"{name} {found[name]}, listed {listed[name]}" for name in differing)


def _is_settled(row: dict[str, object]) -> bool:
    return row["state"] == "idle" and not row["unread"]


@pytest.mark.timeout(900)
async def test_watchers_have_the_rows_of_a_list_after_any_fault(
    cluster: Cluster, redis: RedisServer
) -> None:
    servers = [cluster.start("one"), cluster.start("two")]
    chance = random.Random(7)
    watchers = [Watcher() for _ in range(WATCHERS)]
    async with anyio.create_task_group() as tasks:
        for number, watcher in enumerate(watchers):
            connecting = nplt_client.connect(address(servers[number % 2]), reconnect=PATIENCE)

            async def follow(watcher: Watcher = watcher, connecting=connecting) -> None:  # type: ignore[no-untyped-def]
                async with connecting as client:
                    await client.detach()
                    await watcher.run(client)

            tasks.start_soon(follow)
        for fault in ("nothing", "kill", "stop", "cut") * ROUNDS:
            stop = anyio.Event()
            async with anyio.create_task_group() as writers:
                for number in range(4):
                    seed = random.Random(chance.random())
                    writers.start_soon(write, servers[number % 2], seed, stop)
                await anyio.sleep(2.0)
                await _do(fault, chance.choice(servers), redis)
                await anyio.sleep(1.0)
                stop.set()
            await check_equal(fault, servers, watchers)
        tasks.cancel_scope.cancel()


async def _do(fault: str, server: ServerProcess, redis: RedisServer) -> None:
    match fault:
        case "kill":
            await anyio.to_thread.run_sync(server.kill)
            await anyio.to_thread.run_sync(server.start)
        case "stop":
            server.signal(SIGSTOP)
            await anyio.sleep(5.0)  # longer than a lease
            server.signal(SIGCONT)
        case "cut":
            await anyio.to_thread.run_sync(redis.restart)
        case _:
            pass
