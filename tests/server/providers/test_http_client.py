"""The HTTP client of model calls, with servers and proxies on real sockets."""

from __future__ import annotations

import asyncio
import gzip
import ssl
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, closing, suppress
from pathlib import Path
from typing import TypeAlias

import pytest
from tests.support.certificates import make_certificate

from nplt_server.providers.http_client import (
    BodyTooLarge,
    ConnectionBroke,
    HttpClient,
    HttpRequest,
    HttpResponse,
    NoConnection,
    UnusableAddress,
)

Serve: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
LONG = 60.0
EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"


class Server:
    """Answers each request with what `respond` gives, and counts connections."""

    def __init__(self, respond: Callable[[bytes], bytes]) -> None:
        self._respond = respond
        self.connections = 0
        self.requests: list[bytes] = []
        self.heads: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                self.heads.append(head)
                length = head.lower().partition(b"content-length: ")[2].partition(b"\r")[0]
                self.requests.append(await reader.readexactly(int(length or 0)))
                writer.write(self._respond(self.requests[-1]))
                await writer.drain()
        writer.close()


class Proxy:
    """Passes on to one port, whatever host it is asked for."""

    def __init__(self, port: int, *, refuses: bool = False) -> None:
        self._port = port
        self._refuses = refuses
        self.heads: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.heads.append(head)
        if self._refuses:
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
            writer.close()
            return
        far, to_far = await asyncio.open_connection("127.0.0.1", self._port)
        if head.startswith(b"CONNECT"):
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            to_far.write(head)
        with closing(to_far):
            await asyncio.gather(_pass_on(reader, to_far), _pass_on(far, writer))


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            writer.write(data)
    writer.close()


@asynccontextmanager
async def listening(
    serve: Serve, tls: ssl.SSLContext | None = None, *, host: str = "127.0.0.1"
) -> AsyncIterator[int]:
    tasks: set[asyncio.Task[None]] = set()

    async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        with suppress(asyncio.CancelledError):
            await serve(reader, writer)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    server = await asyncio.start_server(run, host, 0, ssl=tls)
    async with server:
        yield server.sockets[0].getsockname()[1]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def client(port: int, *, scheme: str = "http", host: str = "127.0.0.1") -> HttpClient:
    return HttpClient(f"{scheme}://{host}:{port}/v1", connect_seconds=LONG)


def deadline(seconds: float = LONG) -> float:
    return asyncio.get_running_loop().time() + seconds


async def post(http: HttpClient, body: bytes = b"hello") -> HttpResponse:
    headers = ((b"Host", b"server"), (b"Content-Type", b"application/json"))
    request = HttpRequest.checked("POST", b"/v1/x", headers)
    return await http.send(request, body, deadline=deadline())


async def exchange(http: HttpClient, body: bytes = b"hello") -> bytes:
    response = await post(http, body)
    try:
        return await response.whole(1 << 30, deadline=deadline())
    finally:
        response.close()


