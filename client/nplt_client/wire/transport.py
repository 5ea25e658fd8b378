"""Runs a `WireSession` over asynchronous sockets, with anyio.

`SessionRunner` connects when the session wants a connection, passes received messages to it,
sends its data, and calls it when its next time has come. All of that happens in one task
(`_run`), which belongs to the task group that `connect` opens. Callers wait with `result`
for an exchange and with `next_event` for an event; a slow reader never blocks the task.
"""

from __future__ import annotations

import logging
import math
import mimetypes
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

import anyio
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from nplt_client.errors import (
    ConfigurationError,
    ConnectionLost,
    NpltError,
    ProtocolViolation,
)
from nplt_client.settings import Address, current_address
from nplt_client.wire.blocking import read_file
from nplt_client.wire.reconnect_policy import ConnectionState
from nplt_client.wire.replay import AnyReply
from nplt_client.wire.wire_session import (
    INCOMING,
    Awaited,
    EventQueue,
    Exchange,
    Phase,
    WireSession,
    connect_error,
)
from nplt_protocol.connection import ReceivedByClient
from nplt_protocol.frames import FRAME_PAYLOAD_BYTES_MAX
from nplt_protocol.messages import Event, FileMetadata, Request
from nplt_protocol.stream import FrameStream, open_stream, stream_over

if TYPE_CHECKING:  # few connections go over ssh
    from nplt_client.wire.ssh import SshLink

T = TypeVar("T")

_LOOK_AGAIN_SECONDS = 0.5
"""A client that lost the server of this user looks this often whether another one runs."""

_log = logging.getLogger(__name__)


