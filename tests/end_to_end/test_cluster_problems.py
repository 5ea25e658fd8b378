"""Servers and a Redis that are set up wrongly: what `--check`, STATUS and clients are told."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.raw_client import PROMPT, STATUS, RawClient
from tests.support.redis_server import RedisServer
from tests.support.server_cluster import Cluster, redis_settings
from tests.support.server_process import ServerProcess, run_nplt_server

LEASE_SECONDS = 3.0
SECONDS_MAX = 60


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path / "redis", appendfsync="always").start()
    yield server
    server.kill()


Start = Callable[..., ServerProcess]


@pytest.fixture
def start(tmp_path: Path, redis: RedisServer) -> Iterator[Start]:
    cluster, names = Cluster(tmp_path, redis, lease=LEASE_SECONDS), count(1)

    def start_one(**options: Any) -> ServerProcess:
        return cluster.start(f"server{next(names)}", **options)

    yield start_one
    cluster.end()


def check(tmp_path: Path, url: str) -> subprocess.CompletedProcess[str]:
    file = tmp_path / "check.yaml"
    settings = redis_settings(url, lease=LEASE_SECONDS, data_dir=str(tmp_path / "data"))
    file.write_text(yaml.safe_dump(settings))
    return run_nplt_server("--config", file, "--check")


def cluster_of(server: ServerProcess) -> Any:
    with RawClient(server.port) as client:
        client.hello()
        return client.request(STATUS).json["cluster"]


def wait_for_problem(server: ServerProcess, words: str) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while words not in (found := " ".join(cluster_of(server)["problems"])):
        assert time.monotonic() < deadline, found
        time.sleep(0.1)


def test_check_refuses_a_redis_that_may_evict_conversations(
    tmp_path: Path, redis: RedisServer
) -> None:
    assert check(tmp_path, redis.url).stderr == ""
    redis.call("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    checked = check(tmp_path, redis.url)
    assert checked.returncode == 1
    assert "this Redis may evict conversations (maxmemory-policy allkeys-lru)" in checked.stderr
    assert "fine" not in checked.stdout


def test_check_warns_of_a_redis_that_keeps_nothing_or_is_away(
    tmp_path: Path, redis: RedisServer
) -> None:
    redis.call("CONFIG", "SET", "appendonly", "no")
    checked = check(tmp_path, redis.url)
    assert (checked.returncode, checked.stdout) == (0, "the settings are fine\n")
    assert checked.stderr.count("this Redis keeps nothing when it stops") == 1
    assert "warning: history team: this Redis keeps nothing when it stops" in checked.stderr
    redis.kill()
    checked = check(tmp_path, redis.url)
    assert checked.returncode == 0
    assert "warning: can't use the history team: Redis can't be reached" in checked.stderr


def test_a_second_server_with_the_same_address_does_not_start(start: Start) -> None:
    first = start()
    with pytest.raises(AssertionError, match="has the address"):
        start(advertise=f"127.0.0.1:{first.port}")
    assert cluster_of(first)["problems"] == []


@pytest.mark.slow
def test_an_address_that_leads_back_to_the_asking_server_is_reported_and_prompts_go_on(
    start: Start,
) -> None:
    edge = start()
    owner = start(advertise=f"localhost:{edge.port}")
    with RawClient(owner.port) as client:
        session_id = client.hello()["session_id"]
        assert client.ask("hello")
        with RawClient(edge.port) as other:
            other.hello()
            prompt = {"text": "from the edge", "session_id": session_id}
            receipt = other.request(PROMPT, prompt)
            assert receipt.type == PROMPT, receipt.json
    wait_for_problem(edge, "leads to this server itself")


def test_a_server_with_another_secret_is_reported_by_both(start: Start) -> None:
    one = start()
    two = start(secret="the secret of another cluster")
    for server in (one, two):
        wait_for_problem(server, "has another cluster secret")


def test_status_counts_takeovers_and_names_the_version_of_members(start: Start) -> None:
    one, two = start(), start()
    with RawClient(one.port) as client:
        session_id = client.hello()["session_id"]
        assert client.ask("hello")
        one.kill()
    with RawClient(two.port) as client:
        client.hello()
        receipt = client.request(PROMPT, {"text": "again", "session_id": session_id})
        assert receipt.type == PROMPT, receipt.json
    cluster = cluster_of(two)
    assert cluster["counts"]["takeovers"] == 1
    assert cluster["counts"]["leases_lost"] == 0
    assert all(member["version"] for member in cluster["members"])


def test_status_is_sent_while_redis_does_not_answer(start: Start, redis: RedisServer) -> None:
    server = start()
    with RawClient(server.port) as client:
        client.hello()
        assert client.ask("hello")
        redis.freeze()
        try:
            for _ in range(3):
                began = time.monotonic()
                status = client.request(STATUS).json
                assert time.monotonic() - began < 5, "it waited for Redis"
                assert status["cluster"]["members"]
        finally:
            redis.thaw()
