"""The one door to I/O: a connection on an asyncio transport.

Bytes are decoded as they come and handed over in batches. What the owner
hasn't taken yet is bounded, and so are the replies a peer doesn't read: beyond
that, reading pauses. A peer that stops in the middle of a message meets a
deadline, which runs only while we read. Timers exist only while needed; an
idle stream is small. The writing half is in `sending`. Which requests and
replies there are is not known here.
"""

from __future__ import annotations

import asyncio
import socket
import ssl as tls
import threading
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar, cast

from nplt_protocol.connection import ConnectionRefused
from nplt_protocol.deadline import Deadline
from nplt_protocol.frame_log import FrameLog
from nplt_protocol.inbox import Inbox
from nplt_protocol.limits import WireLimits
from nplt_protocol.sending import SendingSide

READ_BYTES = 64 * 1024
SLICE_BYTES = 4096
"""Decoded at a time: one read may hold fifty thousand tiny requests, and each
becomes a value a hundred times its size."""
LINGER_SECONDS_MAX = 1.0
KEEPALIVE_IDLE_SECONDS = 60

Item = TypeVar("Item")
Item_co = TypeVar("Item_co", covariant=True)


class FrameConnection(Protocol[Item_co]):
    """What a stream needs of a connection, the server's or the client's."""

    @property
    def has_partial(self) -> bool: ...
    def receive_data(self, data: bytes) -> Sequence[Item_co]: ...
    def data_to_send(self) -> bytes: ...


