"""The door for HTTP: admits connections and hands them to uvicorn's protocol classes.

The sockets are bound when the server starts. Starlette and uvicorn are imported in a thread when
the first connection comes, so that they cost neither the start nor a server without HTTP clients
anything. A connection counts in the server's admission from the moment it is accepted, like any
other: the same limits hold, and the kernel is asked for the user at its other end.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from nplt_gateway.errors import SERVER, ApiError
from nplt_gateway.http_connection import HttpConnection
from nplt_server.app import Server
from nplt_server.connections.proxies import Accepted

if TYPE_CHECKING:  # slow to load: imported with the first connection
    from nplt_gateway.http_protocol import HttpServer

log = logging.getLogger(__name__)


class HttpDoor:
    def __init__(
        self,
        sockets: Sequence[socket.socket],
        url: str | None,
        *,
        has_api: bool = True,
        has_metrics: bool = True,
    ) -> None:
        """`has_api`: it serves more than health and metrics."""
        self.sockets = sockets
        self.url = url
        self._has_api = has_api
        self._has_metrics = has_metrics
        self._connections: set[HttpConnection] = set()
        self._server: Server | None = None
        self._loading: asyncio.Future[HttpServer] | None = None

    def admit(self, server: Server, accepted: Accepted) -> None:
        """Checks the limits, as for a connection of the other port, and opens the connection."""
        self._server, admission, address = server, server.admission, accepted.address
        refusal = None
        if (reason := admission.reason_to_refuse(address)) is not None:
            refusal = ApiError(503, reason, type=SERVER, code="busy", retry_after=10)
        # The peer is looked up at once, because later its program may have closed the socket.
        elif (reason := admission.reason_to_refuse_user(accepted)) is not None:
            refusal = ApiError(403, reason, code="forbidden")
        if reason is not None:
            admission.log_refusal(address, reason)
            if server.tls is not None:
                accepted.sock.close()
                return
        connection = HttpConnection(self, address, refusal)
        connection.number = admission.arrive(connection)
        self._connections.add(connection)
        server.services.spawn(partial(self._open, server, accepted.sock, connection))

    async def _open(
        self, server: Server, accepted: socket.socket, connection: HttpConnection
    ) -> None:
        try:
            http = await self._loaded(server)
            accepted.setblocking(False)
            # The head and the body of a response are two packets. Without this the kernel holds
            # the second one until the client acknowledges the first, which takes up to 40 ms.
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: http.protocol_for(connection),
                accepted,
                ssl=server.tls,
                ssl_handshake_timeout=(
                    server.services.limits.hello_seconds_max if server.tls else None
                ),
            )
        except (OSError, ssl.SSLError) as error:
            reason = f"the connection failed at its start: {error}"
            server.admission.log_refusal(connection.address, reason)
            accepted.close()
            connection.lost()
        except BaseException:  # the libraries can't be imported, or the server stops
            accepted.close()
            connection.lost()
            raise
        if connection.is_lost and connection.protocol is not None:  # closed to make room
            connection.protocol.transport.abort()

    async def _loaded(self, server: Server) -> HttpServer:
        """Imports the libraries at the first connection; others wait for the same import."""
        if self._loading is None or (self._loading.done() and self._loading.exception()):
            self._loading = asyncio.ensure_future(self._load(server))
        return await asyncio.shield(self._loading)

    async def _load(self, server: Server) -> HttpServer:
        make = await anyio.to_thread.run_sync(_import_http_server)
        return make(server, has_api=self._has_api, has_metrics=self._has_metrics)

    def forget(self, connection: HttpConnection) -> None:
        assert self._server is not None
        self._connections.discard(connection)
        self._server.admission.sign_out(connection.number)

    def close(self) -> None:
        for connection in tuple(self._connections):
            connection.close()


def _import_http_server() -> type[HttpServer]:
    from nplt_gateway.http_protocol import HttpServer

    return HttpServer
