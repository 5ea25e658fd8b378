"""Prompts for later run once each, not before their times, whatever happens to the server."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.end_to_end.test_prompts_for_later import later, texts, welcomed
from tests.support.raw_client import SESSION_LIST, SESSION_NEW
from tests.support.redis_server import RedisServer
from tests.support.server_cluster import Cluster
from tests.support.server_process import ServerProcess

CONVERSATIONS = 20
PROMPTS = 10
SECONDS_MAX = 30.0


@pytest.fixture
def cluster(tmp_path: Path, redis: RedisServer) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path, redis)
    yield cluster
    cluster.end()


def entries_of(server: ServerProcess) -> list[dict[str, Any]]:
    files = (server.data_dir / "history").glob("session_*.json")
    return [entry for path in files for entry in json.loads(path.read_text())["messages"]]


@pytest.mark.slow
def test_prompts_for_later_run_once_and_not_early_while_the_server_is_killed(
    start_server: Callable[..., ServerProcess],
) -> None:
    server, chance = start_server(), random.Random(27)
    due: dict[str, datetime] = {}
    with welcomed(server) as client:
        for conversation in range(CONVERSATIONS):
            client.request(SESSION_NEW, {})
            for number in range(PROMPTS):
                text = f"{conversation}.{number}"
                receipt = later(client, text, chance.uniform(4.0, 16.0))
                due[text] = datetime.fromisoformat(receipt["due_at"])
    recovered_at = datetime.now(UTC)
    while datetime.now(UTC) < max(due.values()):
        time.sleep(chance.uniform(0.5, 3.0))
        server.kill()
        if chance.random() < 0.5:
            for path in server.data_dir.glob("catalog.sqlite*"):
                path.unlink()
        server.start()
        recovered_at = datetime.now(UTC)
    stop_at = time.monotonic() + SECONDS_MAX
    with welcomed(server) as client:
        while any("later" in row for row in client.request(SESSION_LIST).json["sessions"]):
            assert time.monotonic() < stop_at, "not all prompts were run"
            time.sleep(0.2)
    assert server.terminate() == 0
    run = [entry for entry in entries_of(server) if entry["kind"] == "model_input"]
    assert Counter(entry["content"] for entry in run) == Counter(due.keys())
    for entry in run:
        at, wanted = datetime.fromisoformat(entry["timestamp"]), due[entry["content"]]
        assert at >= wanted
        assert (at - max(wanted, min(at, recovered_at))).total_seconds() < SECONDS_MAX


def test_another_server_runs_the_prompts_for_later_of_one_that_died(cluster: Cluster) -> None:
    one, two = cluster.start("one"), cluster.start("two")
    client = cluster.connect(one)
    client.hello()
    session_id = later(client, "wake up", 2.0)["session_id"]
    one.kill()
    reader = cluster.connect(two)
    reader.hello()
    stop_at = time.monotonic() + 2 * SECONDS_MAX
    while True:
        rows = reader.request(SESSION_LIST).json["sessions"]
        row = next(row for row in rows if row["session_id"] == session_id)
        if row["message_count"] == 2:
            break
        assert time.monotonic() < stop_at, row
        time.sleep(0.2)
    assert texts(reader, session_id) == ["wake up"]
