"""`nplt-server --workers N`: several servers behind one port, over one Redis."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.raw_client import ATTACH, SESSION_LIST, STATUS, Closed, RawClient
from tests.support.redis_server import RedisServer
from tests.support.server_process import ServerProcess, run_nplt_server

SECONDS_MAX = 60.0


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path / "redis").start()
    yield server
    server.kill()


def settings_of(redis: RedisServer) -> dict[str, object]:
    backend = {"type": "redis", "url": redis.url, "lease": 2.0}
    return {"histories": [{"id": "team", "backend": backend}]}


@pytest.fixture
def server(tmp_path: Path, redis: RedisServer) -> Iterator[ServerProcess]:
    flags = ("--workers", "2")
    server = ServerProcess(tmp_path / "server", *flags, settings=settings_of(redis)).start()
    yield server
    workers = workers_of(server) if server._pid is not None else []
    server.kill()
    wait_until_gone(workers)


def workers_of(server: ServerProcess) -> list[int]:
    return [
        int(pid)
        for pid in Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    ]


def wait_until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline, f"still there: {pids}"
        time.sleep(0.02)


def who_answers(port: int) -> tuple[str, dict[str, dict[str, Any]]]:
    """The id of the worker behind this connection, and all members by id."""
    with RawClient(port) as client:
        client.hello()
        cluster = client.request(STATUS).json["cluster"]
        return cluster["member"], {each["id"]: each for each in cluster["members"]}


def meet_all(port: int, count: int) -> dict[str, dict[str, Any]]:
    """Connects until so many workers have answered; gives the members."""
    deadline, met = time.monotonic() + SECONDS_MAX, set[str]()
    while True:
        try:
            member, members = who_answers(port)
        except (OSError, Closed):
            member, members = "", {}
        met.add(member)
        if len(members) == count and met >= members.keys():
            return members
        assert time.monotonic() < deadline, f"met {met} of {members}"


def test_workers_share_one_port_and_each_has_an_address_of_its_own(server: ServerProcess) -> None:
    members = meet_all(server.port, 2)
    assert {each["pid"] for each in members.values()} == set(workers_of(server))
    addresses = {each["address"] for each in members.values()}
    assert len(addresses) == 2
    for address in addresses:
        host, _, port = address.rpartition(":")
        assert (host, int(port) != server.port) == ("127.0.0.1", True)
        member, _ = who_answers(int(port))
        assert members[member]["address"] == address


@pytest.mark.slow
def test_all_workers_list_the_conversations_of_one(server: ServerProcess) -> None:
    with RawClient(server.port) as client:
        client.hello()
        assert client.ask("hello") == "hello"
    for member in meet_all(server.port, 2).values():
        with RawClient(int(member["address"].rpartition(":")[2])) as client:
            client.hello()
            assert len(client.request(SESSION_LIST).json["sessions"]) == 1


@pytest.mark.slow
def test_a_conversation_of_one_worker_can_be_prompted_through_any(server: ServerProcess) -> None:
    ports = [int(m["address"].rpartition(":")[2]) for m in meet_all(server.port, 2).values()]
    with RawClient(ports[0]) as client, RawClient(ports[1]) as other:
        session_id = client.hello()["session_id"]
        client.ask("hello")
        other.hello()
        assert other.request(ATTACH, {"session_id": session_id}).type == ATTACH
        assert other.ask("from the other") == "from the other"
        assert client.ask("and back") == "and back"


@pytest.mark.slow
def test_a_worker_that_dies_is_restarted_and_logged(server: ServerProcess) -> None:
    meet_all(server.port, 2)
    dead, other = workers_of(server)
    os.kill(dead, signal.SIGKILL)
    deadline = time.monotonic() + SECONDS_MAX
    while f"process {dead}) ended (SIGKILL); starting it again" not in server.log:
        assert time.monotonic() < deadline, server.log
        time.sleep(0.02)
    deadline = time.monotonic() + SECONDS_MAX
    while {each["pid"] for each in meet_all_there_are(server.port)} != set(workers_of(server)):
        assert time.monotonic() < deadline
    assert other in workers_of(server)
    assert dead not in workers_of(server)


def meet_all_there_are(port: int) -> list[dict[str, Any]]:
    try:
        return list(who_answers(port)[1].values())
    except (OSError, Closed):
        return []


@pytest.mark.slow
def test_sigterm_drains_all_workers(server: ServerProcess) -> None:
    workers = workers_of(server)
    assert len(workers) == 2
    with RawClient(server.port) as client:
        client.hello()
        assert client.ask("hello") == "hello"
        assert server.terminate() == 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
    server.start()
    with RawClient(server.port) as client:
        client.hello()
        assert len(client.request(SESSION_LIST).json["sessions"]) == 1


@pytest.mark.slow
def test_workers_stop_when_their_parent_process_is_killed(server: ServerProcess) -> None:
    workers = workers_of(server)
    server.kill()
    wait_until_gone(workers)
    assert "the process that started this worker is gone" in server.log


@pytest.mark.slow
def test_a_port_shared_by_other_workers_counts_as_in_use(
    server: ServerProcess, tmp_path: Path, redis: RedisServer
) -> None:
    other = ServerProcess(
        tmp_path / "other",
        "--workers",
        "2",
        "--port",
        str(server.port),
        settings=settings_of(redis),
    )
    with pytest.raises(AssertionError, match="can't listen"):
        other.start()


@pytest.mark.slow
def test_a_worker_that_fails_to_start_ends_all_workers(tmp_path: Path, redis: RedisServer) -> None:
    settings = settings_of(redis)
    redis.kill()
    server = ServerProcess(tmp_path / "server", "--workers", "2", settings=settings)
    with pytest.raises(AssertionError, match="can't use the history team"):
        server.start()


@pytest.mark.parametrize("flags", [(), ("--check",)])
@pytest.mark.parametrize("kind", ["json", "memory"])
def test_workers_without_redis_exit_with_code_2_and_a_sentence(
    tmp_path: Path, flags: tuple[str, ...], kind: str
) -> None:
    config = tmp_path / "server.yaml"
    config.write_text(f"histories: [{{id: main, backend: {{type: {kind}}}}}]\n")
    ended = run_nplt_server("--config", str(config), "--workers", "2", *flags)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith(
        "nplt-server: --workers needs conversations in a Redis that all workers share, "
        "and history 'main' is not"
    )
    assert ended.stderr.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ("cluster: {advertise: 'a.example:9999'}", "needs cluster.secret_file"),
        ("listen: {tls: {cert: c.pem, key: k.pem}}", "needs cluster.advertise"),
    ],
)
def test_workers_with_missing_cluster_settings_exit_with_code_2_and_a_sentence(
    tmp_path: Path, redis: RedisServer, more: str, sentence: str
) -> None:
    config = tmp_path / "server.yaml"
    histories = f"histories: [{{id: main, backend: {{type: redis, url: '{redis.url}'}}}}]"
    config.write_text(f"{histories}\n{more}\n")
    ended = run_nplt_server("--config", str(config), "--workers", "2")
    assert ended.returncode == 2
    assert sentence in ended.stderr


@pytest.mark.slow
def test_check_accepts_the_workers_option(tmp_path: Path, redis: RedisServer) -> None:
    config = tmp_path / "server.yaml"
    config.write_text(f"histories: [{{id: main, backend: {{type: redis, url: '{redis.url}'}}}}]\n")
    ended = run_nplt_server("--config", str(config), "--workers", "2", "--check")
    assert (ended.returncode, ended.stdout) == (0, "the settings are fine\n"), ended.stderr
