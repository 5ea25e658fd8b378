"""A node of a Redis Cluster is away: what is on the others goes on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.raw_client import ERROR, SEARCH, SESSION_LIST, SESSION_NEW, RawClient
from tests.support.redis_server import RedisClusterServers
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.slow

CONVERSATIONS = 12
SECONDS_MAX = 60


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisClusterServers]:
    servers = RedisClusterServers(tmp_path / "redis").start()
    for node in servers.nodes:
        node.call("CONFIG", "SET", "cluster-require-full-coverage", "no")
    yield servers
    servers.kill()


@pytest.fixture
def server(tmp_path: Path, redis: RedisClusterServers) -> Iterator[ServerProcess]:
    backend = {"type": "redis", "url": redis.url}
    server = ServerProcess(
        tmp_path / "server", settings={"histories": [{"id": "team", "backend": backend}]}
    )
    yield server.start()
    server.kill()


def without_the_list(redis: RedisClusterServers) -> Any:
    """A node that does not have the user's list, which is in one slot."""
    return next(
        node
        for node in redis.nodes
        if not any(key.startswith(b"nplt:@user:") for key in node.call("KEYS", "nplt:@user:*"))
    )


@pytest.mark.parametrize("is_hanging", [False, True], ids=["killed", "hanging"])
def test_with_one_node_away_lists_are_partial_and_new_conversations_go_to_other_nodes(
    server: ServerProcess, redis: RedisClusterServers, is_hanging: bool
) -> None:
    with RawClient(server.port) as client:
        client.hello()
        for number in range(CONVERSATIONS):
            made = client.request(SESSION_NEW, {"name": f"number {number}"})
            assert made.type == SESSION_NEW, made.json
            assert client.ask(f"needle {number}")
        node = without_the_list(redis)
        if is_hanging:
            node.freeze()
        else:
            node.kill()
        try:
            deadline = time.monotonic() + SECONDS_MAX
            while not (listed := client.request(SESSION_LIST)).json.get("incomplete"):
                assert time.monotonic() < deadline, listed.json
            assert 0 < len(listed.json["sessions"]) < CONVERSATIONS
            found = client.request(SEARCH, {"query": "needle", "limit": 50}).json
            assert found.get("incomplete"), found
            assert found["hits"]
            for number in range(9):
                made = client.request(SESSION_NEW, {"name": f"new {number}"})
                assert made.type != ERROR, made.json
        finally:
            if is_hanging:
                node.thaw()
