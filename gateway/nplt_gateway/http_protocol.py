"""HTTP/1.1 and WebSockets on one connection: uvicorn's protocol classes, with stricter rules.

uvicorn parses requests and runs the application. Added here are the limits that it lacks: a
deadline for the head of a request, one for a peer that does not read its response, and one for the
rest of a refused body. Lines of a header that continue on the next line (obs-fold, RFC
9112, 5.2) are refused, because two parsers may read them differently.
"""

from __future__ import annotations

import asyncio
import re
from email.utils import formatdate
from functools import lru_cache
from time import time
from typing import Any, Final

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState

from nplt_gateway.application import Application
from nplt_gateway.http_connection import HttpConnection
from nplt_protocol.stream import Deadline
from nplt_server.app import Server

HEAD_SECONDS_MAX: Final = 10.0
HEAD_BYTES_MAX: Final = 32 * 1024
_UNWANTED_BODY_SECONDS_MAX: Final = 2.0
"""How long the rest of a refused body is read, so that the client gets the refusal."""
_IDLE_SECONDS_MAX: Final = 75
_WEBSOCKET_SLACK_BYTES: Final = 128 * 1024
_FOLDED: Final = re.compile(rb"\n[ \t]")
_HEAD_ENDS: Final = re.compile(rb"\r?\n\r?\n")


class HttpServer:
    """Makes the protocols of connections; made once, with the first of them."""

    def __init__(self, server: Server, *, has_api: bool, has_metrics: bool) -> None:
        limits = server.services.limits
        self.write_seconds_max = limits.write_seconds_max
        self._state = ServerState()
        self._config = Config(
            Application(server, has_api=has_api, has_metrics=has_metrics),
            http=HttpProtocol,
            ws=WebSocketProtocol,
            interface="asgi3",
            lifespan="off",
            log_config=None,
            log_level="critical",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=_IDLE_SECONDS_MAX,
            h11_max_incomplete_event_size=HEAD_BYTES_MAX,
            ws_max_size=limits.message_bytes_max + _WEBSOCKET_SLACK_BYTES,
            ws_per_message_deflate=False,
        )
        self._config.load()

    def protocol_for(self, connection: HttpConnection) -> HttpProtocol:
        state = {"connection": connection, "write_seconds_max": self.write_seconds_max}
        connection.protocol = HttpProtocol(self._config, self._state, state)
        return connection.protocol


@lru_cache(maxsize=1)
def date_header(now: int) -> list[tuple[bytes, bytes]]:
    return [(b"date", formatdate(now, usegmt=True).encode())]


class HttpProtocol(H11Protocol):
    def __init__(
        self, config: Config, server_state: ServerState, app_state: dict[str, Any]
    ) -> None:
        super().__init__(config, server_state, app_state)
        loop, seconds = asyncio.get_running_loop(), app_state["write_seconds_max"]
        self._connection: HttpConnection = app_state["connection"]
        self._head_due = Deadline(loop, HEAD_SECONDS_MAX, self._abort)
        self._read_due = Deadline(loop, seconds, self._abort)
        self._body_due = Deadline(loop, _UNWANTED_BODY_SECONDS_MAX, self._abort)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_due.restart()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_deadlines()
        super().connection_lost(exc)
        self._connection.lost()

    def handle_events(self) -> None:
        if self.conn.their_state is h11.IDLE:
            head = _HEAD_ENDS.split(self.conn.trailing_data[0], 1)[0]
            if len(head) > HEAD_BYTES_MAX:
                self.send_400_response(f"The headers are longer than {HEAD_BYTES_MAX} bytes.")
                return
            if _FOLDED.search(head):
                self.send_400_response("A header must not continue on the next line.")
                return
        self.server_state.default_headers = date_header(int(time()))
        super().handle_events()
        if self.conn.their_state is not h11.IDLE:
            self._head_due.pause()
        elif self.conn.trailing_data[0] and not self._head_due.is_running:
            self._head_due.restart()
        if self.conn.their_state is not h11.SEND_BODY:
            self._body_due.pause()
        if self.conn.their_state is h11.DONE and not self.conn.trailing_data[0]:
            self.flow.resume_reading()  # to notice at once that the client goes away

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self._end_deadlines()
        super().handle_websocket_upgrade(event)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY:
            self._body_due.restart()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._read_due.restart()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._read_due.pause()

    def _abort(self) -> None:
        self.transport.abort()

    def _end_deadlines(self) -> None:
        for deadline in (self._head_due, self._read_due, self._body_due):
            deadline.cancel()


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """A WebSocket. Its session limits the bytes that wait, and ends it."""

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        connection: HttpConnection = self.app_state["connection"]
        connection.lost()
