"""A closed loop of echoes: many connections, each with so many requests in flight.

Every connection sends its batch in one write, waits until all of it came back,
and sends again; so a server sees the same reads however fast it is. The
generator counts bytes and looks at no reply but the first, for it must not be
what is measured.
"""

from __future__ import annotations

import os
import select
import socket
import ssl
import time
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.wire import PING, PONG, SECONDS_MAX, Caller, encode

PAYLOAD = bytes(range(64))
_MASK = b"\x00\x00\x00\x00"


@dataclass(frozen=True, slots=True, kw_only=True)
class Talk:
    """How one echo is spoken: connecting, the request, its reply."""

    connect: Callable[[int], socket.socket]
    request: bytes
    reply: bytes


def _connect_bare(port: int) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), timeout=SECONDS_MAX)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def _connect_websocket(port: int) -> socket.socket:
    sock = _connect_bare(port)
    key = b64encode(os.urandom(16)).decode()
    lines = [
        "GET / HTTP/1.1",
        f"Host: 127.0.0.1:{port}",
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Key: {key}",
        "Sec-WebSocket-Version: 13",
    ]
    sock.sendall("\r\n".join([*lines, "", ""]).encode())
    answer = b""
    while not answer.endswith(b"\r\n\r\n"):
        answer += sock.recv(1)
    return sock


def tls_talk(trusted: str) -> Talk:
    context = ssl.create_default_context(cafile=trusted)

    def connect(port: int) -> socket.socket:
        return Caller(
            port, context.wrap_socket(_connect_bare(port), server_hostname="localhost")
        ).sock

    return Talk(connect=connect, request=STRUCTURED.request, reply=STRUCTURED.reply)


STRUCTURED = Talk(
    connect=lambda port: Caller(port).sock,
    request=encode(PING, 7, PAYLOAD),
    reply=encode(PONG, 7, PAYLOAD),
)
BARE = Talk(connect=_connect_bare, request=STRUCTURED.request, reply=STRUCTURED.reply)
WEBSOCKET = Talk(
    connect=_connect_websocket,
    request=bytes([0x82, 0x80 | len(PAYLOAD)]) + _MASK + PAYLOAD,
    reply=bytes([0x82, len(PAYLOAD)]) + PAYLOAD,
)


class EchoLoad:
    """Connections that stay open from one run to the next."""

    def __init__(self, talk: Talk, port: int, *, connections: int, in_flight: int) -> None:
        self._batch = talk.request * in_flight
        self._due_bytes = len(talk.reply) * in_flight
        self._in_flight = in_flight
        self._sockets = {sock.fileno(): sock for sock in _opened(talk, port, connections)}

    def close(self) -> None:
        for sock in self._sockets.values():
            sock.close()

    def run(self, seconds: float) -> int:
        """Gives how many echoes there were. Nothing is in flight afterwards."""
        waiting = select.epoll()
        missing = dict.fromkeys(self._sockets, self._due_bytes)
        for number, sock in self._sockets.items():
            waiting.register(number, select.EPOLLIN)
            sock.sendall(self._batch)
        buffer, batches, busy = bytearray(1 << 16), 0, len(missing)
        end = time.perf_counter() + seconds
        while busy:
            ready = waiting.poll(SECONDS_MAX)
            if not ready:
                raise TimeoutError("an echo did not come back")
            go_on = time.perf_counter() < end
            for number, _ in ready:
                left = missing[number] - _received(self._sockets[number], buffer)
                if left:
                    missing[number] = left
                    continue
                batches += 1
                missing[number] = self._due_bytes
                if go_on:
                    self._sockets[number].send(self._batch)
                else:
                    busy -= 1
        waiting.close()
        return batches * self._in_flight


def _opened(talk: Talk, port: int, connections: int) -> list[socket.socket]:
    """Connected and tried once: the first reply is compared byte by byte."""
    opened = [talk.connect(port) for _ in range(connections)]
    for sock in opened:
        sock.sendall(talk.request)
        reply = b""
        while len(reply) < len(talk.reply):
            reply += sock.recv(len(talk.reply) - len(reply))
        if reply != talk.reply:
            raise ValueError(f"not an echo: {reply!r}")
        sock.setblocking(False)
    return opened


def _received(sock: socket.socket, buffer: bytearray) -> int:
    try:
        count = sock.recv_into(buffer)
    except (BlockingIOError, ssl.SSLWantReadError):
        return 0
    if not count:
        raise ConnectionError("the server closed a connection")
    return count
