"""Requests that must be refused: of foreign web pages, ambiguous, too slow, too large."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.gateway.http_client import connect, exchange, read_all, request
from tests.support.certificates import make_certificate
from tests.support.server_process import ServerProcess

Start = Callable[..., ServerProcess]


@pytest.fixture(scope="module")
def url(shared_server: ServerProcess) -> str:
    return shared_server.http_url


def test_a_path_without_a_route_is_not_found(url: str) -> None:
    answer = request(f"{url}v1/embeddings-of-another-kind")
    assert answer.status == 404
    assert answer.error["code"] == "not_found"
    assert "date" in answer.headers


def test_a_host_name_that_is_not_this_servers_is_refused(url: str) -> None:
    """A name that someone else has let point to this machine: DNS rebinding."""
    answer = request(url, headers={"host": "evil.example"})
    assert (answer.status, answer.error["code"]) == (403, "forbidden_host")
    for name in ("localhost", "127.0.0.1:1", "[::1]:9998", "192.0.2.1"):
        assert request(f"{url}nowhere", headers={"host": name}).status == 404


def test_a_page_of_another_origin_is_refused_and_gets_no_cors_headers(url: str) -> None:
    for origin in ("http://evil.example", "null", "http://localhost:1"):
        answer = request(url, headers={"origin": origin})
        assert (answer.status, answer.error["code"]) == (403, "forbidden_origin")
        assert not any(name.startswith("access-control") for name in answer.headers)
    assert request(f"{url}nowhere", headers={"origin": url.rstrip("/")}).status == 404


def test_a_request_that_a_browser_calls_cross_site_is_refused(url: str) -> None:
    headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}
    assert request(f"{url}nowhere", headers=headers).status == 403
    headers["sec-fetch-mode"] = "navigate"
    assert request(f"{url}nowhere", headers=headers).status == 404


def test_origins_and_hosts_of_the_settings_may_call(start_server: Start) -> None:
    server = start_server(listen={"origins": ["https://app.example"], "hosts": ["chat.example"]})
    headers = {"origin": "https://app.example", "host": "chat.example:9998"}
    answer = request(f"{server.http_url}nowhere", headers=headers)
    assert answer.status == 404
    preflight = request(server.http_url, "OPTIONS", headers=headers)
    assert preflight.status == 204
    assert preflight.headers["access-control-allow-origin"] == "https://app.example"


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n",
        b"Content-Length: 2\r\nContent-Length: 3\r\n",
        b"X-Folded: one\r\n two\r\n",
        b"X-Long: " + b"x" * 40_000 + b"\r\n",
        b"Transfer-Encoding: gzip\r\n",
    ],
    ids=["two lengths", "different lengths", "obs-fold", "long head", "unknown coding"],
)
def test_an_ambiguous_or_overlong_head_is_refused_and_the_connection_closed(
    url: str, head: bytes
) -> None:
    answer = exchange(url, b"POST /v1/models HTTP/1.1\r\nHost: localhost\r\n" + head + b"\r\n")
    assert answer.split(b" ")[1] in (b"400", b"501")


def test_many_headers_are_refused(url: str) -> None:
    flood = b"".join(b"X-%d: %d\r\n" % (number, number) for number in range(4_000))
    answer = exchange(url, b"GET / HTTP/1.1\r\nHost: localhost\r\n" + flood + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 400")


@pytest.mark.slow
def test_an_unfinished_head_is_dropped_after_its_deadline(url: str) -> None:
    with connect(url) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nHost: loc")
        sock.settimeout(20)
        assert read_all(sock) == b""


def test_a_server_is_served_over_tls_with_the_same_certificate(
    start_server: Start, tmp_path: Path
) -> None:
    certificate = make_certificate(tmp_path)
    server = start_server(listen={"tls": certificate})
    assert server.http_url.startswith("https://127.0.0.1:")
    context = ssl.create_default_context(cafile=certificate["cert"])
    port = int(server.http_url.rstrip("/").rpartition(":")[2])
    client = http.client.HTTPSConnection("localhost", port, context=context, timeout=30)
    client.request("GET", "/nowhere")
    assert client.getresponse().status == 404
    client.close()
