"""An accepted connection over HTTP: its limits, its user, and its session if it is a WebSocket."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import anyio

from nplt_gateway.errors import ApiError
from nplt_protocol import ErrorCode
from nplt_server.connections.session import Session


class ConnectionHolder(Protocol):
    """The door that has accepted the connection."""

    def forget(self, connection: HttpConnection) -> None: ...


class RequestProtocol(Protocol):
    """uvicorn's protocol of the connection."""

    transport: asyncio.Transport

    def shutdown(self) -> None: ...


class HttpConnection:
    """An accepted connection, as admission counts it."""

    __slots__ = (
        *("_door", "_scopes", "address", "client_address", "is_lost", "number"),
        *("protocol", "refusal", "session", "user"),
    )

    def __init__(self, door: ConnectionHolder, address: str, refusal: ApiError | None) -> None:
        self._door = door
        self._scopes: set[anyio.CancelScope] = set()
        self.number = 0
        self.address = address
        self.client_address = address
        """The client of the current request, if a proxy names it in the request's headers."""
        self.refusal = refusal
        """The reason for which all its requests are refused."""
        self.user = ""
        """The user of its last request; empty before the first one was authenticated."""
        self.protocol: RequestProtocol | None = None
        self.session: Session | None = None
        """The session of a WebSocket."""
        self.is_lost = False

    @property
    def is_authenticated(self) -> bool:
        return bool(self.user) if self.session is None else self.session.is_authenticated

    @property
    def is_undecided(self) -> bool:
        return not self.user if self.session is None else self.session.is_undecided

    def send_away(self, reason: str, code: ErrorCode = ErrorCode.UNAVAILABLE) -> None:
        if self.session is not None:
            self.session.send_away(reason, code)
        elif self.protocol is not None:
            self.protocol.transport.abort()
        self.lost()

    def close(self) -> None:
        """Closes it once its response is sent. A WebSocket is closed by its session."""
        if self.protocol is not None and self.session is None:
            self.protocol.shutdown()

    @contextmanager
    def cancelled_when_lost(self) -> Iterator[anyio.CancelScope]:
        """Cancels its block if the client goes away."""
        with anyio.CancelScope() as scope:
            if self.is_lost:
                scope.cancel()
            self._scopes.add(scope)
            try:
                yield scope
            finally:
                self._scopes.remove(scope)

    def lost(self) -> None:
        if not self.is_lost:
            self.is_lost = True
            self._door.forget(self)
            for scope in self._scopes:
                scope.cancel()