def plain(body: bytes, *fields: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n%b\r\n" % (len(body), b"".join(fields))
    return head + body


def chunked(*chunks: bytes) -> bytes:
    parts = (b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in (*chunks, b""))
    return EVENTS + b"\r\n" + b"".join(parts)


def echo(body: bytes) -> bytes:
    return plain(body)


async def test_a_long_body_goes_there_and_back_on_one_connection() -> None:
    server = Server(echo)
    body = b"0123456789" * 300_000
    async with listening(server.serve) as port, aclosing(client(port)) as http:
        for _ in range(3):
            assert await exchange(http, body) == body
    assert server.connections == 1


async def test_each_of_several_requests_at_once_has_a_connection_and_all_are_kept() -> None:
    server = Server(echo)
    bodies = [b"%d" % number for number in range(30)]
    async with listening(server.serve) as port, aclosing(client(port)) as http:
        for _ in range(2):
            assert await asyncio.gather(*(exchange(http, body) for body in bodies)) == bodies
    assert server.connections == 30


async def test_the_end_of_a_response_is_read_after_it_is_closed_and_the_connection_kept() -> None:
    server = Server(lambda body: chunked(b"data: 1\n\n", b": " + b"x" * 20_000))
    async with listening(server.serve) as port, aclosing(client(port)) as http:
        for _ in range(3):
            response = await post(http)
            assert (await response.read(deadline())).startswith(b"data: 1")
            response.close(is_done=True)
            for _ in range(1000):
                if http.idle_connections:
                    break
                await asyncio.sleep(0.01)
            assert http.idle_connections == 1
    assert server.connections == 1


@pytest.mark.parametrize("is_done", [False, True])
async def test_a_response_that_goes_on_is_not_read_to_its_end(is_done: bool) -> None:
    closed = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(EVENTS + b"\r\n")
        with suppress(ConnectionError):
            while True:
                writer.write(b"a\r\n0123456789\r\n" * 1000)
                await writer.drain()
        closed.set()

    async with listening(serve) as port, aclosing(client(port)) as http:
        response = await post(http)
        await response.read(deadline())
        response.close(is_done=is_done)
        await asyncio.wait_for(closed.wait(), LONG)
        assert http.idle_connections == 0


async def test_a_server_is_not_read_faster_than_its_answer() -> None:
    sent = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(EVENTS + b"\r\n")
        with suppress(ConnectionError):
            while sent < 64 * 1024 * 1024:
                writer.write(b"fa00\r\n" + b"x" * 64_000 + b"\r\n")
                await writer.drain()
                sent += 64_000

    async with listening(serve) as port, aclosing(client(port)) as http:
        response = await post(http)
        first = await response.read(deadline())
        before = -1
        while before != sent:
            before = sent
            await asyncio.sleep(0.2)
        assert sent < 32 * 1024 * 1024
        assert len(first) + len(await response.read(deadline())) < 1024 * 1024
        response.close()


@pytest.mark.parametrize(
    ("name", "compress"),
    [("gzip", gzip.compress), ("deflate", zlib.compress)],
    ids=["gzip", "deflate"],
)
async def test_a_compressed_body_is_decompressed(
    name: str, compress: Callable[[bytes], bytes]
) -> None:
    text = b"some words, " * 500_000
    field = b"Content-Encoding: %b\r\n" % name.encode()
    server = Server(lambda body: plain(compress(text), field))
    async with listening(server.serve) as port, aclosing(client(port)) as http:
        assert await exchange(http) == text
        assert await exchange(http) == text
    assert server.connections == 1


@pytest.mark.parametrize(
    ("response", "failure"),
    [
        (b"", ConnectionBroke),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", ConnectionBroke),
        (EVENTS + b"\r\n5\r\nhello", ConnectionBroke),
        (EVENTS + b"\r\nno number\r\n", ConnectionBroke),
        (EVENTS + b"\r\n5\r\nhello\r\nno number\r\n", ConnectionBroke),
        (EVENTS + b"\r\n5\r\nhello\r\n5\r\nwordsXX0\r\n\r\n", ConnectionBroke),
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", ConnectionBroke),
        (plain(b"x", b"Content-Encoding: br\r\n"), ConnectionBroke),
        (plain(b"hello", b"Content-Encoding: gzip\r\n"), ConnectionBroke),
        (plain(b"x", b"Content-Encoding: gzip, gzip\r\n"), BodyTooLarge),
    ],
    ids=[
        "nothing",
        "half",
        "half a chunk",
        "no chunk",
        "no chunk after one",
        "a chunk with a wrong end",
        "no HTTP",
        "br",
        "no gzip",
        "gzip twice",
    ],
)
async def test_a_response_that_is_not_whole_is_a_failure(
    response: bytes, failure: type[Exception]
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"hello")
        writer.write(response)
        writer.close()

    async with listening(serve) as port, aclosing(client(port)) as http:
        with pytest.raises(failure):
            await exchange(http)


async def test_a_chunked_body_is_the_same_however_it_is_split() -> None:
    """Chunks that come whole are read without h11, and their text may look like chunks."""
    body = b"one\r\n5\r\nhello\r\n\r\n0\r\n\r\nlast"
    response = EVENTS + b"".join(
        (
            b"\r\n3\r\none\r\n",
            b"C\r\n\r\n5\r\nhello\r\n\r\n",
            b"7;name=value\r\n\r\n0\r\n\r\n\r\n",
            b"004\r\nlast\r\n",
            b"0\r\nTrailer: 1\r\n\r\n",
        )
    )
    cuts = iter(range(len(response)))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for cut in cuts:
            await reader.readuntil(b"hello")
            for piece in (response[:cut], response[cut : cut + 3], response[cut + 3 :]):
                writer.write(piece)
                await asyncio.sleep(0.001)

    async with listening(serve) as port, aclosing(client(port)) as http:
        for _ in range(len(response)):
            assert await exchange(http) == body


async def test_what_came_before_a_connection_broke_is_read() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"hello")
        writer.write(EVENTS + b"\r\n5\r\nwords\r\n")
        writer.close()

    async with listening(serve) as port, aclosing(client(port)) as http:
        response = await post(http)
        assert await response.read(deadline()) == b"words"
        with pytest.raises(ConnectionBroke):
            await response.read(deadline())
        response.close()


async def test_a_response_without_a_length_ends_with_the_connection() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"hello")
        writer.write(b"HTTP/1.0 200 OK\r\n\r\nwords")
        writer.close()

    async with listening(serve) as port, aclosing(client(port)) as http:
        assert await exchange(http) == b"words"
        assert await exchange(http) == b"words"


