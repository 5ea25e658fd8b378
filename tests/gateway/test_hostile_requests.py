"""Hostile requests to the API: they are refused, and other clients are served meanwhile."""

from __future__ import annotations

import resource
import socket
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256

import pytest
from tests.gateway.http_client import Answer, connect, read_all, request
from tests.support.server_process import ServerProcess

Start = Callable[..., ServerProcess]
BODY = {"model": "offline/echo", "messages": [{"role": "user", "content": "still there"}]}
MIB = 1024 * 1024


@pytest.fixture(scope="module")
def url(shared_server: ServerProcess) -> str:
    return f"{shared_server.http_url}v1/chat/completions"


def is_served(url: str, headers: dict[str, str] | None = None) -> bool:
    answer = request(url, "POST", body=BODY, headers=headers)
    return answer.status == 200 and "still there" in answer.body.decode()


def _headers(answer: Answer) -> set[str]:
    return {name for name in answer.headers if name.startswith("access-control")}


@pytest.mark.parametrize("path", ["v1/models", "v1/chat/completions", "v1/responses"])
@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"host": "evil.example:9998"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "cors"},
    ],
    ids=["origin", "rebound host", "cross-site"],
)
def test_a_foreign_page_reaches_no_endpoint(
    shared_server: ServerProcess, path: str, headers: dict[str, str]
) -> None:
    method = "GET" if path.endswith("models") else "POST"
    body = None if method == "GET" else BODY
    answer = request(f"{shared_server.http_url}{path}", method, body=body, headers=headers)
    assert answer.status == 403
    assert _headers(answer) == set()


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""]
)
def test_a_body_that_a_page_may_send_anywhere_is_refused(url: str, content_type: str) -> None:
    answer = request(url, "POST", body=BODY, headers={"content-type": content_type})
    assert answer.status == 415


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b"[" * 100_000])
def test_a_body_that_is_no_json_object_is_refused(url: str, body: bytes) -> None:
    answer = request(url, "POST", body=body)
    assert (answer.status, answer.error["type"]) == (400, "invalid_request_error")


def test_a_body_of_100_megabytes_is_refused_before_it_is_read(url: str) -> None:
    with connect(url) as sock:
        sock.sendall(_head(f"Content-Length: {100 * MIB}"))
        assert sock.recv(64).startswith(b"HTTP/1.1 413")
    assert is_served(url)


def test_a_chunked_body_is_refused_once_it_is_too_large(url: str) -> None:
    chunk = b"100000\r\n" + b" " * MIB + b"\r\n"
    with connect(url) as sock:
        sock.sendall(_head("Transfer-Encoding: chunked"))
        for _ in range(17):  # limits.http_body_bytes_max is 16 MiB
            sock.sendall(chunk)
        assert sock.recv(64).startswith(b"HTTP/1.1 413")
        with suppress(OSError):  # the rest is not read for long
            while True:
                sock.sendall(chunk)
    assert is_served(url)


def _head(*lines: str) -> bytes:
    head = ["POST /v1/chat/completions HTTP/1.1", "Host: localhost"]
    return "\r\n".join([*head, "Content-Type: application/json", *lines, "", ""]).encode()


@pytest.mark.parametrize(
    "lines",
    [
        ["Content-Length: 2", "Transfer-Encoding: chunked"],
        ["Content-Length: 2", "Content-Length: 3"],
        ["X-Folded: a", " b", "Content-Length: 2"],
        ["Transfer-Encoding: identity, chunked"],
    ],
    ids=["CL with TE", "two CL", "obs-fold", "TE list"],
)
def test_a_request_that_two_parsers_may_read_differently_is_refused(
    url: str, lines: list[str]
) -> None:
    with connect(url) as sock:
        sock.sendall(_head(*lines) + b"{}GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = read_all(sock)
    assert answer.split(b" ")[1] in (b"400", b"501")
    assert answer.count(b"HTTP/1.1") == 1  # what follows is not taken for a request


def test_strange_names_of_conversations_are_names_or_refused(shared_server: ServerProcess) -> None:
    for name in ("%2e%2e%2fetc", "%00", "a%0d%0aX-Evil:%20b", "x" * 3_000, "%ff", "conv_x"):
        answer = request(f"{shared_server.http_url}c/{name}/v1/chat/completions", "POST", body=BODY)
        assert answer.status in (200, 400, 404), (name, answer)
        assert "x-evil" not in answer.headers


def test_one_user_can_not_name_the_responses_of_another(start_server: Start) -> None:
    users = [
        {"name": name, "token_sha256": sha256(name.encode()).hexdigest()} for name in ("ada", "bob")
    ]
    server = start_server(users=users)
    ada, bob = ({"authorization": f"Bearer {name}"} for name in ("ada", "bob"))
    body = {"model": "offline/echo", "input": "a secret"}
    made = request(f"{server.http_url}v1/responses", "POST", body=body, headers=ada).json
    place, conversation = f"{server.http_url}v1/responses/{made['id']}", made["conversation"]["id"]
    assert request(place, headers=ada).status == 200
    for method, path in (
        ("GET", ""),
        ("GET", "?stream=true"),
        ("GET", "/input_items"),
        ("POST", "/cancel"),
        ("DELETE", ""),
    ):
        assert request(f"{place}{path}", method, headers=bob).status == 404
    for path in ("", "/items"):
        theirs = f"{server.http_url}v1/conversations/{conversation}{path}"
        assert request(theirs, headers=bob).status == 404
    for more in ({"conversation": conversation}, {"previous_response_id": made["id"]}):
        answer = request(
            f"{server.http_url}v1/responses", "POST", body={**body, **more}, headers=bob
        )
        assert answer.status == 404
    # The same name is another conversation for each of them.
    ids = {
        request(f"{server.http_url}c/notes/v1/responses", "POST", body=body, headers=who).headers[
            "x-nplt-conversation"
        ]
        for who in (ada, bob)
    }
    assert len(ids) == 2


@pytest.mark.slow
def test_ten_thousand_half_open_requests_leave_the_server_usable(server: ServerProcess) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    url = f"{server.http_url}v1/chat/completions"
    held: list[socket.socket] = []
    try:
        for number in range(10_000):
            sock = connect(url)
            with suppress(OSError):
                sock.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: loc")
            held.append(sock)
            if number % 1_000 == 999:
                assert is_served(url)
        assert is_served(url)
    finally:
        for sock in held:
            sock.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
