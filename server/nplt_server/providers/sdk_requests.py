"""The address and the headers of the requests that a vendor's SDK would send.

Only the SDK knows its headers, paths and ways to authenticate. It is given a transport that keeps
the request instead of sending it, and a body that says little. `client` sends the request with a
body of its own, as often as it likes.

Importing this module imports `httpx2`, which is slow: do it when a client is opened.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import anyio
import httpx2

from nplt_server.providers.http_client import HttpRequest

_NOT_SENT: Final = frozenset(
    {
        b"content-length",
        b"accept-encoding",
        b"x-stainless-raw-response",
        b"x-stainless-read-timeout",
    }
)
"""The headers that `http_client` writes itself, and those that say how the SDK is used here."""
_ENCODINGS: Final = (b"Accept-Encoding", b"gzip, deflate")


class SdkRequests:
    def __init__(self, open_sdk: Callable[[httpx2.AsyncClient], Any]) -> None:
        """`open_sdk` makes the SDK's client around an HTTP client."""
        self._recorder = _Recorder()
        self._http = httpx2.AsyncClient(transport=self._recorder, trust_env=False)
        self._sdk = open_sdk(self._http)
        self._asking = anyio.Lock()

    async def request(self, ask: Callable[[Any], Awaitable[None]]) -> HttpRequest:
        """The request that the SDK sends when `ask` uses it."""
        async with self._asking:
            await ask(self._sdk)
            assert self._recorder.request is not None
            return _without_body(self._recorder.request)

    def plain_request(self, method: str, url: str, headers: Mapping[str, str]) -> HttpRequest:
        """A request that is not the SDK's."""
        has_body = {"content-type": "application/json"} if method == "POST" else {}
        return _without_body(self._http.build_request(method, url, headers={**has_body, **headers}))


class _Recorder(httpx2.AsyncBaseTransport):
    """Keeps the last request, and answers with nothing."""

    def __init__(self) -> None:
        self.request: httpx2.Request | None = None

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.request = request
        return httpx2.Response(200, headers={"content-type": "application/json"}, content=b"{}")


def _without_body(request: httpx2.Request) -> HttpRequest:
    kept = [each for each in request.headers.raw if each[0].lower() not in _NOT_SENT]
    return HttpRequest.checked(request.method, request.url.raw_path, (*kept, _ENCODINGS))
