"""`/metrics`, `/livez` and `/readyz` of a real server, read with Prometheus' own parser."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.conftest import Connect
from tests.gateway.http_client import connect as connect_http
from tests.gateway.http_client import request
from tests.support.raw_client import STATUS
from tests.support.server_process import ServerProcess, run_nplt_server

Start = Callable[..., ServerProcess]
ECHO = "offline/echo"


def samples(url: str, **headers: str) -> dict[tuple[str, tuple[str, ...]], float]:
    """The samples by name and by the values of their labels, in the order of the labels' names."""
    answer = request(f"{url}metrics", headers=headers)
    assert answer.status == 200, answer.body
    assert answer.headers["content-type"].startswith("text/plain")
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(answer.body.decode())
        for sample in family.samples
    }


def test_metrics_count_what_clients_saw(start_server: Start, connect: Connect) -> None:
    server = start_server()
    client = connect(server)
    client.hello()
    for number in range(3):
        assert client.ask(f"hello {number}") == f"hello {number}"
    client.ask("!fail")
    client.ask("!tool now {}")
    found = samples(server.http_url)
    assert found["nplt_turns_started_total", ()] == 5
    assert found["nplt_turns_finished_total", (ECHO, "completed")] == 4
    assert found["nplt_turns_finished_total", (ECHO, "failed")] == 1
    assert found["nplt_turn_seconds_count", ()] == 5
    assert found["nplt_model_calls_total", (ECHO,)] >= 6
    assert found["nplt_call_seconds_count", (ECHO,)] == 5
    assert found["nplt_tokens_total", ("output", ECHO)] > 0
    assert found["nplt_connections", ("nplt",)] == 1
    assert found["nplt_tool_calls_total", ("", "success")] == 1
    assert found["nplt_commit_seconds_count", ("main",)] >= 10
    assert found["nplt_commit_failures_total", ("main",)] == 0
    assert found["nplt_store_writable", ("main",)] == 1
    assert found["nplt_disk_free_bytes", ()] > 0
    turns = client.request(STATUS).json["turns"]
    assert turns["finished"] == {"completed": 4, "failed": 1}


def test_buckets_of_a_histogram_are_cumulative_and_end_with_the_count(
    start_server: Start, connect: Connect
) -> None:
    server = start_server()
    client = connect(server)
    client.hello()
    client.ask("one")
    client.ask("two")
    found = samples(server.http_url)
    buckets = [value for (name, _), value in found.items() if name == "nplt_turn_seconds_bucket"]
    assert buckets == sorted(buckets)
    assert buckets[-1] == found["nplt_turn_seconds_count", ()] == 2


def test_no_label_names_a_user_or_a_conversation(start_server: Start, connect: Connect) -> None:
    token = "canary-token"
    ada = {"name": "ada-canary", "token_sha256": hashlib.sha256(token.encode()).hexdigest()}
    server = start_server(users=[{**ada, "operator": True}])
    client = connect(server)
    session_id = client.hello({"token": token})["session_id"]
    client.ask("hello")
    text = request(f"{server.http_url}metrics", headers={"authorization": f"Bearer {token}"}).body
    assert b"nplt_turns_finished_total" in text
    assert b"ada-canary" not in text
    assert session_id.encode() not in text


def test_metrics_need_a_token_of_an_operator_where_users_are_set(start_server: Start) -> None:
    def user(name: str, **more: object) -> dict[str, object]:
        return {"name": name, "token_sha256": hashlib.sha256(name.encode()).hexdigest(), **more}

    url = start_server(users=[user("ada", operator=True), user("bob")]).http_url
    assert request(f"{url}metrics").status == 401
    assert request(f"{url}metrics", headers={"authorization": "Bearer bob"}).status == 403
    assert samples(url, authorization="Bearer ada")
    for path in ("livez", "readyz"):  # a load balancer has no token
        assert request(f"{url}{path}").status == 200


def test_a_scraper_that_never_reads_delays_nobody(start_server: Start, connect: Connect) -> None:
    server = start_server()
    head = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
    stalled = [connect_http(server.http_url) for _ in range(20)]
    for sock in stalled:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1_024)
        sock.sendall(head * 50)
    client = connect(server)
    client.hello()
    assert client.ask("still here") == "still here"
    assert samples(server.http_url)["nplt_turns_finished_total", (ECHO, "completed")] == 1
    for sock in stalled:
        sock.close()


def test_a_server_is_ready_while_its_histories_can_be_written(start_server: Start) -> None:
    server = start_server()
    assert request(f"{server.http_url}livez").body == b"ok\n"
    ready = request(f"{server.http_url}readyz")
    assert (ready.status, ready.json["ready"]) == (200, True)
    assert ready.json["checks"] == {"accepting": "ok", "history main": "ok"}


def test_a_server_whose_data_directory_is_gone_is_alive_and_not_ready(
    start_server: Start,
) -> None:
    server = start_server()
    (server.data_dir / "history").rename(server.data_dir / "moved")
    assert request(f"{server.http_url}livez").status == 200
    ready = request(f"{server.http_url}readyz")
    assert (ready.status, ready.json["ready"]) == (503, False)
    assert "data directory is gone" in ready.json["checks"]["history main"]
    assert samples(server.http_url)["nplt_store_writable", ("main",)] == 0


def test_metrics_can_have_an_address_of_their_own(start_server: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = start_server(metrics={"listen": f"127.0.0.1:{port}"})
    apart = f"http://127.0.0.1:{port}/"
    assert samples(apart)["nplt_turns_started_total", ()] == 0
    assert request(f"{apart}readyz").status == 200
    assert request(f"{apart}v1/models").status == 404
    assert request(f"{server.http_url}metrics").status == 404
    assert request(f"{server.http_url}v1/models").status == 200


@pytest.mark.parametrize("address", ["0.0.0.0:9100", "192.0.2.1:9100"])
def test_metrics_beyond_this_machine_need_tokens_and_tls(address: str, tmp_path: Path) -> None:
    config = tmp_path / "server.yaml"
    config.write_text(f"metrics: {{listen: '{address}'}}\n")
    ended = run_nplt_server("--config", config, "--check")
    assert ended.returncode == 78
    assert "metrics.listen" in ended.stderr
