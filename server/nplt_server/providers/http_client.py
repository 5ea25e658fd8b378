"""The HTTP/1.1 client of model calls, on asyncio's transports, for one server.

    part                                 limit
    -----------------------------------  ------------------------------------------------------
    all that is not the body: heads,     `_OVERHEAD_BYTES_MAX`, and `_OVERHEAD_SHARE` bytes for
    chunks' sizes and extensions,        each byte of the body
    trailers
    compression                          once; decompressed in pieces of `_PIECE_BYTES_MAX`
    received bytes that were not read    `_UNREAD_BYTES_MAX`, then the socket is not read
    a body that is read whole            chosen by the caller

A server may close an idle connection at the very moment a request is sent on it (llama.cpp's
does so after each streamed answer). A request that fails on a kept connection before a byte of
the response is sent once more, at once, on a new connection; whatever happens there is the
outcome. RFC 9110, section 9.2.2, allows that for idempotent requests. A model call is one: it
changes nothing at the provider, though in a rare case it may be billed twice.

Proxies are those that the environment names (`https_proxy`, `no_proxy`), except for servers on
this machine. Redirects are not followed. The SDKs' own client (httpx2) costs four times as much
CPU time for each call, so it only says what a request looks like (`client`).
"""

from __future__ import annotations

import asyncio
import base64
import errno
import logging
import re
import ssl
import zlib
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias, cast
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

import h11
from msgspec import Struct

from nplt_server.providers.credentials import is_on_this_machine
from nplt_server.providers.http_response import BadResponse, ResponseHead, ResponseReader
from nplt_server.request_id import request_id

log = logging.getLogger(__name__)

Headers: TypeAlias = Sequence[tuple[bytes, bytes]]

_OVERHEAD_BYTES_MAX: Final = 512 * 1024
_OVERHEAD_SHARE: Final = 16
"""A chunk of one byte takes six."""
_UNREAD_BYTES_MAX: Final = 256 * 1024
_PIECE_BYTES_MAX: Final = 1024 * 1024
_JOINED_BYTES_MAX: Final = 64 * 1024
"""A longer body is not copied behind the head, but written after it."""
_IDLE_CONNECTIONS_MAX: Final = 100
_IDLE_SECONDS_MAX: Final = 15.0
_DRAIN_SECONDS_MAX: Final = 1.0
_DRAIN_BYTES_MAX: Final = 64 * 1024
_SECOND_ADDRESS_SECONDS: Final = 0.25
"""How long one address of a host is tried before the next is tried at the same time (RFC 8305)."""
_PORTS: Final = {"http": 80, "https": 443}


class HttpFailure(Exception):
    """A request has no response, or the rest of a response can't be read."""


class UnusableAddress(HttpFailure):
    """No request can be sent to the address, or through its proxy."""


class NoConnection(HttpFailure):
    """There is no connection. Its cause says why."""


class ConnectionBroke(HttpFailure):
    """The connection ended early, or the response is not HTTP."""


class BodyTooLarge(HttpFailure):
    """The body is longer than the caller reads, or was compressed more than once."""


class RefusedStatus(HttpFailure):
    """The status says that the request failed."""

    def __init__(self, status_code: int) -> None:
        super().__init__(f"the status is {status_code}")
        self.status_code = status_code


class HttpRequest(Struct, frozen=True, kw_only=True):
    """A request without its body."""

    method: str
    target: bytes
    """The path and the query."""
    headers: Headers
    """All but `Content-Length`."""
    head: bytes
    """The bytes of all that, without the empty line after them."""

    @classmethod
    def checked(cls, method: str, target: bytes, headers: Headers) -> HttpRequest:
        """Raises `UnusableAddress` if it can't be sent."""
        try:
            asked = h11.Request(method=method, target=target, headers=[*headers])
        except h11.LocalProtocolError:
            raise UnusableAddress("a header of the settings can't be sent") from None
        head = h11.Connection(h11.CLIENT).send(asked)
        assert head is not None
        return cls(method=method, target=target, headers=headers, head=head[: -len(_LINE_END)])


_LINE_END: Final = b"\r\n"


