"""Redis is down, hangs, is read-only or full: turns fail, clients stay, and all goes on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from tests.support.ports import free_port
from tests.support.raw_client import (
    ERROR,
    HISTORY_REQUEST,
    PING,
    PONG,
    PROMPT,
    SESSION_LIST,
    STATUS,
    TEXT_DELTA,
    TURN_FINISHED,
    RawClient,
)
from tests.support.redis_server import RedisServer
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.slow


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path / "redis", appendfsync="always").start()
    yield server
    server.kill()


@pytest.fixture
def server(tmp_path: Path, redis: RedisServer) -> Iterator[ServerProcess]:
    backend = {"type": "redis", "url": f"{redis.url}?socket_timeout=1", "lease": 2.0}
    settings: dict[str, object] = {
        "histories": [{"id": "team", "backend": backend}],
        "providers": [
            {"id": "offline", "type": "offline", "words_per_second": 0},
            {"id": "slow", "type": "offline", "words_per_second": 50},
        ],
    }
    server = ServerProcess(tmp_path / "server", settings=settings)
    yield server.start()
    server.kill()


@contextmanager
def down(redis: RedisServer) -> Iterator[None]:
    redis.kill()
    yield
    redis.start()


@contextmanager
def hanging(redis: RedisServer) -> Iterator[None]:
    redis.freeze()
    try:
        yield
    finally:
        redis.thaw()


@contextmanager
def read_only(redis: RedisServer) -> Iterator[None]:
    redis.call("REPLICAOF", "127.0.0.1", free_port())
    yield
    redis.call("REPLICAOF", "NO", "ONE")


@contextmanager
def full(redis: RedisServer) -> Iterator[None]:
    redis.call("CONFIG", "SET", "maxmemory", 1)
    yield
    redis.call("CONFIG", "SET", "maxmemory", 0)


OUTAGES = [down, hanging, read_only, full]
Outage = Callable[[RedisServer], AbstractContextManager[None]]


def prompts_of(client: RawClient) -> list[str]:
    page = client.request(HISTORY_REQUEST, {"roles": ["user"]}).json
    return [each["content"] for each in page["messages"]]


def ask_until_it_is_taken(client: RawClient, text: str) -> None:
    """As a client does that is told to come back later."""
    deadline = time.monotonic() + 60
    while (reply := client.request(PROMPT, {"text": text, "message_id": text})).type == ERROR:
        assert reply.json["code"] == "unavailable", reply.json
        assert time.monotonic() < deadline
    while client.event(TURN_FINISHED).json["turn_id"] != reply.json["turn_id"]:
        pass


@pytest.mark.parametrize("outage", OUTAGES)
def test_a_prompt_is_refused_as_unavailable_and_accepted_when_redis_is_back(
    server: ServerProcess, redis: RedisServer, outage: Outage
) -> None:
    with RawClient(server.port) as client:
        client.hello()
        client.ask("before")
        with outage(redis):
            refused = client.request(PROMPT, {"text": "meanwhile", "message_id": "m1"})
            assert (refused.type, refused.json["code"]) == (ERROR, "unavailable")
            assert refused.json["retryable"]
            assert client.request(PING).type == PONG
            assert client.request(STATUS).type != ERROR
        ask_until_it_is_taken(client, "after")
        assert prompts_of(client) == ["before", "after"]
        assert len(client.request(SESSION_LIST).json["sessions"]) == 1


@pytest.mark.parametrize("outage", OUTAGES)
def test_a_turn_whose_answer_redis_can_not_store_fails_and_the_next_one_runs(
    server: ServerProcess, redis: RedisServer, outage: Outage
) -> None:
    with RawClient(server.port) as client:
        client.hello()
        receipt = client.request(PROMPT, {"text": "word " * 40, "model": "slow/echo"}).json
        client.event(TEXT_DELTA)
        with outage(redis):
            finished = client.event(TURN_FINISHED).json
            assert finished["turn_id"] == receipt["turn_id"]
            assert finished["state"] == "failed", finished
            assert finished["error"]["code"] == "unavailable"
            assert client.request(PING).type == PONG
        ask_until_it_is_taken(client, "after")
        assert prompts_of(client)[-1] == "after"


@pytest.mark.slow
def test_a_redis_outage_longer_than_the_lease_is_survived(
    server: ServerProcess, redis: RedisServer
) -> None:
    with RawClient(server.port) as client:
        client.hello()
        client.ask("before")
        redis.kill()
        time.sleep(2.5)  # its lease of two seconds has lapsed, by whichever clock
        redis.start()
        ask_until_it_is_taken(client, "after")
        assert prompts_of(client) == ["before", "after"]