class SessionRunner:
    def __init__(
        self,
        session: WireSession,
        address: Address,
        *,
        on_connection: Callable[[ConnectionState], object] | None = None,
    ) -> None:
        self.session = session
        self._address = address
        self._on_connection = on_connection
        self._stream: FrameStream[ReceivedByClient] | None = None
        self._ssh: SshLink | None = None
        self._opened = anyio.Event()
        self._woken = anyio.Event()
        # Shielded, so that clean-up code after a cancellation can still use the connection.
        # `close` cancels it.
        self._scope = anyio.CancelScope(shield=True)

    async def open(self, task_group: TaskGroup) -> None:
        self.session.start()
        task_group.start_soon(self._run, name="nplt-client")
        await self._opened.wait()
        if self.session.end is not None:
            raise self.session.end

    def close(self) -> None:
        self.session.close()
        self._scope.cancel()
        self._flush()

    def retry_now(self, address: Address | None = None) -> None:
        """Makes the next attempt now, at the new address of the server if one is given."""
        self._address = address or self._address
        self.session.retry_now(anyio.current_time())
        self._woken.set()

    # For callers

    async def request(self, request: Request, *, timeout: float | None) -> AnyReply:
        exchange = self.session.request(request, anyio.current_time(), timeout=timeout)
        return await self.result(exchange)

    async def result(self, exchange: Exchange[T]) -> T:
        self._flush()
        try:
            while not exchange.is_done:
                await self._wait(exchange, exchange.deadline)
        finally:
            if not exchange.is_done:
                self.session.forget(exchange)
        return exchange.result()

    async def next_event(self, events: EventQueue) -> Event | None:
        """Returns the next event; `None` at the end. If it is cancelled, no event is lost."""
        while not events.is_ready:
            await self._wait(events, None)
        return events.take()

    async def upload(
        self,
        source: str | Path | bytes,
        *,
        filename: str | None = None,
        content_type: str | None = None,
        purpose: Literal["attachment", "import"] = "attachment",
    ) -> AnyReply:
        """Sends a file. All of it is read first, so that the announced size is right."""
        fetched = source if isinstance(source, str) and source[:4] == "mcp:" else None
        if fetched is not None:
            name, content = filename or "fetched", b""
        elif isinstance(source, bytes):
            name, content = filename or "upload", source
        else:
            name = filename or Path(source).name
            content = await anyio.to_thread.run_sync(read_file, Path(source))
        description = FileMetadata(
            filename=name,
            size=len(content),
            content_type=content_type or mimetypes.guess_type(name)[0],
            purpose=purpose,
            source=fetched,
        )
        timeout = self.session.timeout
        exchange = self.session.request(description, anyio.current_time(), timeout=timeout)
        self._flush()
        try:
            while exchange.seq is None and not exchange.is_done:
                await self._wait(exchange, exchange.deadline)
            exchange.set_deadline(None)
            for start in range(0, len(content), FRAME_PAYLOAD_BYTES_MAX):
                if exchange.is_done:  # the server may have refused the metadata
                    break
                piece = content[start : start + FRAME_PAYLOAD_BYTES_MAX]
                self.session.send_file_data(exchange, piece)
                self._flush()
                if self._stream is not None:
                    await self._stream.drain()
            return await self.result(exchange)
        finally:
            self.session.forget(exchange)

    async def _wait(self, awaited: Awaited, deadline: float | None) -> None:
        if awaited.waiter is None:
            awaited.waiter = anyio.Event()
        waiter = awaited.waiter
        if deadline is None:
            await waiter.wait()
            return
        with anyio.CancelScope(deadline=deadline) as scope:
            await waiter.wait()
        if scope.cancelled_caught:
            self.session.check_time(anyio.current_time())
            self._flush()

    # The task

    async def _run(self) -> None:
        with self._scope:
            try:
                while self.session.phase is not Phase.CLOSED:
                    await self._step()
            except Exception as error:
                # A bug in this code must fail the pending requests, not leave them waiting.
                violation = ProtocolViolation(f"the client failed: {error!r}")
                violation.__cause__ = error
                self.session.close(violation)
            finally:
                self._flush()
                with anyio.CancelScope(shield=True):
                    await self._drop_stream()

    async def _step(self) -> None:
        session = self.session
        session.check_time(anyio.current_time())
        if self._stream is not None and self._stream.connection is not session.connection:
            await self._drop_stream()
        self._flush()
        if session.wants_connection:
            await self._connect()
        elif self._stream is not None:
            await self._receive(self._stream)
        elif session.phase is Phase.WAITING:
            self._woken = anyio.Event()
            with anyio.CancelScope(deadline=self._next_time()):
                await self._wait_for_server()
        self._flush()

    async def _connect(self) -> None:
        session, context = self.session, None
        address = self._address = current_address(self._address)
        connection = session.open_connection(address)
        try:
            if address.over_ssh:
                from nplt_client.wire.ssh import SshLink

                may_ask = not self._opened.is_set()
                self._ssh = await anyio.to_thread.run_sync(
                    lambda: SshLink(address, may_ask=may_ask)
                )
                sock = self._ssh.socket
                self._stream = await stream_over(sock, connection, limits=INCOMING)
                session.connection_made(anyio.current_time())
                return
            if address.tls:
                from nplt_client.wire.tls import client_context

                context = client_context()
            self._stream = await open_stream(
                address.host,
                address.port,
                connection,
                limits=INCOMING,
                ssl=context,
                timeout=session.timeout,
            )
        except (OSError, UnicodeError) as error:
            session.connection_lost(connect_error(address, error), anyio.current_time())
        except ConfigurationError as error:
            session.close(error)
        else:
            session.connection_made(anyio.current_time())

    async def _receive(self, stream: FrameStream[ReceivedByClient]) -> None:
        """Receives until the session's next time, or until the connection is lost."""
        session = self.session
        with anyio.CancelScope(deadline=self._next_time()) as scope:
            while batch := await stream.receive():
                session.receive(batch, anyio.current_time())
                self._flush()
                if stream.connection is not session.connection:
                    return
                # A later time needs no new timer: the old one is checked when it fires.
                if (next_time := self._next_time()) < scope.deadline:
                    scope.deadline = next_time
            if stream.connection is session.connection:
                session.connection_lost(await self._why_lost(), anyio.current_time())
            return
        session.bytes_received(stream.last_received)

    async def _why_lost(self) -> NpltError:
        link, at_the_start = self._ssh, self.session.phase is Phase.GREETING
        if link is None:
            return ConnectionLost("the server closed the connection")
        return await anyio.to_thread.run_sync(lambda: link.why_lost(at_the_start=at_the_start))

    async def _wait_for_server(self) -> None:
        """Waits to be woken, or until the server of this user runs at another address."""
        while not self._woken.is_set():
            with anyio.move_on_after(_LOOK_AGAIN_SECONDS if self._address.is_default else math.inf):
                await self._woken.wait()
            if current_address(self._address) != self._address:
                self.session.retry_now(anyio.current_time())
                return

    def _next_time(self) -> float:
        next_time = self.session.next_time()
        return math.inf if next_time is None else next_time

    async def _drop_stream(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.abort()
            await checkpoint()  # the transport closes its socket in the next tick

    def _flush(self) -> None:
        """Sends the session's data and reports its new states; called after each call of the
        session."""
        session, stream = self.session, self._stream
        if stream is not None:
            if stream.connection is not session.connection:
                stream.abort()
            elif data := session.data_to_send():
                stream.send(data)
        for state in session.take_states():
            try:
                if self._on_connection is not None:
                    self._on_connection(state)
            except Exception:
                # A bug in the caller's callback is logged, and the connection goes on.
                _log.exception("on_connection failed")
        if session.is_online or session.end is not None:
            self._opened.set()


class EventFeed:
    """All events of the attached conversation, from the call of `Client.events` on."""

    def __init__(self, runner: SessionRunner) -> None:
        self._runner = runner
        self._events = runner.session.feed()

    def __aiter__(self) -> EventFeed:
        return self

    async def __anext__(self) -> Event:
        event = await self._runner.next_event(self._events)
        if event is None:
            raise StopAsyncIteration
        return event

    async def aclose(self) -> None:
        self._events.close()