async def test_a_deadline_moves_on_while_pieces_come() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"hello")
        writer.write(EVENTS + b"\r\n")
        for _ in range(10):
            writer.write(b"1\r\nx\r\n")
            await asyncio.sleep(0.1)
        await asyncio.sleep(LONG)

    async with listening(serve) as port, aclosing(client(port)) as http:
        response = await post(http)
        begun, read = time.monotonic(), b""
        while len(read) < 10:
            read += await response.read(deadline())
        with pytest.raises(TimeoutError):
            await response.read(deadline(0.2))
        assert (read, time.monotonic() - begun < LONG) == (b"x" * 10, True)
        response.close()


async def test_a_refusal_before_the_request_is_sent_whole_is_read() -> None:
    refusal = b"HTTP/1.1 413 Too Large\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(refusal)
        await writer.drain()
        with suppress(ConnectionError):
            while await reader.read(1 << 16):
                pass
        writer.close()

    async with listening(serve) as port, aclosing(client(port)) as http:
        response = await post(http, bytes(8_000_000))
        assert (response.status, await response.whole(10, deadline=deadline())) == (413, b"no")
        response.close()


# TLS and proxies


@pytest.fixture
def certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """That of a server, which clients trust from now on."""
    made = make_certificate(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(made["cert"], made["key"])
    monkeypatch.setenv("SSL_CERT_FILE", made["cert"])
    return context


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


async def test_a_certificate_that_is_not_trusted_is_refused(
    certificate: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    async with (
        listening(Server(echo).serve, certificate) as port,
        aclosing(client(port, scheme="https")) as http,
    ):
        with pytest.raises(NoConnection) as caught:
            await exchange(http)
    assert isinstance(caught.value.__cause__, ssl.SSLCertVerificationError)


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_proxy_of_the_environment_is_used(
    scheme: str, certificate: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name is the proxy's to look up: there is no such host here."""
    server = Server(echo)
    tls = certificate if scheme == "https" else None
    # The certificate is for this name, which counts as this machine: no proxy would be used.
    monkeypatch.setattr("nplt_server.providers.http_client.is_on_this_machine", lambda url: False)
    host = "localhost" if tls else "provider.invalid"
    async with listening(server.serve, tls) as port:
        proxy = Proxy(port)
        async with listening(proxy.serve) as proxy_port:
            monkeypatch.setenv(f"{scheme}_proxy", f"http://us:p%40ss@127.0.0.1:{proxy_port}")
            async with aclosing(client(1, scheme=scheme, host=host)) as http:
                assert await exchange(http) == b"hello"
                assert await exchange(http) == b"hello"
    assert len(proxy.heads) == 1
    line = b"CONNECT localhost:1 HTTP/1.1" if tls else b"POST http://provider.invalid:1/v1/x "
    assert proxy.heads[0].startswith(line)
    assert b"Proxy-Authorization: Basic dXM6cEBzcw==" in proxy.heads[0]
    # What is for the proxy is not shown to the server behind a tunnel.
    assert (b"Proxy-Authorization" in server.heads[0]) is (tls is None)


async def test_a_tunnel_that_the_proxy_refuses_is_no_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with listening(Proxy(1, refuses=True).serve) as port:
        monkeypatch.setenv("HTTPS_PROXY", f"127.0.0.1:{port}")
        async with aclosing(client(443, scheme="https", host="provider.invalid")) as http:
            with pytest.raises(NoConnection, match="407"):
                await exchange(http)


@pytest.mark.parametrize("no_proxy", ["*", "127.0.0.2", "127.0.0.2:{port}"])
async def test_no_proxy_is_used_for_a_host_that_the_environment_excepts(
    no_proxy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nplt_server.providers.http_client.is_on_this_machine", lambda url: False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    async with listening(Server(echo).serve, host="127.0.0.2") as port:
        monkeypatch.setenv("no_proxy", no_proxy.format(port=port))
        async with aclosing(client(port, host="127.0.0.2")) as http:
            assert await exchange(http) == b"hello"


def test_a_proxy_of_an_unknown_kind_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("all_proxy", "socks5://127.0.0.1:1080")
    with pytest.raises(UnusableAddress):
        client(80, host="provider.invalid")


async def test_all_addresses_of_a_host_are_tried() -> None:
    """`localhost` has two where there is IPv6; nothing listens at the first."""
    async with (
        listening(Server(echo).serve) as port,
        aclosing(client(port, host="localhost")) as http,
    ):
        assert await exchange(http) == b"hello"
    async with aclosing(client(port, host="localhost")) as http:
        with pytest.raises(NoConnection) as caught:
            await exchange(http)
    assert isinstance(caught.value.__cause__, ConnectionRefusedError)
