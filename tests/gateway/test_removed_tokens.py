"""A token that is removed from the settings ends what came by HTTP with it."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress

import anyio
import pytest
from tests.end_to_end.test_reload import reload
from tests.gateway.http_client import connect, read_all, request
from tests.gateway.test_login import ADA, BOB, USERS, cookie_of, log_in, new_code, who_is
from tests.gateway.test_websocket import open_websocket
from tests.support.raw_client import HELLO, encode
from tests.support.server_process import ServerProcess
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from nplt_gateway.logins import Logins

Start = Callable[..., ServerProcess]

SLOW = {"role": "user", "content": "!slow 60 " + "word " * 100}


def begin(
    server: ServerProcess, body: Mapping[str, object], *, is_whole: bool = True
) -> socket.socket:
    """Sends a request of Ada's, without the end of its body if it is not whole."""
    data = json.dumps(body).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Authorization: Bearer {ADA}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\nExpect: 100-continue\r\n\r\n"
    )
    sock = connect(server.http_url)
    sock.sendall(head.encode())
    assert b"100 Continue" in sock.recv(65_536)  # the token was accepted
    sock.sendall(data if is_whole else data[:-1])
    return sock


def status_of(server: ServerProcess, token: str) -> int:
    headers = {"authorization": f"Bearer {token}"}
    return request(f"{server.http_url}v1/models", headers=headers).status


def until_closed(websocket: ClientConnection) -> bytes:
    received = b""
    with suppress(ConnectionClosed):
        while b'"unauthorized"' not in received:
            message = websocket.recv(timeout=60)
            assert isinstance(message, bytes)
            received += message
    return received


@pytest.mark.parametrize("stored", [True, False])
def test_a_stream_ends(start_server: Start, stored: bool) -> None:
    server = start_server(users=USERS)
    body = {"model": "offline/echo", "stream": True, "messages": [SLOW], "store": stored}
    with begin(server, body) as stream:
        assert b" 200 " in stream.recv(65_536)
        reload(server, users=USERS[1:])
        rest = b""
        with suppress(ConnectionResetError):
            rest = read_all(stream)
        assert b"[DONE]" not in rest
    assert (status_of(server, ADA), status_of(server, BOB)) == (401, 200)


def test_a_request_whose_body_is_still_sent_is_not_answered(start_server: Start) -> None:
    server = start_server(users=USERS)
    with begin(server, {"messages": [SLOW]}, is_whole=False) as sock:
        reload(server, users=USERS[1:])
        with suppress(ConnectionError):
            sock.sendall(b"}")
            assert read_all(sock) == b""


def test_a_login_its_websockets_and_its_codes_end(start_server: Start) -> None:
    server = start_server(users=USERS)
    code, cookie = new_code(server, ADA), cookie_of(log_in(server, token=ADA))
    hello = encode(HELLO, 1)
    with (
        open_websocket(server, additional_headers=cookie) as websocket,
        open_websocket(server, additional_headers=cookie) as silent,
    ):
        websocket.send(hello)
        websocket.recv(timeout=60)
        reload(server, users=USERS[1:])
        assert b'"unauthorized"' in until_closed(websocket)
        silent.send(hello)
        assert b'"unauthorized"' in until_closed(silent)
    assert who_is(server, cookie) is None
    assert log_in(server, code=code).status == 401


class _Users:
    def __init__(self) -> None:
        self.marks: dict[str, str] = {"ada": "1"}

    def token_mark(self, user: str) -> str | None:
        return self.marks.get(user)


@pytest.mark.parametrize("later", [{}, {"ada": "2"}])
async def test_a_login_that_begins_while_the_token_is_removed_is_never_valid(
    tmp_path: anyio.Path, later: dict[str, str]
) -> None:
    users = _Users()
    logins = Logins(tmp_path / "logins.sqlite", users)  # type: ignore[arg-type]
    secrets: list[str] = []

    async def begin_login() -> None:
        secrets.append(await logins.begin("ada", "a browser"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(begin_login)
        await anyio.lowlevel.checkpoint()  # its thread works
        users.marks = later
    assert await logins.find(secrets[0]) is None
