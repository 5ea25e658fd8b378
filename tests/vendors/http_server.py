"""A small HTTP/1.1 server on loopback that can do what a good one never would:
stop in the middle, and close the line without a word.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import parse_qsl

HEAD_BYTES_MAX = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]  # names in lower case
    body: bytes | None  # none: larger than the limit


class Reply:
    """The answer to one request: whole, or begun and then sent in chunks."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self.keeps_connection = True

    async def whole(
        self, status: int, body: bytes, headers: Mapping[str, str], *, sent: int | None = None
    ) -> None:
        """`sent`: so many bytes of the body only."""
        self._head(status, {**headers, "content-length": str(len(body))})
        self._writer.write(body[:sent])
        await self._writer.drain()

    async def begin(self, status: int, headers: Mapping[str, str]) -> None:
        self._head(status, {**headers, "transfer-encoding": "chunked"})
        await self._writer.drain()

    async def chunk(self, data: bytes) -> None:
        self._writer.write(b"%x\r\n%b\r\n" % (len(data), data))
        await self._writer.drain()

    async def finish(self) -> None:
        self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()

    def cut(self) -> None:
        """What was written still arrives; nothing else does."""
        self.keeps_connection = False

    def _head(self, status: int, headers: Mapping[str, str]) -> None:
        lines = [f"HTTP/1.1 {status} {_phrase(status)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self._writer.write("\r\n".join([*lines, "", ""]).encode("latin-1"))


Handle = Callable[[HttpRequest, Reply], Awaitable[None]]


class HttpServer:
    def __init__(self, handle: Handle, *, body_bytes_max: int) -> None:
        self._handle = handle
        self._body_bytes_max = body_bytes_max
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self.crashes: list[Exception] = []

    async def open(self, port: int = 0) -> int:
        self._server = await asyncio.start_server(
            self._welcome, "127.0.0.1", port, limit=HEAD_BYTES_MAX
        )
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def close(self) -> None:
        """Nobody is let in any more, and whoever is there is sent away."""
        if self._server is None:
            return
        # asyncio trips over a connection that was accepted and not yet welcomed when its
        # server closes: accept no more, and let those come in first.
        for listener in self._server.sockets:
            asyncio.get_running_loop().remove_reader(listener.fileno())
        for _ in range(3):
            await asyncio.sleep(0)
        self._server.close()
        connections = dict(self._connections)
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
        for writer in connections.values():
            await _closed(writer)
        await self._server.wait_closed()
        self._server = None

    def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.ensure_future(self._serve(reader, writer))
        self._connections[connection] = writer
        connection.add_done_callback(self._connections.pop)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            # A client may go away at any moment; that is its right.
            with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while await self._answer_one(reader, writer):
                    pass
        except Exception as crash:  # a script's or ours; whoever closes us is to hear of it
            self.crashes.append(crash)
        finally:
            await _closed(writer)

    async def _answer_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        method, path, _ = head.split("\r\n", 1)[0].split(" ")
        headers = _headers(head)
        body = await self._read_body(reader, headers)
        reply = Reply(writer)
        path, _, query = path.partition("?")
        asked = dict(parse_qsl(query))
        request = HttpRequest(method=method, path=path, query=asked, headers=headers, body=body)
        await self._handle(request, reply)
        return reply.keeps_connection and headers.get("connection") != "close"

    async def _read_body(
        self, reader: asyncio.StreamReader, headers: Mapping[str, str]
    ) -> bytes | None:
        if headers.get("transfer-encoding") == "chunked":
            body = b"".join([chunk async for chunk in _read_chunks(reader)])
        else:
            body = await reader.readexactly(int(headers.get("content-length", "0")))
        return body if len(body) <= self._body_bytes_max else None


async def _closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(ConnectionError, asyncio.CancelledError):
        await writer.wait_closed()


async def _read_chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while size := int((await reader.readline()).split(b";")[0], 16):
        yield await reader.readexactly(size)
        await reader.readline()
    await reader.readline()


def _headers(head: str) -> dict[str, str]:
    headers = {}
    for line in head.split("\r\n")[1:]:
        name, colon, value = line.partition(":")
        if colon:
            headers[name.strip().lower()] = value.strip()
    return headers


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Overloaded"  # 529 is nobody's but Anthropic's
