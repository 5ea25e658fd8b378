"""Two servers over one Redis: a user's limits hold for both together, and both name each other."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.raw_client import (
    ERROR,
    HISTORY_REQUEST,
    PROMPT,
    SESSION_LIST,
    STATUS,
    TURN_STARTED,
    RawClient,
)
from tests.support.redis_server import RedisServer
from tests.support.server_cluster import Cluster
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.slow
Start = Callable[..., list[ServerProcess]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    redis = RedisServer(tmp_path / "redis").start()
    cluster = Cluster(tmp_path, redis, lease=2.0)

    def start(**settings: Any) -> list[ServerProcess]:
        return [
            cluster.start(name, advertise=f"{name}.example:9999", secret=None, **settings)
            for name in ("one", "two")
        ]

    yield start
    cluster.end()
    redis.kill()


def test_turn_slots_of_a_user_are_shared_by_both_servers(start: Start) -> None:
    one, two = start(limits={"turns_per_user_max": 1})
    with RawClient(one.port) as first, RawClient(two.port) as second:
        first.hello()
        second.hello()
        begun = first.request(PROMPT, {"text": "!slow 2 first"}).json
        first.event(TURN_STARTED)
        assert second.ask("second") == "second"
        assert first.answer_of(begun["turn_id"]) == "first"
        (ended,), (waited,) = (
            client.request(HISTORY_REQUEST, {"roles": ["assistant"]}).json["messages"]
            for client in (first, second)
        )
    assert ended["timestamp"] < waited["timestamp"]


def test_a_shared_turn_slot_is_free_when_the_turn_has_ended(start: Start) -> None:
    one, _ = start(limits={"turns_per_user_max": 1})
    with RawClient(one.port) as client:
        client.hello()
        for number in range(5):
            assert client.ask(f"prompt {number}") == f"prompt {number}"


def test_the_prompt_rate_limit_counts_at_both_servers(start: Start) -> None:
    token, limit = "a-token-of-ada", 30
    users = [{"name": "ada", "token_sha256": hashlib.sha256(token.encode()).hexdigest()}]
    one, two = start(users=users, limits={"prompts_per_minute_max": limit})
    accepted = []
    for server in (one, two):
        with RawClient(server.port) as client:
            client.hello({"token": token})
            for number in range(limit):
                reply = client.request(PROMPT, {"text": f"prompt {number}"})
                if reply.type == ERROR:
                    assert reply.json["code"] == "rate_limited"
                    break
                client.answer_of(reply.json["turn_id"])
                accepted.append(server)
    assert accepted.count(one) == limit
    assert 0 < accepted.count(two) < limit


def test_a_session_list_shows_turns_that_run_at_the_other_server(start: Start) -> None:
    one, two = start()
    with RawClient(one.port) as client, RawClient(two.port) as other:
        client.hello()
        other.hello()
        begun = client.request(PROMPT, {"text": "!slow 3 word"}).json
        client.event(TURN_STARTED)
        (row,) = other.request(SESSION_LIST).json["sessions"]
        assert row["state"] == "running"
        client.answer_of(begun["turn_id"])
        (row,) = other.request(SESSION_LIST).json["sessions"]
        assert row["state"] == "idle"


def test_status_names_both_members_and_their_open_conversations(start: Start) -> None:
    one, two = start()
    with RawClient(one.port) as client, RawClient(two.port) as other:
        client.hello()
        other.hello()
        client.ask("hello")
        cluster = other.request(STATUS).json["cluster"]
        while [each["owned"] for each in cluster["members"]] != [1, 0]:
            cluster = other.request(STATUS).json["cluster"]
        members = cluster["members"]
        assert [each["address"] for each in members] == ["one.example:9999", "two.example:9999"]
        assert cluster["member"] == members[1]["id"]


def test_an_id_that_a_user_chooses_is_stored_under_the_same_id_by_both_servers(
    start: Start,
) -> None:
    token = "a-token-of-ada"
    users = [{"name": "ada", "token_sha256": hashlib.sha256(token.encode()).hexdigest()}]
    one, two = start(users=users)
    chosen = {"token": token, "session_id": "diary", "create": True}
    with RawClient(one.port) as first, RawClient(two.port) as second:
        made = [client.hello(chosen)["session_id"] for client in (first, second)]
    assert made[0] == made[1] != "diary"
