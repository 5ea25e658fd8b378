"""An HTTP client that bounds what it reads of a response, from any server.

    part                                 limit
    -----------------------------------  ------------------------------------------------------
    one head, one chunk's extensions,    100 KiB, by h11
    the trailers
    all that is not the body: interim    `_OVERHEAD_BYTES_MAX`, and `_OVERHEAD_SHARE` bytes for
    heads (1xx), extensions, framing     each byte of the body
    compression                          once; decompressed in pieces of 1 MiB, by httpx2
    the body of an error                 cut after `_ERROR_BYTES_MAX`: the status says enough
    a body that is not streamed          `_WHOLE_BYTES_MAX`
    a JSON body in place of a stream     `_JSON_BYTES_MAX`

The last three count after decompression; they are read here, before the response is given to
anybody. Other bodies are streams: whoever reads them bounds what is kept of them.

Importing this module imports `httpx2`, which is slow: do it when a client is opened.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

import httpcore2
import httpx2

if TYPE_CHECKING:
    from httpcore2 import SOCKET_OPTION
    from httpx2._client import UseClientDefault
    from httpx2._types import AuthTypes

_OVERHEAD_BYTES_MAX: Final = 512 * 1024
_OVERHEAD_SHARE: Final = 16
"""A chunk of one byte takes six."""
_ERROR_BYTES_MAX: Final = 64 * 1024
_WHOLE_BYTES_MAX: Final = 8 * 1024 * 1024
_JSON_BYTES_MAX: Final = 32 * 1024 * 1024
_OF_THE_TRANSFER: Final = (b"content-encoding", b"content-length", b"transfer-encoding")


class BodyTooLarge(httpx2.RequestError):
    """The body, or what goes with it, is longer than is read of it."""


class BoundedHttpClient(httpx2.AsyncClient):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        # The pool takes a backend from whoever makes it, but httpx2 makes it without asking.
        for transport in (self._transport, *self._mounts.values()):
            if isinstance(transport, httpx2.AsyncHTTPTransport):
                pool = transport._pool
                pool._network_backend = _CountingBackend(pool._network_backend)

    async def send(
        self,
        request: httpx2.Request,
        *,
        stream: bool = False,
        auth: AuthTypes | UseClientDefault | None = httpx2.USE_CLIENT_DEFAULT,
        follow_redirects: bool | UseClientDefault = httpx2.USE_CLIENT_DEFAULT,
    ) -> httpx2.Response:
        response = await super().send(
            request, stream=True, auth=auth, follow_redirects=follow_redirects
        )
        try:
            return await _bounded(response, is_stream=stream)
        except BaseException:
            await response.aclose()
            raise


async def _bounded(response: httpx2.Response, *, is_stream: bool) -> httpx2.Response:
    wire = response.extensions.get("network_stream")
    if isinstance(wire, _CountingStream):
        wire.response = response
    if "," in response.headers.get("content-encoding", ""):
        # A few bytes that were compressed twice can take for ever to decompress.
        raise BodyTooLarge("the body is compressed more than once", request=response.request)
    if not response.is_success:
        return await _read(response, _ERROR_BYTES_MAX, may_cut=True)
    if not is_stream:
        return await _read(response, _WHOLE_BYTES_MAX)
    kind = response.headers.get("content-type", "").lower()
    if kind.startswith("application/json"):
        return await _read(response, _JSON_BYTES_MAX)
    if kind.startswith("text/html"):  # a page of a proxy, of which the title is enough
        return await _read(response, _ERROR_BYTES_MAX, may_cut=True)
    return response


async def _read(
    response: httpx2.Response, bytes_max: int, *, may_cut: bool = False
) -> httpx2.Response:
    """The same response with its body read."""
    body = bytearray()
    async with aclosing(response.aiter_bytes()) as pieces:
        async for piece in pieces:
            body += piece
            if len(body) > bytes_max:
                if not may_cut:
                    raise BodyTooLarge("the body is too large", request=response.request)
                del body[bytes_max:]
                break
    await response.aclose()
    headers = [each for each in response.headers.raw if each[0].lower() not in _OF_THE_TRANSFER]
    return httpx2.Response(
        response.status_code,
        headers=headers,
        content=bytes(body),
        request=response.request,
        extensions=response.extensions,
        history=response.history,
    )


class _CountingStream(httpcore2.AsyncNetworkStream):
    """One connection. Counts what is read of a response, and compares it with what of that was
    body, as httpx2 counts it."""

    def __init__(self, stream: httpcore2.AsyncNetworkStream) -> None:
        self._stream = stream
        self._read_bytes = 0
        self.response: httpx2.Response | None = None
        """The response whose body is being read; nothing before its head is complete."""

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        data = await self._stream.read(max_bytes, timeout)
        self._read_bytes += len(data)
        if self._read_bytes > _OVERHEAD_BYTES_MAX:
            body_bytes = 0 if self.response is None else self.response.num_bytes_downloaded
            if self._read_bytes > _OVERHEAD_BYTES_MAX + _OVERHEAD_SHARE * body_bytes:
                raise httpcore2.RemoteProtocolError(
                    "the response has too many bytes besides its body"
                )
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._read_bytes, self.response = 0, None  # another request
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        self.response = None
        await self._stream.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        return _CountingStream(await self._stream.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class _CountingBackend(httpcore2.AsyncNetworkBackend):
    def __init__(self, backend: httpcore2.AsyncNetworkBackend) -> None:
        self._backend = backend

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        return _CountingStream(
            await self._backend.connect_tcp(host, port, timeout, local_address, socket_options)
        )

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,
        socket_options: Iterable[SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        return _CountingStream(
            await self._backend.connect_unix_socket(path, timeout, socket_options)
        )

    async def sleep(self, seconds: float) -> None:
        await self._backend.sleep(seconds)
