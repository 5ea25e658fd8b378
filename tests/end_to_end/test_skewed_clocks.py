"""Servers over one Redis whose clocks are wrong, by hours or days, or are set while they run.

Times that are stored, and that prompts and approvals wait for, are those of Redis's clock.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.clocks import Clock, find_compiler
from tests.support.raw_client import (
    APPROVAL,
    APPROVAL_REQUEST,
    PROMPT,
    SESSION_DELETE,
    SESSION_LIST,
    SESSION_UPDATE,
    STATUS,
    TOOL_FINISHED,
    TURN_FINISHED,
    TURN_STARTED,
    RawClient,
)
from tests.support.redis_server import RedisServer
from tests.support.server_cluster import Cluster, redis_settings
from tests.support.server_process import ServerProcess, clean_environment

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_compiler() is None, reason="there is no C compiler named cc"),
]

LEASE_SECONDS = 3.0
SECONDS_MAX = 60
ASKS: dict[str, Any] = {"tools": {"now": "ask"}, "limits": {"approval_seconds_max": 300}}


@pytest.fixture
def cluster(tmp_path: Path, redis: RedisServer) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path, redis, lease=LEASE_SECONDS)
    yield cluster
    cluster.end()


def clock_of(tmp_path: Path, name: str, **ahead: float) -> Clock:
    return Clock(tmp_path / f"clock-of-{name}", timedelta(**ahead))


def seconds_from_now(told: str) -> float:
    return (datetime.fromisoformat(told) - datetime.now(UTC)).total_seconds()


@pytest.mark.parametrize("hours", [2, -2])
def test_a_prompt_for_later_begins_in_time_although_the_clock_is_wrong_and_jumps(
    tmp_path: Path, cluster: Cluster, hours: int
) -> None:
    clock = clock_of(tmp_path, "server", hours=hours)
    server = cluster.start("server", clock=clock)
    with RawClient(server.port) as client:
        client.hello()
        clock.set(timedelta(hours=-3 * hours))
        began = time.monotonic()
        receipt = client.request(PROMPT, {"text": "later", "not_before": 4}).json
        assert abs(seconds_from_now(receipt["due_at"]) - 4) < 2
        client.event(TURN_STARTED)
        assert 4 <= time.monotonic() - began < SECONDS_MAX
        client.event(TURN_FINISHED)


@pytest.mark.parametrize("hours", [2, -2])
def test_an_approval_stays_open_when_a_server_with_another_clock_takes_over(
    tmp_path: Path, cluster: Cluster, hours: int
) -> None:
    owner = cluster.start("owner", clock=clock_of(tmp_path, "owner", hours=hours), **ASKS)
    other = cluster.start("other", clock=clock_of(tmp_path, "other", hours=-hours), **ASKS)
    client, session_id = cluster.begin(owner)
    client.request(PROMPT, {"text": "!tool now {}"})
    asked = client.event(APPROVAL_REQUEST).json
    assert 200 < seconds_from_now(asked["expires_at"]) < 301
    owner.kill()
    client, attached = cluster.attach(other, session_id)
    assert [each["approval_id"] for each in attached["pending_approvals"]] == [asked["approval_id"]]
    client.request(APPROVAL, {"approval_id": asked["approval_id"], "decision": "allow"})
    assert client.event(TOOL_FINISHED).json["status"] == "success"
    assert client.event(TURN_FINISHED).json["state"] == "completed"


def test_a_deleted_conversation_is_in_the_trash_of_servers_whose_clocks_differ_by_forty_days(
    tmp_path: Path, cluster: Cluster
) -> None:
    late = cluster.start("late", clock=clock_of(tmp_path, "late", days=-40))
    early = cluster.start("early", clock=clock_of(tmp_path, "early", days=40))
    client, session_id = cluster.begin(late)
    client.request(SESSION_DELETE, {"session_id": session_id})
    with RawClient(early.port) as other:
        other.hello()
        (found,) = other.request(SESSION_LIST, {"trash": True}).json["sessions"]
        assert found["session_id"] == session_id
        assert abs(seconds_from_now(found["deleted_at"])) < SECONDS_MAX
        other.request(SESSION_UPDATE, {"session_id": session_id, "deleted": False})
        assert other.request(PROMPT, {"text": "again", "session_id": session_id}).type == PROMPT


def test_lists_order_conversations_by_one_clock(tmp_path: Path, cluster: Cluster) -> None:
    early = cluster.start("early", clock=clock_of(tmp_path, "early", hours=2))
    right = cluster.start("right")
    _, first = cluster.begin(early)
    client, second = cluster.begin(right)
    rows = client.request(SESSION_LIST).json["sessions"]
    assert [row["session_id"] for row in rows] == [second, first]


def test_two_servers_with_different_clocks_take_turns_as_owners(
    tmp_path: Path, cluster: Cluster
) -> None:
    """The lease of a server that was killed runs out by Redis's clock."""
    clock = clock_of(tmp_path, "one", hours=-5)
    one = cluster.start("one", clock=clock)
    two = cluster.start("two", clock=clock_of(tmp_path, "two", hours=5))
    _, session_id = cluster.begin(one)
    clock.set(timedelta(hours=30))
    there, _ = cluster.attach(two, session_id)
    assert there.ask("relayed")  # one still owns it
    assert cluster_of(two)["counts"]["takeovers"] == 0
    one.kill()
    there, _ = cluster.attach(two, session_id)
    assert there.ask("taken over")
    assert (
        cluster_of(two)["counts"] | {"takeovers": 1, "leases_lost": 0} == cluster_of(two)["counts"]
    )


def cluster_of(server: ServerProcess) -> Any:
    with RawClient(server.port) as client:
        client.hello()
        return client.request(STATUS).json["cluster"]


def wait_for_problem(server: ServerProcess, words: str) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while words not in (found := " ".join(cluster_of(server)["problems"])):
        assert time.monotonic() < deadline, found
        time.sleep(0.1)


def test_status_warns_of_clocks_that_differ_also_if_one_is_set_later(
    tmp_path: Path, cluster: Cluster
) -> None:
    clock = clock_of(tmp_path, "one")
    one, two = cluster.start("one", clock=clock), cluster.start("two")
    assert cluster_of(one)["problems"] == cluster_of(two)["problems"] == []
    clock.set(timedelta(minutes=-5))
    wait_for_problem(one, "the clock of this machine is 300.0 s behind Redis's")
    wait_for_problem(two, "is 300.0 s behind this one's")
    uptimes = [member["uptime"] for member in cluster_of(one)["members"]]
    assert all(0 <= uptime < SECONDS_MAX * 2 for uptime in uptimes)


def test_check_and_doctor_warn_of_a_clock_that_differs(tmp_path: Path, redis: RedisServer) -> None:
    environment = clock_of(tmp_path, "command", hours=1).environment(clean_environment())
    file = tmp_path / "check.yaml"
    settings = redis_settings(redis.url, lease=LEASE_SECONDS, data_dir=str(tmp_path / "data"))
    file.write_text(yaml.safe_dump(settings))
    program = Path(sys.executable).with_name("nplt-server")
    for arguments in (["--config", file, "--check"], ["doctor", redis.url]):
        command = [program, *arguments]
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
        said = ran.stdout + ran.stderr
        assert "the clock of this machine is 3600.0 s ahead of Redis's" in said