class HttpClient:
    """Keeps connections to one server and uses them again."""

    def __init__(self, base_url: str, *, connect_seconds: float) -> None:
        """Reads certificates from the disk, which is slow."""
        self.origin = urlsplit(base_url)
        host = self.origin.hostname
        if self.origin.scheme not in _PORTS or not host:
            raise UnusableAddress(base_url)
        self._connect_seconds = connect_seconds
        self._host = host
        try:
            self._port = self.origin.port or _PORTS[self.origin.scheme]
        except ValueError as error:
            raise UnusableAddress(base_url) from error
        trust_env = not is_on_this_machine(base_url)
        self._proxy = _proxy_of(self.origin) if trust_env else None
        self._tls = _tls(trust_env=trust_env) if self.origin.scheme == "https" else None
        self._proxy_tls: ssl.SSLContext | None = None
        if self._proxy is not None and self._proxy.scheme == "https":
            self._proxy_tls = self._tls or _tls(trust_env=True)
        self._connections: set[_Connection] = set()
        self._idle: list[_Connection] = []

    @property
    def idle_connections(self) -> int:
        return len(self._idle)

    async def send(self, request: HttpRequest, body: bytes, *, deadline: float) -> HttpResponse:
        """Returns when the head of the response has come. Raises `HttpFailure`, or `TimeoutError`
        at the deadline."""
        if log.isEnabledFor(logging.DEBUG):
            log.debug("%s %s%s", request.method, self._host, _shown(request.target))
        if self._tls is None and self._proxy is not None:
            request = self._through_proxy(request)
        if self._idle:
            kept = self._idle.pop()
            try:
                return await kept.ask(request, body, deadline)
            except ConnectionBroke:
                if kept.has_read:
                    raise
        connection = await self._connect()
        return await connection.ask(request, body, deadline)

    def release(self, connection: _Connection) -> None:
        """Keeps the connection, whose response has been read."""
        self._idle.append(connection)
        if len(self._idle) > _IDLE_CONNECTIONS_MAX:
            self._idle.pop(0).close()

    def opened(self, connection: _Connection) -> None:
        self._connections.add(connection)

    def closed(self, connection: _Connection) -> None:
        self._connections.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    async def aclose(self) -> None:
        for connection in [*self._connections]:
            connection.close()
        await asyncio.sleep(0)  # their sockets are closed in the next tick

    # Connecting

    async def _connect(self) -> _Connection:
        try:
            async with asyncio.timeout(self._connect_seconds):
                if self._proxy is None:
                    return await self._open(self._host, self._port, self._tls)
                proxy = self._proxy
                connection = await self._open(
                    proxy.hostname or "", proxy.port or _PORTS[proxy.scheme], self._proxy_tls
                )
                if self._tls is not None:
                    try:
                        await self._tunnel(connection, self._tls)
                    except BaseException:
                        connection.close()
                        raise
                return connection
        except (OSError, UnicodeError) as error:  # a timeout and an error of TLS are OSErrors
            raise NoConnection(str(error)) from _plain(error)

    async def _open(self, host: str, port: int, tls: ssl.SSLContext | None) -> _Connection:
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: _Connection(self),
            host,
            port,
            ssl=tls,
            server_hostname=host if tls else None,
            happy_eyeballs_delay=_SECOND_ADDRESS_SECONDS,
        )
        log.debug("connected to %s, port %d", host, port)
        return connection

    async def _tunnel(self, connection: _Connection, tls: ssl.SSLContext) -> None:
        host = f"[{self._host}]" if ":" in self._host else self._host
        authority = f"{host}:{self._port}".encode()
        headers = [(b"Host", authority), *self._proxy_headers()]
        request = HttpRequest.checked("CONNECT", authority, headers)
        deadline = asyncio.get_running_loop().time() + self._connect_seconds
        try:
            response = await connection.ask(request, b"", deadline)
        except HttpFailure as failure:
            raise NoConnection(f"the proxy gave no answer: {failure}") from failure
        if not response.is_success:
            raise NoConnection(f"the proxy refuses ({response.status})")
        await connection.start_tls(tls, self._host)

    def _through_proxy(self, request: HttpRequest) -> HttpRequest:
        """The request as a proxy expects it over plain HTTP: with the whole address."""
        target = f"{self.origin.scheme}://{self.origin.netloc.rpartition('@')[2]}".encode()
        headers = [*request.headers, *self._proxy_headers()]
        return HttpRequest.checked(request.method, target + request.target, headers)

    def _proxy_headers(self) -> list[tuple[bytes, bytes]]:
        proxy = self._proxy
        if proxy is None or proxy.username is None:
            return []
        user = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}".encode()
        return [(b"Proxy-Authorization", b"Basic " + base64.b64encode(user))]


def _shown(target: bytes) -> str:
    return target.partition(b"?")[0].decode("ascii", "replace")


def _tls(*, trust_env: bool) -> ssl.SSLContext:
    import httpx2  # it is slow to import, and chooses the same certificates for the SDKs

    context = httpx2.create_ssl_context(trust_env=trust_env)
    context.set_alpn_protocols(["http/1.1"])
    return context


