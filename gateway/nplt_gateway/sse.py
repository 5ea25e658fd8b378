"""Server-sent events: a response that goes on while an answer is made.

A comment is sent when nothing else was for a while, so that no proxy takes the connection for
dead. A client that goes away ends the response; the caller decides what becomes of its turn.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Final

import anyio
import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from nplt_gateway.http_connection import HttpConnection
from nplt_protocol import JsonObject

HEARTBEAT_SECONDS: Final = 15.0
DONE: Final = b"data: [DONE]\n\n"
_HEARTBEAT: Final = b": keep-alive\n\n"
_HEADERS: Final = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-store",
    "x-accel-buffering": "no",  # else nginx collects the events
}


def data_event(content: JsonObject) -> bytes:
    return b"data: " + orjson.dumps(content) + b"\n\n"


def named_event(name: str, content: JsonObject) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + orjson.dumps(content) + b"\n\n"


class EventStream(Response):
    """Sends the events that a generator yields. The generator is closed when the client has gone
    away, at whatever it waits for."""

    def __init__(
        self, events: AsyncGenerator[bytes, None], headers: Mapping[str, str] | None = None
    ) -> None:
        self.status_code = 200
        self.background = None
        self._events = events
        self._sent_at = time.monotonic()
        self.init_headers({**_HEADERS, **(headers or {})})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        connection: HttpConnection = scope["state"]["connection"]
        with connection.cancelled_when_lost():
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._send_heartbeats, send)
                async with aclosing(self._events) as events:
                    async for data in events:
                        await send({"type": "http.response.body", "body": data, "more_body": True})
                        self._sent_at = time.monotonic()
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                tasks.cancel_scope.cancel()

    async def _send_heartbeats(self, send: Send) -> None:
        while True:
            silence = time.monotonic() - self._sent_at
            await anyio.sleep(max(HEARTBEAT_SECONDS - silence, 0.1))
            if time.monotonic() - self._sent_at >= HEARTBEAT_SECONDS:
                await send({"type": "http.response.body", "body": _HEARTBEAT, "more_body": True})
                self._sent_at = time.monotonic()
