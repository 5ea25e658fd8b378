"""`/ws`: the protocol's frames in WebSocket messages."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.support.raw_client import (
    CHAT_TEXT,
    PING,
    PONG,
    TURN_FINISHED,
    RawClient,
    encode,
)
from tests.support.server_process import ServerProcess
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

Start = Callable[..., ServerProcess]

TOKEN = {"token": "any: this server has no users"}


class _SocketOfMessages:
    """Lets a raw client send and receive through a WebSocket."""

    def __init__(self, websocket: ClientConnection) -> None:
        self._websocket = websocket

    def sendall(self, data: bytes) -> None:
        self._websocket.send(data)

    def recv(self, size: int) -> bytes:
        try:
            message = self._websocket.recv(timeout=30)
        except ConnectionClosed:
            return b""
        assert isinstance(message, bytes)
        return message


@contextmanager
def connected(server: ServerProcess, **options: Any) -> Iterator[RawClient]:
    with open_websocket(server, **options) as websocket, RawClient(server.port) as client:
        own: Any = _SocketOfMessages(websocket)
        client.sock.close()
        client.sock = own
        yield client
        client.sock = socket.socket()


def open_websocket(server: ServerProcess, **options: Any) -> ClientConnection:
    url = server.http_url.replace("http", "ws", 1)
    given: dict[str, Any] = {"origin": server.http_url.rstrip("/"), "compression": None}
    opened: ClientConnection = connect(f"{url}ws", **given | options)
    return opened


def test_a_prompt_over_a_websocket_is_answered(shared_server: ServerProcess) -> None:
    with connected(shared_server) as client:
        assert client.hello(TOKEN)["version"] == 3
        assert client.ask("over a websocket") == "over a websocket"


def test_a_websocket_with_neither_token_nor_login_is_refused(shared_server: ServerProcess) -> None:
    with connected(shared_server) as client:
        assert client.hello()["code"] == "unauthorized"


def test_a_long_message_in_fragments_arrives_whole(shared_server: ServerProcess) -> None:
    text = "long " * 60_000
    with connected(shared_server) as client:
        client.hello(TOKEN)
        assert client.ask(text).strip() == text.strip()


def test_several_frames_in_one_message_are_all_received(shared_server: ServerProcess) -> None:
    with connected(shared_server) as client:
        client.hello(TOKEN)
        client.sock.sendall(encode(PING, 5, b"a") + encode(PING, 6, b"b"))
        assert [client.receive()[:2] for _ in range(2)] == [(PONG, 5), (PONG, 6)]


@pytest.mark.parametrize("origin", [None, "http://evil.example", "null"])
def test_a_websocket_of_another_origin_is_refused(
    shared_server: ServerProcess, origin: str | None
) -> None:
    with pytest.raises(InvalidStatus) as refused:
        open_websocket(shared_server, origin=origin)
    assert refused.value.response.status_code == 403


def test_messages_are_not_compressed(shared_server: ServerProcess) -> None:
    with open_websocket(shared_server, compression="deflate") as websocket:
        assert websocket.protocol.extensions == []


@pytest.mark.parametrize("first", ["text", encode(CHAT_TEXT, 1, "plain"), b""])
def test_a_first_message_that_is_no_hello_closes_the_websocket(
    shared_server: ServerProcess, first: str | bytes
) -> None:
    with open_websocket(shared_server) as websocket:
        websocket.send(first)
        with pytest.raises(ConnectionClosed):
            websocket.recv(timeout=30)
        assert websocket.close_code == 1003


def test_a_shutdown_says_so_and_closes_the_websocket(server: ServerProcess) -> None:
    with connected(server) as client:
        client.hello(TOKEN)
        assert server.terminate() == 0
        words = b"".join(frame.payload for frame in client.until_closed())
        assert b"shutting_down" in words


def test_a_running_turn_survives_its_websocket(server: ServerProcess) -> None:
    with connected(server) as client:
        session_id = client.hello(TOKEN)["session_id"]
        client.request(0x07, {"text": "!slow 0.5 all of it"})
    with connected(server) as client:
        client.hello({**TOKEN, "session_id": session_id})
        client.request(0x08, {"session_id": session_id, "after_seq": 0})
        assert client.event(TURN_FINISHED).json["state"] == "completed"