def _proxy_of(origin: SplitResult) -> SplitResult | None:
    proxies = getproxies()
    address = proxies.get(origin.scheme) or proxies.get("all")
    if not address or proxy_bypass(origin.netloc.rpartition("@")[2]):
        return None
    proxy = urlsplit(address if "://" in address else f"http://{address}")
    if proxy.scheme not in _PORTS or not proxy.hostname:
        raise UnusableAddress(f"a proxy of the kind {proxy.scheme} can't be used")
    return proxy


def _plain(error: Exception) -> Exception:
    """Restores the number of a refused connection: asyncio joins the errors of several addresses
    into one without a number."""
    if isinstance(error, OSError) and error.errno is None:
        refused = re.compile(rf"\[Errno {errno.ECONNREFUSED}\]")
        if refused.search(str(error)):
            return ConnectionRefusedError(errno.ECONNREFUSED, str(error))
    return error


class HttpResponse:
    """A response whose head was received. Its caller must call `close`."""

    def __init__(self, connection: _Connection, head: ResponseHead) -> None:
        self._connection = connection
        self.status = head.status
        self.headers: Mapping[str, str] = head.headers
        encoding = self.headers.get("content-encoding", "").strip().lower()
        self._decoder = _decoder_of(encoding) if encoding not in ("", "identity") else None

    @property
    def is_success(self) -> bool:
        return 200 <= self.status <= 299

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "").lower()

    async def read(self, deadline: float) -> bytes:
        """The next piece of the body, empty at its end. Raises `HttpFailure`, or `TimeoutError`
        at the deadline."""
        connection, decoder = self._connection, self._decoder
        if decoder is None:
            return await connection.read(deadline)
        while True:
            # A few compressed bytes give many, without a wait in which others could run.
            await asyncio.sleep(0)
            data = decoder.unconsumed_tail or await connection.read(deadline)
            try:
                piece = decoder.decompress(data, _PIECE_BYTES_MAX) if data else decoder.flush()
            except zlib.error as error:
                raise ConnectionBroke("the body can't be decompressed") from error
            if piece or not data:
                return piece

    async def whole(self, bytes_max: int, *, deadline: float, may_cut: bool = False) -> bytes:
        """The whole body. If it is longer, it is cut or refused."""
        body = bytearray()
        while piece := await self.read(deadline):
            body += piece
            if len(body) > bytes_max:
                if not may_cut:
                    raise BodyTooLarge("the body is too large")
                del body[bytes_max:]
                break
        return bytes(body)

    def close(self, *, is_done: bool = False) -> None:
        """Returns the connection, or closes it if the body was not read to its end. `is_done`: no
        more is wanted of the body, and its end is about to come."""
        self._connection.release(is_done=is_done)


def _decoder_of(encoding: str) -> zlib._Decompress:
    match encoding:
        case "gzip" | "x-gzip":
            return zlib.decompressobj(zlib.MAX_WBITS | 16)
        case "deflate":
            return zlib.decompressobj()
        case _ if "," in encoding:
            # A few bytes that were compressed twice can take for ever to decompress.
            raise BodyTooLarge("the body is compressed more than once")
        case _:
            raise ConnectionBroke("the body is compressed in an unknown way")


