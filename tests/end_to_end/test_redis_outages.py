"""Redis is down, hangs, is read-only or full: turns wait, clients stay, and all goes on."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.ports import free_port
from tests.support.raw_client import (
    AGENT_THOUGHT,
    ATTACH,
    ERROR,
    HISTORY_REQUEST,
    PING,
    PONG,
    PROMPT,
    SESSION_EVENT,
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


def test_status_does_not_wait_for_a_redis_that_is_known_to_hang(
    server: ServerProcess, redis: RedisServer
) -> None:
    with RawClient(server.port) as client:
        client.hello()
        client.ask("before")
        with hanging(redis):
            assert client.request(PROMPT, {"text": "meanwhile"}).type == ERROR
            began = time.monotonic()
            for _ in range(20):  # those that tried whether Redis answers again took a second each
                assert "read_only" in client.request(STATUS).json["storage"]
                time.sleep(0.1)
            assert time.monotonic() - began < 6
        ask_until_it_is_taken(client, "after")
        assert "stored" in client.request(STATUS).json["conversations"]


def messages_of(port: int, session_id: str) -> list[dict[str, Any]]:
    with RawClient(port) as reader:
        reader.hello()
        query = {"session_id": session_id, "limit": 50}
        deadline = time.monotonic() + 60
        while (reply := reader.request(HISTORY_REQUEST, query)).type == ERROR:
            assert time.monotonic() < deadline, reply.json
            time.sleep(0.05)
        messages: list[dict[str, Any]] = reply.json["messages"]
        return messages


def wait_for_storage(client: RawClient) -> str:
    """The text shown until the server says that a turn waits for Redis."""
    shown = ""
    for event in client.events():
        if event.type == TEXT_DELTA:
            shown += event.json["text"]
        if event.type == AGENT_THOUGHT and event.json.get("type") == "waiting":
            assert "storage" in event.json["content"]
            return shown
        assert event.type != TURN_FINISHED, event.json
    raise AssertionError("unreachable")


WORDS = "word " * 40
STOP_SECONDS_MAX = 30
"""The server needs 15 s at most; a busy machine may take longer."""


@pytest.mark.parametrize("outage", OUTAGES)
def test_an_answer_that_ends_while_redis_is_away_is_stored_and_the_prompt_behind_it_runs(
    server: ServerProcess, redis: RedisServer, outage: Outage
) -> None:
    with RawClient(server.port) as client:
        client.hello()
        first = client.request(PROMPT, {"text": WORDS, "model": "slow/echo"}).json
        second = client.request(PROMPT, {"text": "behind it"}).json
        client.event(TEXT_DELTA)
        with outage(redis):
            wait_for_storage(client)
            time.sleep(2.5)  # longer than the lease, too
            assert client.request(PING).type == PONG
        for receipt in (first, second):
            finished = client.event(TURN_FINISHED).json
            assert (finished["turn_id"], finished["state"]) == (receipt["turn_id"], "completed")
    stored = messages_of(server.port, first["session_id"])
    assert [each["role"] for each in stored] == ["user", "assistant"] * 2
    assert WORDS.strip() in stored[1]["content"]


def test_a_turn_killed_while_redis_is_away_is_reported_finished_once_after_the_restart(
    server: ServerProcess, redis: RedisServer
) -> None:
    with RawClient(server.port) as client:
        client.hello()
        first = client.request(PROMPT, {"text": WORDS, "model": "slow/echo"}).json
        second = client.request(PROMPT, {"text": "behind it"}).json
        client.event(TEXT_DELTA)
        with down(redis):
            wait_for_storage(client)
            time.sleep(2)
            server.kill()
            told = [each.json for each in client.until_closed() if each.type == TURN_FINISHED]
            assert told == []
    server.start()
    deadline = time.monotonic() + 60
    while len(stored := messages_of(server.port, first["session_id"])) < 4:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    by_turn = {each["turn_id"]: each for each in stored if each["role"] == "assistant"}
    assert by_turn[first["turn_id"]]["state"] == "interrupted"
    assert by_turn[second["turn_id"]]["state"] == "completed"


@pytest.mark.parametrize("outage", [down, hanging])
def test_a_server_stops_in_time_while_redis_is_away_and_the_turn_ends_at_the_next_start(
    server: ServerProcess, redis: RedisServer, outage: Outage
) -> None:
    with RawClient(server.port) as client:
        client.hello()
        receipt = client.request(PROMPT, {"text": WORDS, "model": "slow/echo"}).json
        client.event(TEXT_DELTA)
        with outage(redis):
            wait_for_storage(client)
            began = time.monotonic()
            assert server.terminate() == 0
            assert time.monotonic() - began < STOP_SECONDS_MAX
            assert all(each.type != TURN_FINISHED for each in client.until_closed())
    server.start()
    assert taken_over(server.port, receipt["session_id"])["state"] == "interrupted"


def test_the_text_shown_after_an_outage_survives_a_kill(
    server: ServerProcess, redis: RedisServer
) -> None:
    with RawClient(server.port) as client:
        client.hello()
        receipt = client.request(PROMPT, {"text": "word " * 600, "model": "slow/echo"}).json
        shown = client.event(TEXT_DELTA).json["text"]
        with down(redis):
            time.sleep(1)
        for event in client.events():
            if event.type == TEXT_DELTA:
                shown += event.json["text"]
                if len(shown) > 600:
                    break
        server.kill()
        shown += "".join(e.json["text"] for e in client.until_closed() if e.type == TEXT_DELTA)
    server.start()
    stored = taken_over(server.port, receipt["session_id"])
    assert stored["state"] == "interrupted"
    assert stored["content"].startswith(shown)


def test_an_owner_that_was_stopped_and_overtaken_shows_nothing_that_is_in_no_record(
    tmp_path: Path, server: ServerProcess, redis: RedisServer
) -> None:
    other = ServerProcess(tmp_path / "other", settings=server.settings).start()
    try:
        with RawClient(server.port) as client:
            client.hello()
            receipt = client.request(PROMPT, {"text": "word " * 600, "model": "slow/echo"}).json
            shown = client.event(TEXT_DELTA).json["text"]
            server.signal(signal.SIGSTOP)
            redis.pass_time(60, prefix="nplt:")
            stored = taken_over(other.port, receipt["session_id"])
            server.signal(signal.SIGCONT)
            for event in client.events():
                if event.type == TEXT_DELTA:
                    shown += event.json["text"]
                assert event.type != TURN_FINISHED, event.json
                if event.type == SESSION_EVENT and event.json["event"] == "lagged":
                    break
        assert stored["state"] == "interrupted"
        assert stored["content"].startswith(shown)
    finally:
        other.kill()


def taken_over(port: int, session_id: str) -> dict[str, Any]:
    """The last message of the conversation, after the server at this port has opened it."""
    with RawClient(port) as client:
        client.hello()
        assert client.request(ATTACH, {"session_id": session_id}).type != ERROR
    return messages_of(port, session_id)[-1]


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
