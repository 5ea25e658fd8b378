"""Histories of several kinds in one server, and one Redis under two servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.raw_client import (
    ATTACH,
    ERROR,
    HISTORY_REQUEST,
    PROMPT,
    SESSION_LIST,
    SESSION_NEW,
    STATUS,
    TURN_FINISHED,
    RawClient,
)
from tests.support.redis_server import RedisServer
from tests.support.server_process import ServerProcess

Start = Callable[[str], ServerProcess]


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path / "redis", appendfsync="always")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def start(tmp_path: Path, redis: RedisServer) -> Iterator[Start]:
    servers: list[ServerProcess] = []
    histories = [
        {"id": "main"},
        {"id": "team", "backend": {"type": "redis", "url": redis.url, "key_prefix": "t:"}},
        {"id": "short", "backend": {"type": "memory", "max_turns": 1}},
    ]

    def start(name: str) -> ServerProcess:
        cluster = {"advertise": f"{name}.example:9999"}
        settings: dict[str, object] = {"histories": histories, "cluster": cluster}
        server = ServerProcess(tmp_path / name, settings=settings)
        servers.append(server)
        return server.start()

    yield start
    for server in servers:
        server.kill()


def begin(client: RawClient, history: str, name: str) -> str:
    created = client.request(SESSION_NEW, {"history": history, "name": name}).json
    client.ask(f"hello {name}")
    return str(created["session_id"])


def names(client: RawClient) -> list[str]:
    return [row["name"] for row in client.request(SESSION_LIST).json["sessions"]]


def test_one_list_shows_all_histories_and_acknowledged_entries_survive_a_kill(start: Start) -> None:
    server = start("data")
    with RawClient(server.port) as client:
        client.hello()
        for history in ("main", "team", "short"):
            begin(client, history, f"in {history}")
        assert names(client) == ["in short", "in team", "in main"]
        promised = client.request(STATUS).json["storage"]["histories"]
        assert [each["backend"] for each in promised] == ["json", "redis", "memory"]
    server.kill()
    server.start()
    with RawClient(server.port) as client:
        client.hello()
        assert names(client) == ["in team", "in main"]
        for row in client.request(SESSION_LIST).json["sessions"]:
            page = client.request(HISTORY_REQUEST, {"session_id": row["session_id"]}).json
            assert [each["role"] for each in page["messages"]] == ["user", "assistant"]


def test_on_a_shared_redis_a_conversation_belongs_to_one_server_at_a_time(start: Start) -> None:
    one, two = start("one"), start("two")
    with RawClient(two.port) as second:
        second.hello()
        with RawClient(one.port) as first:
            first.hello()
            session_id = begin(first, "team", "shared")
            refused = second.request(ATTACH, {"session_id": session_id})
            assert (refused.type, refused.json["code"]) == (ERROR, "unavailable")
            assert refused.json["retryable"]
            assert "the server at one.example:9999 has it open" in refused.json["message"]
            # Everybody reads.
            page = second.request(HISTORY_REQUEST, {"session_id": session_id}).json
            assert [each["role"] for each in page["messages"]] == ["user", "assistant"]
            assert names(second) == ["shared"]
        one.terminate()
        second.request(ATTACH, {"session_id": session_id})
        second.request(PROMPT, {"text": "now I"})
        assert second.event(TURN_FINISHED).json["state"] == "completed"
        page = second.request(HISTORY_REQUEST, {"session_id": session_id}).json
        assert [each["seq"] for each in page["messages"]] == [2, 3, 4, 5]


def test_conversations_of_a_killed_server_are_acquired_at_once_by_another_on_its_machine(
    start: Start,
) -> None:
    one, two = start("one"), start("two")
    with RawClient(two.port) as second, RawClient(one.port) as first:
        second.hello()
        first.hello()
        session_id = begin(first, "team", "shared")
        one.kill()
        attached = second.request(ATTACH, {"session_id": session_id})
        assert attached.type != ERROR
        second.ask("now I")
        page = second.request(HISTORY_REQUEST, {"session_id": session_id, "roles": ["user"]}).json
        assert [each["content"] for each in page["messages"]] == ["hello shared", "now I"]


def test_two_servers_that_create_the_same_id_have_one_conversation(start: Start) -> None:
    one, two = start("one"), start("two")
    wanted = {"session_id": "user_123", "create": True, "history": "team"}
    with RawClient(two.port) as second:
        with RawClient(one.port) as first:
            assert first.hello(wanted)["session_id"] == "user_123"
            assert second.hello(wanted)["session_id"] == "user_123"
            first.ask("from one")
            refused = second.request(PROMPT, {"text": "too soon"})
            assert (refused.type, refused.json["code"]) == (ERROR, "unavailable")
        one.terminate()
        second.ask("from two")
        page = second.request(HISTORY_REQUEST, {"roles": ["user"]}).json
        assert [each["content"] for each in page["messages"]] == ["from one", "from two"]
