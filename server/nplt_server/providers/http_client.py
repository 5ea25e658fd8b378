"""The HTTP client under both SDKs: it sends a request again when a kept connection was closed.

A server may close an idle connection at the very moment a request is sent on it (llama.cpp's
does so after each streamed answer). A request that fails on a kept connection before it has
the head of a response is sent once more, at once, on a new connection; whatever happens there
is the outcome. RFC 9110, section 9.2.2, allows that for idempotent requests. A model call is
one: it changes nothing at the provider, though in a rare case it may be billed twice.

What is read of a response is bounded by `bounded_http`.

Importing this module imports `httpx2`, which is slow: do it when a client is opened.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import httpx2

from nplt_server.bounded_http import BoundedHttpClient
from nplt_server.providers.credentials import is_on_this_machine

if TYPE_CHECKING:
    from httpx2._client import UseClientDefault
    from httpx2._types import AuthTypes

_IDLE_CONNECTIONS_MAX = 20


class ProviderHttpClient(BoundedHttpClient):
    def __init__(self, base_url: str, *, connect_seconds: float) -> None:
        timeout = httpx2.Timeout(None, connect=connect_seconds, pool=connect_seconds)
        trust_env = not is_on_this_machine(base_url)
        # Over plain HTTP nobody shows a certificate, and no redirect is followed.
        is_plain = base_url.startswith("http://")
        certificates = httpx2.create_ssl_context(verify=not is_plain, trust_env=trust_env)
        super().__init__(
            timeout=timeout,
            verify=certificates,
            trust_env=trust_env,
            limits=httpx2.Limits(max_keepalive_connections=_IDLE_CONNECTIONS_MAX),
        )
        # The only way to be sure of a new connection: the pool may hold more closed ones.
        self._unpooled = BoundedHttpClient(
            timeout=timeout,
            verify=certificates,
            trust_env=trust_env,
            limits=httpx2.Limits(max_keepalive_connections=0),
        )

    async def send(
        self,
        request: httpx2.Request,
        *,
        stream: bool = False,
        auth: AuthTypes | UseClientDefault | None = httpx2.USE_CLIENT_DEFAULT,
        follow_redirects: bool | UseClientDefault = httpx2.USE_CLIENT_DEFAULT,
    ) -> httpx2.Response:
        came_to: set[str] = set()

        async def trace(event: str, info: Mapping[str, object]) -> None:
            came_to.add(event.partition(".")[2])

        request.extensions = {**request.extensions, "trace": trace}
        try:
            return await super().send(
                request, stream=stream, auth=auth, follow_redirects=follow_redirects
            )
        except (httpx2.ReadError, httpx2.WriteError, httpx2.RemoteProtocolError):
            if came_to & {"connect_tcp.started", "receive_response_headers.complete"}:
                raise  # of a new connection, or of one that had answered
        return await self._unpooled.send(
            request, stream=stream, auth=auth, follow_redirects=follow_redirects
        )

    async def aclose(self) -> None:
        await super().aclose()
        await self._unpooled.aclose()
