"""Real sockets on loopback, and a transport that only remembers."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tests.protocol.fake_link import WELCOME

from nplt_protocol import (
    HEADER,
    ClientConnection,
    Received,
    ReceivedByClient,
    ReplyReceived,
    RequestReceived,
    ServerConnection,
    TextReceived,
    WireLimits,
    encode_frame,
)
from nplt_protocol.stream import FrameStream

Server = FrameStream[Received]


@dataclass
class Pair:
    """A server's stream and the bare socket of its client."""

    stream: Server
    connection: ServerConnection
    client: socket.socket

    async def client_sends(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.client, data)

    async def client_reads(self, count: int) -> bytes:
        """Exactly so many bytes, or fewer at the end."""
        loop, pieces, left = asyncio.get_running_loop(), list[bytes](), count
        while left and (piece := await loop.sock_recv(self.client, min(262_144, left))):
            pieces.append(piece)
            left -= len(piece)
        return b"".join(pieces)

    async def client_reads_to_end(self) -> bytes:
        return await self.client_reads(1 << 40)

    async def is_welcomed(self) -> None:
        await self.client_sends(encode_frame(0x02, 1))
        await self.stream.receive()
        welcome = self.connection.send_welcome(1, WELCOME)
        self.stream.send(welcome)
        await self.client_reads(len(welcome))


async def greet(
    client: FrameStream[ReceivedByClient], connection: ClientConnection, server: Server
) -> None:
    """The server greets the client, which says HELLO and is welcomed."""
    assert isinstance(server.connection, ServerConnection)
    server.send(server.connection.send_text("good morning"))
    assert await client.receive() == [TextReceived(text="good morning")]
    client.send(connection.send_hello())
    (hello,) = await server.receive()
    assert isinstance(hello, RequestReceived)
    server.send(server.connection.send_welcome(hello.seq, WELCOME))
    (welcome,) = await client.receive()
    assert isinstance(welcome, ReplyReceived)


@asynccontextmanager
async def listening(
    limits: WireLimits,
    *,
    log: Callable[[str], None] | None = None,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[tuple[int, asyncio.Queue[Server]]]:
    """A port, and the streams of those who come."""
    loop = asyncio.get_running_loop()
    streams: asyncio.Queue[Server] = asyncio.Queue()
    opened: list[Server] = []

    def accept() -> Server:
        stream: Server = FrameStream(ServerConnection(limits), limits=limits, log=log)
        opened.append(stream)
        streams.put_nowait(stream)
        return stream

    server = await loop.create_server(accept, "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1], streams
    finally:
        server.close()
        for stream in opened:
            stream.abort()
        await server.wait_closed()


@asynccontextmanager
async def joined(
    limits: WireLimits = WireLimits(),  # noqa: B008 (frozen)
    *,
    receive_buffer_bytes: int | None = None,
    log: Callable[[str], None] | None = None,
) -> AsyncIterator[Pair]:
    loop = asyncio.get_running_loop()
    async with listening(limits, log=log) as (port, streams):
        client = socket.socket()
        client.setblocking(False)
        if receive_buffer_bytes is not None:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        try:
            await loop.sock_connect(client, ("127.0.0.1", port))
            stream = await streams.get()
            while stream.peer is None:
                await asyncio.sleep(0)
            connection = stream.connection
            assert isinstance(connection, ServerConnection)
            yield Pair(stream, connection, client)
        finally:
            client.close()


class RememberingTransport(asyncio.Transport):
    """Takes everything; holds back `stuck_bytes` of it, as if the peer didn't read."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.stuck_bytes = 0
        self.reading = True
        self.ended: str | None = None
        self.limits: tuple[int | None, int | None] = (None, None)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    def get_write_buffer_size(self) -> int:
        return self.stuck_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.limits = (high, low)

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.ended = "eof"

    def close(self) -> None:
        self.ended = "close"

    def abort(self) -> None:
        self.ended = "abort"


def remembering(
    limits: WireLimits = WireLimits(),  # noqa: B008 (frozen)
) -> tuple[Server, ServerConnection, RememberingTransport]:
    """A structured server's stream on a transport that only remembers."""
    connection, transport = ServerConnection(limits), RememberingTransport()
    stream: Server = FrameStream(connection, limits=limits)
    stream.connection_made(transport)
    connection.receive_data(encode_frame(0x02, 1))
    connection.send_welcome(1, WELCOME)
    return stream, connection, transport


def requests(first: int, count: int) -> bytes:
    """STATUS, numbered."""
    return b"".join(HEADER.pack(0x1E, seq, 0) for seq in range(first, first + count))
