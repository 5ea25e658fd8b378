"""`/ws`: the frames of the protocol in WebSocket messages.

A binary message holds one or more whole frames, in both directions. The dialect is the structured
one: the first frame is HELLO. The session is an ordinary one, with the same limits as on TCP;
browsers name themselves in `Origin`, and only pages of this server may connect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import anyio
from starlette.types import Message
from starlette.websockets import WebSocket

from nplt_gateway.access import Access
from nplt_gateway.http_connection import HttpConnection
from nplt_gateway.logins import Login
from nplt_protocol import MessageType, Received, ServerConnection
from nplt_protocol.messages import Door
from nplt_protocol.stream import FrameStream
from nplt_server.app import Server
from nplt_server.connections.session import Session
from nplt_server.requests import HANDLERS

_HIGH_BYTES: Final = 64 * 1024
_UNSUPPORTED: Final = 1003
_GOING_AWAY: Final = 1001


@dataclass(slots=True, eq=False, repr=False)
class WebSocketSession(Session):
    """The session of a WebSocket. Pages are logged in by a cookie, and programs by a token; a
    server without users accepts any token, but not a page without a login."""

    door: Door = "web"
    login: Login | None = None

    def authenticate(self, token: str | None) -> str | None:
        if token is None:
            login = self.login
            if login is None or self.server.admission.token_mark(login.user) != login.token_mark:
                return None
            return login.user
        return Session.authenticate(self, token)


async def serve(websocket: WebSocket) -> None:
    access: Access = websocket.scope["app"].access
    server: Server = websocket.scope["app"].server
    connection: HttpConnection = websocket.scope["state"]["connection"]
    await websocket.accept()
    first = await _first_message(websocket, server.services.limits.hello_seconds_max)
    if first is None:
        return
    login = await access.find_login(websocket)
    wire = ServerConnection(server.wire_limits)
    wire.count_fragments_in(server.admission.unfinished)
    stream: FrameStream[Received] = FrameStream(wire, limits=server.wire_limits)
    transport = _WebSocketTransport(stream, websocket.send, connection)
    stream.connection_made(transport)
    session = WebSocketSession(stream, wire, server, HANDLERS, login=login)
    connection.session = session
    server.sessions.add(session)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(transport.run_writer)
            tasks.start_soon(_receive, websocket, stream, transport, first)
            await session.run()
            await transport.finished()
            tasks.cancel_scope.cancel()
    finally:
        server.sessions.discard(session)
        stream.abort()


async def _first_message(websocket: WebSocket, seconds_max: float) -> bytes | None:
    """Returns the message that begins with HELLO, or `None` if the connection is closed instead."""
    first: Message = {}
    with anyio.move_on_after(seconds_max):
        first = await websocket.receive()
    data: bytes = first.get("bytes") or b""
    if data[:1] == bytes([MessageType.HELLO]):
        return data
    if first.get("type") != "websocket.disconnect":
        await websocket.close(_UNSUPPORTED, "the first frame is HELLO, in a binary message")
    return None


async def _receive(
    websocket: WebSocket,
    stream: FrameStream[Received],
    transport: _WebSocketTransport,
    data: bytes,
) -> None:
    while True:
        stream.data_received(data)
        await transport.may_read.wait()
        message = await websocket.receive()
        if message["type"] == "websocket.disconnect":
            transport.is_open = False
            stream.connection_lost(None)
            return
        if message.get("bytes") is None:
            transport.close_with(_UNSUPPORTED, "frames come in binary messages")
            return
        data = message["bytes"]


class _WebSocketTransport(asyncio.Transport):
    """Lets a stream of frames write to a WebSocket. What the peer has not taken waits here; above a
    limit the stream is paused, and it drops a peer that takes nothing for too long."""

    def __init__(
        self,
        stream: FrameStream[Received],
        send: Callable[[Message], Awaitable[None]],
        connection: HttpConnection,
    ) -> None:
        super().__init__(extra={"peername": (connection.client_address, 0)})
        self._stream = stream
        self._send = send
        self._connection = connection
        self._waiting: list[bytes] = []
        self._bytes = 0
        self._is_blocked = False
        self._closing: tuple[int, str] | None = None
        self._changed = asyncio.Event()
        self._done = asyncio.Event()
        self.is_open = True
        self.may_read = asyncio.Event()
        self.may_read.set()

    async def run_writer(self) -> None:
        """Sends what is written, until the connection closes."""
        try:
            while self.is_open:
                await self._changed.wait()
                self._changed.clear()
                while self._waiting and self.is_open:
                    data, self._waiting = b"".join(self._waiting), []
                    await self._send({"type": "websocket.send", "bytes": data})
                    self._bytes -= len(data)
                    if self._is_blocked and self._bytes < _HIGH_BYTES // 4:
                        self._is_blocked = False
                        self._stream.resume_writing()
                if self._closing is not None and self.is_open:
                    code, reason = self._closing
                    self.is_open = False
                    await self._send({"type": "websocket.close", "code": code, "reason": reason})
        finally:
            self.is_open = False
            self._done.set()
            self._stream.connection_lost(None)

    async def finished(self) -> None:
        if self.is_open:
            self.close()
        await self._done.wait()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._waiting.append(bytes(data))
        self._bytes += len(data)
        self._changed.set()
        if self._bytes > _HIGH_BYTES and not self._is_blocked:
            self._is_blocked = True
            self._stream.pause_writing()

    def get_write_buffer_size(self) -> int:
        return self._bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def can_write_eof(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self.may_read.clear()

    def resume_reading(self) -> None:
        self.may_read.set()

    def close(self) -> None:
        self.close_with(_GOING_AWAY, "")

    def close_with(self, code: int, reason: str) -> None:
        self._closing = self._closing or (code, reason)
        self._changed.set()

    def abort(self) -> None:
        self.is_open = False
        self.may_read.set()
        self._changed.set()
        if self._connection.protocol is not None:
            self._connection.protocol.transport.abort()