class FrameStream(asyncio.BufferedProtocol, Generic[Item]):
    __slots__ = (
        "__weakref__",
        "_backlog",
        "_buffer",
        "_close_watch",
        "_closing",
        "_deadline",
        "_deaf",
        "_inbox",
        "_limits",
        "_log",
        "_loop",
        "_news",
        "_read_paused",
        "_sending",
        "_transport",
        "closed",
        "connection",
        "eof",
        "last_received",
        "lingers",
        "lost_because",
    )

    def __init__(
        self,
        connection: FrameConnection[Item],
        *,
        limits: WireLimits,
        log: Callable[[str], None] | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.connection = connection
        self.eof = self.closed = False
        self.lost_because: str | None = None
        self.last_received = loop.time()
        self.lingers = True
        """Who was called hears the caller out; who called may just hang up."""
        self._loop = loop
        self._buffer = _read_buffer()
        self._limits = limits
        self._log = FrameLog(log) if log is not None else None
        self._transport: asyncio.Transport | None = None
        self._sending = SendingSide(loop, limits, self._stalled)
        self._news = News(loop)
        self._inbox: Inbox[Item | ConnectionRefused] = Inbox()
        self._backlog = b""
        self._deaf = self._closing = self._read_paused = False
        self._deadline = Deadline(loop, limits.message_seconds_max, self._message_is_late)
        self._close_watch: asyncio.TimerHandle | None = None

    # -- for the owner ---------------------------------------------------------

    @property
    def peer(self) -> tuple[str, int] | None:
        name = self._transport and self._transport.get_extra_info("peername")
        return (name[0], name[1]) if isinstance(name, tuple) else None

    @property
    def last_sent(self) -> float:
        return self._sending.last_sent

    @property
    def unsent_bytes(self) -> int:
        return self._sending.unsent_bytes

    @property
    def replies_pile_up(self) -> bool:
        """The peer asks faster than it reads: better wait with the next answer."""
        return self._sending.replies_pile_up

    async def receive(self) -> list[Item | ConnectionRefused]:
        """The next batch; empty once the peer has said its last word or is gone."""
        while not self._inbox:
            if self._deaf or ((self.eof or self.closed) and not self._backlog):
                return []
            await self._news.comes()
        batch = self._inbox.take()
        self._decode_backlog()
        return batch

    def send(self, data: bytes) -> None:
        """A reply: never dropped, unless the connection is gone."""
        if self._log is not None:
            self._log.went(data)
        self._sending.add_reply(data)

    def send_event(self, data: bytes) -> bool:
        """False, and not sent, when too much already waits for a slow reader."""
        sent = self._sending.add_event(data)
        if sent and self._log is not None:
            self._log.went(data)
        return sent

    async def drain(self) -> None:
        """Until what was sent is on its way, but for a small rest."""
        self._sending.flush()
        while self._sending.is_blocked and not self.closed:
            await self._news.comes()

    def close_soon(self) -> None:
        """Says what is still queued, then closes; by force at the write deadline."""
        if self._transport is None:
            self.connection_lost(None)
        elif not (self._closing or self.closed):
            self._begin_closing(self._transport)

    async def close(self) -> None:
        self.close_soon()
        await self.wait_closed()

    async def wait_closed(self) -> None:
        while not self.closed:
            await self._news.comes()

    def abort(self, because: str | None = None) -> None:
        self.lost_because = self.lost_because or because
        if self._transport is not None:
            self._transport.abort()
        self._inbox.take()
        self._backlog = b""
        self.connection_lost(None)

    # -- reading ---------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(self._buffer[:nbytes]))

    def data_received(self, data: bytes) -> None:
        self.last_received = self._loop.time()
        if self._log is not None:
            self._log.came(data)
        if not self._deaf:
            self._backlog = self._backlog + data if self._backlog else data
            self._decode_backlog()

    def eof_received(self) -> bool:
        self.eof = True
        self._deadline.pause()
        self._news.tell()
        # Half-closed, as `nc -N` does it: answers can still go out. TLS can't.
        is_tls = self._transport and self._transport.get_extra_info("sslcontext")
        return not (self._closing or is_tls)

    def _decode_backlog(self) -> None:
        """As far as the owner takes, and the peer reads."""
        data, done, progress = self._backlog, 0, False
        # While we read there is room: reading pauses when there is none.
        full = self._is_full() if self._read_paused or self.eof else False
        while done < len(data) and not full:
            piece = data[done : done + SLICE_BYTES] if len(data) > SLICE_BYTES else data
            done += len(piece)
            batch = self.connection.receive_data(piece)
            answers = self.connection.data_to_send()
            self._inbox.read(len(piece))
            if answers:
                self._answer(answers)
            if batch:
                self._inbox.add(batch)
                self._deaf = isinstance(batch[-1], ConnectionRefused)
            progress = progress or bool(batch or answers)
            full = self._is_full()
        self._backlog = b"" if self._deaf else data[done:]
        if done:
            self._sending.flush()
        if self._inbox:
            self._news.tell()
        if self._read_paused != (full or bool(self._backlog)):
            self._regulate_reading(not self._read_paused)
        self._watch_partial(progress)

    def _answer(self, data: bytes) -> None:
        self._inbox.answered()
        self._sending.add_answer(data)
        if self._log is not None:
            self._log.went(data)

    def _is_full(self) -> bool:
        return self._deaf or self._inbox.is_full or self._sending.replies_pile_up

    def _regulate_reading(self, pause: bool) -> None:
        if self._closing or self.closed or self.eof or self._transport is None:
            return
        self._read_paused = pause
        if pause:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _watch_partial(self, progress: bool) -> None:
        # While we don't read, an unfinished message is not the peer's fault.
        if self._read_paused or self.eof or self.closed or not self.connection.has_partial:
            self._deadline.pause()
        elif progress or not self._deadline.is_running:
            self._deadline.restart()

    def _message_is_late(self) -> None:
        self._deaf = True
        within = f"within {self._limits.message_seconds_max:g} s"
        reason = f"A message was begun and not finished {within}."
        self._inbox.add([ConnectionRefused(reason=reason)])
        self._regulate_reading(True)
        self._news.tell()

    # -- the transport's side ----------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not asserted: uvloop's transports are no subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self._sending.start(self._transport)
        endpoint = transport.get_extra_info("socket")
        if endpoint is not None and endpoint.family in (socket.AF_INET, socket.AF_INET6):
            _tune(endpoint)

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self.lost_because = self.lost_because or str(exc) or type(exc).__name__
        self.closed = True
        self._sending.stop()
        self._deadline.cancel()
        if self._close_watch is not None:
            self._close_watch.cancel()
            self._close_watch = None
        self._decode_backlog()
        self._news.tell()

    def pause_writing(self) -> None:
        self._sending.block()

    def resume_writing(self) -> None:
        self._sending.unblock()
        self._decode_backlog()
        self._news.tell()

    def _stalled(self) -> None:
        self.abort(f"the peer took nothing for {self._limits.write_seconds_max:g} s")

    def _begin_closing(self, transport: asyncio.Transport) -> None:
        silent_for = self._loop.time() - self.last_received
        peer_is_talking = self._read_paused or silent_for < LINGER_SECONDS_MAX
        self._closing = self._deaf = True
        self._backlog = b""
        self._deadline.cancel()
        self._sending.finish()
        if self.eof or not (self.lingers and peer_is_talking and transport.can_write_eof()):
            self._end_closing()
            return
        # Closing while bytes come in would reset the connection, and our last words
        # might be lost with it: stop talking, and hear the peer out for a moment.
        transport.write_eof()
        if self._read_paused:
            transport.resume_reading()
        self._close_watch = self._loop.call_later(LINGER_SECONDS_MAX, self._end_closing)

    def _end_closing(self) -> None:
        if self._transport is not None and not self.closed:
            self._transport.close()
            seconds = self._limits.write_seconds_max
            self._close_watch = self._loop.call_later(seconds, self.abort, "closing took too long")


_of_this_thread = threading.local()


def _read_buffer() -> memoryview:
    """One for all streams of a thread: what is read is copied out at once. Left
    to itself, asyncio asks the system for 256 KiB for every read, and gives
    them back, which costs more than reading small messages does."""
    buffer: memoryview | None = getattr(_of_this_thread, "buffer", None)
    if buffer is None:
        buffer = _of_this_thread.buffer = memoryview(bytearray(READ_BYTES))
    return buffer


class News:
    """Something about the stream has changed: look again."""

    __slots__ = ("_loop", "_waiters")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiters: list[asyncio.Future[None]] = []

    async def comes(self) -> None:
        waiter = self._loop.create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def tell(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


def _tune(endpoint: socket.socket) -> None:
    endpoint.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    endpoint.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        endpoint.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_SECONDS)


async def open_stream(
    host: str,
    port: int,
    connection: FrameConnection[Item],
    *,
    limits: WireLimits,
    ssl: tls.SSLContext | None = None,
    timeout: float = 10.0,
) -> FrameStream[Item]:
    """Connects; OSError (or TimeoutError, which is one) when nobody answers."""
    loop = asyncio.get_running_loop()
    stream = FrameStream(connection, limits=limits)
    stream.lingers = False
    async with asyncio.timeout(timeout):
        # A name may stand for several addresses; don't wait long for a dead one.
        await loop.create_connection(lambda: stream, host, port, ssl=ssl, happy_eyeballs_delay=0.25)
    return stream