class _Connection(asyncio.Protocol):
    """One connection, with one request at a time."""

    def __init__(self, client: HttpClient) -> None:
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._response = ResponseReader()
        self._pieces: list[bytes] = []
        """The pieces of the body that were not read yet."""
        self._unread_bytes = self._read_bytes = self._body_bytes = 0
        self._is_paused = False
        self._is_asked = False
        """A response is wanted."""
        self._is_draining = False
        """The response is not read any more, but its end is waited for."""
        self._failure: HttpFailure | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._deadline = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def has_read(self) -> bool:
        """Whether any byte of the last response has come."""
        return self._read_bytes > 0

    # Sending, and reading what has come

    async def ask(self, request: HttpRequest, body: bytes, deadline: float) -> HttpResponse:
        is_tunnel = request.method == "CONNECT"
        response = self._response = ResponseReader(opens_tunnel=is_tunnel)
        self._is_asked = True
        self._unread_bytes = self._read_bytes = self._body_bytes = 0
        try:
            self._write(request, body)
            while response.head is None:
                await self._wait(deadline)
            return HttpResponse(self, response.head)
        except BaseException:
            self.close()
            raise

    def _write(self, request: HttpRequest, body: bytes) -> None:
        has_body = request.method == "POST"
        length = b"Content-Length: %d\r\n" % len(body) if has_body else b""
        current = request_id.get().encode("ascii") if has_body else b""
        named = b"X-Client-Request-Id: %s\r\n" % current if current else b""
        head = request.head + named + length + _LINE_END
        if len(body) <= _JOINED_BYTES_MAX:
            self._transport.write(head + body)
        else:
            self._transport.write(head)
            self._transport.write(body)

    async def read(self, deadline: float) -> bytes:
        while not self._pieces:
            if self._response.has_ended:
                return b""
            await self._wait(deadline)
        pieces = self._pieces
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self._unread_bytes = 0
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()
        return data

    async def _wait(self, deadline: float) -> None:
        if self._failure is not None:
            raise self._failure
        self._set_deadline(deadline)
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _set_deadline(self, deadline: float) -> None:
        """Ends what the connection waits for then. One timer serves many waits: when it fires too
        early, it is set again."""
        self._deadline = deadline
        if self._timer is not None and self._timer.when() > deadline:
            self._cancel_timer()
        if self._timer is None:
            self._timer = self._loop.call_at(deadline, self._look)

    def _look(self) -> None:
        self._timer = None
        is_waiting = self._waiter is not None and not self._waiter.done()
        is_read = self._is_asked and not self._is_draining
        if is_read and not is_waiting:
            return
        if self._loop.time() < self._deadline:
            self._timer = self._loop.call_at(self._deadline, self._look)
        elif self._waiter is not None and is_read:
            self._waiter.set_exception(TimeoutError())
        else:
            self.close()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # Called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._client.opened(self)

    def data_received(self, data: bytes) -> None:
        if not self._is_asked:
            self.close()  # nothing was asked
            return
        self._read_bytes += len(data)
        try:
            for piece in self._response.feed(data):
                self._add(piece)
        except BadResponse as error:
            self._fail(ConnectionBroke(f"the response is not HTTP: {error}"))
        self._go_on()
        most = _OVERHEAD_BYTES_MAX + _OVERHEAD_SHARE * self._body_bytes
        if self._read_bytes > most:
            self._fail(ConnectionBroke("the response has too many bytes besides its body"))

    def eof_received(self) -> None:
        if self._is_asked:
            self._response.feed_end()
            self._go_on()

    def connection_lost(self, exc: Exception | None) -> None:
        self._client.closed(self)
        self._cancel_timer()
        if not self._response.has_ended:
            self._fail(ConnectionBroke("the connection was closed"))

    def _go_on(self) -> None:
        """Goes on with what has come."""
        if self._is_draining:
            self._go_on_draining()
        else:
            self._wake()

    def _add(self, piece: bytes) -> None:
        self._body_bytes += len(piece)
        self._unread_bytes += len(piece)
        if self._is_draining:
            return
        self._pieces.append(piece)
        if self._unread_bytes > _UNREAD_BYTES_MAX and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def _fail(self, failure: HttpFailure) -> None:
        if self._failure is None:
            self._failure = failure
        self.close()
        self._wake()

    # The end of a response

    def release(self, *, is_done: bool) -> None:
        if self._response.has_ended:
            self._keep()
        elif is_done and not self._transport.is_closing():
            self._is_draining, self._unread_bytes = True, 0
            self._pieces.clear()
            if self._is_paused:
                self._is_paused = False
                self._transport.resume_reading()
            self._set_deadline(self._loop.time() + _DRAIN_SECONDS_MAX)
        else:
            self.close()

    def _go_on_draining(self) -> None:
        if self._response.has_ended:
            self._is_draining = False
            self._keep()
        elif self._unread_bytes > _DRAIN_BYTES_MAX:
            self.close()

    def _keep(self) -> None:
        """Keeps the connection for another request, if it can be used for one."""
        transport = self._transport
        is_usable = (
            self._response.keeps_connection
            and not transport.is_closing()
            and not transport.get_write_buffer_size()
            and self._failure is None
        )
        if not is_usable:
            self.close()
            return
        self._is_asked = False
        self._pieces.clear()
        if self._is_paused:
            self._is_paused = False
            transport.resume_reading()
        self._set_deadline(self._loop.time() + _IDLE_SECONDS_MAX)
        self._client.release(self)

    def close(self) -> None:
        self._client.closed(self)
        self._cancel_timer()
        self._transport.abort()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def start_tls(self, tls: ssl.SSLContext, host: str) -> None:
        """Goes on with TLS, after a proxy has opened a tunnel."""
        transport = await self._loop.start_tls(self._transport, self, tls, server_hostname=host)
        if transport is None:
            raise ConnectionBroke("the connection was closed")
        self._transport = transport
