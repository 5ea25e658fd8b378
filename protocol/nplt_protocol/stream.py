"""A connection on an asyncio transport: reads and writes the frames of this package.

`FrameStream` owns a connection without I/O (the server's or the client's) and
moves its bytes.

Reading: bytes are decoded as they arrive and given to the owner in batches.
Items that the owner has not received yet are bounded, and so are replies that
the peer does not read; beyond these bounds, reading pauses. An unfinished
message has a deadline, which runs only while we read.

Writing: all data sent in one tick of the loop leaves in one write. Replies are
never dropped. Events are refused when too many bytes of them wait for a slow
reader; the owner then sends the client `lagged`. A peer that reads nothing until
the write deadline is disconnected.

Timers exist only while they are needed. Messages are not interpreted here.
"""

from __future__ import annotations

import asyncio
import socket
import ssl as tls
import threading
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar, cast

from nplt_protocol.connection import ConnectionRefused
from nplt_protocol.frames import FrameDecoder, WireLimits

READ_BYTES = 64 * 1024
SLICE_BYTES = 4096
"""The bytes that are decoded at a time: one read may hold ten thousand tiny requests, and
each becomes a value a hundred times its size."""
INBOX_ITEMS_MAX = 256
INBOX_BYTES_MAX = 1024 * 1024
TRANSPORT_BYTES_MAX = 64 * 1024
UNSENT_REPLY_BYTES_MAX = 256 * 1024
LINGER_SECONDS_MAX = 1.0
KEEPALIVE_IDLE_SECONDS = 60
_CHECKS_PER_DEADLINE = 4

Item = TypeVar("Item")
Item_co = TypeVar("Item_co", covariant=True)


class FrameConnection(Protocol[Item_co]):
    """The interface of a connection, the server's or the client's, that a stream needs."""

    @property
    def has_partial(self) -> bool: ...
    def receive_data(self, data: bytes) -> Sequence[Item_co]: ...
    def data_to_send(self) -> bytes: ...


async def open_stream(
    host: str,
    port: int,
    connection: FrameConnection[Item],
    *,
    limits: WireLimits,
    ssl: tls.SSLContext | None = None,
    timeout: float = 10.0,
) -> FrameStream[Item]:
    """Connects. Raises OSError, which includes TimeoutError, if that fails."""
    loop = asyncio.get_running_loop()
    stream = FrameStream(connection, limits=limits)
    stream.lingers = False
    # A host name may have several addresses, so the next one is tried soon. This is not done
    # for an address: asyncio's happy eyeballs leak a connected socket when cancelled. uvloop
    # does not know the argument.
    delay = None
    try:
        socket.getaddrinfo(host, None, flags=socket.AI_NUMERICHOST)
    except OSError:
        delay = 0.25 if isinstance(loop, asyncio.BaseEventLoop) else None
    async with asyncio.timeout(timeout):
        if delay is None:
            await loop.create_connection(lambda: stream, host, port, ssl=ssl)
        else:
            await loop.create_connection(
                lambda: stream, host, port, ssl=ssl, happy_eyeballs_delay=delay
            )
    return stream


async def stream_over(
    connected: socket.socket, connection: FrameConnection[Item], *, limits: WireLimits
) -> FrameStream[Item]:
    """Uses a socket that is connected already, and closes it at the end."""
    stream = FrameStream(connection, limits=limits)
    stream.lingers = False
    await asyncio.get_running_loop().create_connection(lambda: stream, sock=connected)
    return stream


class FrameStream(asyncio.BufferedProtocol, Generic[Item]):
    """Moves the bytes of one connection. Its owner calls `receive`, `send`, `send_event`,
    `drain` and `close`; asyncio calls the other public methods."""

    __slots__ = (
        "__weakref__",
        "_backlog",
        "_buffer",
        "_changed",
        "_close_watch",
        "_closing",
        "_deadline",
        "_inbox",
        "_inbox_bytes",
        "_input_ended",
        "_limits",
        "_log",
        "_loop",
        "_partial_bytes",
        "_read_paused",
        "_transport",
        "_writer",
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
        """Whether closing reads on for a moment, so that the peer gets the last bytes."""
        self._loop = loop
        self._buffer = _read_buffer()
        self._limits = limits
        self._log = FrameLog(log) if log is not None else None
        self._transport: asyncio.Transport | None = None
        self._writer = Writer(loop, limits, self._stalled)
        self._changed = Notifier(loop)
        self._inbox: list[Item | ConnectionRefused] = []
        """Items that the owner has not received yet. Their number is limited as well as their
        bytes, since a tiny request becomes a value a hundred times its size."""
        self._inbox_bytes = self._partial_bytes = 0
        """Bytes of the items in the inbox, and bytes of an item that is not complete."""
        self._backlog = b""
        self._input_ended = self._closing = self._read_paused = False
        self._deadline = Deadline(loop, limits.message_seconds_max, self._message_is_late)
        self._close_watch: asyncio.TimerHandle | None = None

    # For the owner.

    @property
    def peer(self) -> tuple[str, int] | None:
        name = self._transport and self._transport.get_extra_info("peername")
        return (name[0], name[1]) if isinstance(name, tuple) else None

    @property
    def last_sent(self) -> float:
        return self._writer.last_sent

    @property
    def unsent_bytes(self) -> int:
        return self._writer.unsent_bytes

    @property
    def replies_pile_up(self) -> bool:
        """Whether the peer does not read its replies: wait before sending another."""
        return self._writer.replies_pile_up

    @property
    def has_received(self) -> bool:
        """Whether the next `receive` returns at once."""
        return bool(self._inbox)

    async def receive(self) -> list[Item | ConnectionRefused]:
        """Returns the next batch; an empty one at the end of the stream."""
        while not self._inbox:
            if self._input_ended or ((self.eof or self.closed) and not self._backlog):
                return []
            await self._changed.wait()
        batch = self._take_inbox()
        if self._backlog or self._read_paused:
            self._decode_backlog()
        return batch

    def send(self, data: bytes) -> None:
        """Sends a reply, which is never dropped unless the connection is lost."""
        if self._log is not None:
            self._log.sent(data)
        self._writer.add_reply(data)

    def send_event(self, data: bytes) -> bool:
        """Sends an event. Returns False, and drops it, if too many bytes of events wait."""
        sent = self._writer.add_event(data)
        if sent and self._log is not None:
            self._log.sent(data)
        return sent

    def flush(self) -> None:
        """Writes the queued data now, not at the end of this tick."""
        self._writer.flush()

    async def drain(self) -> None:
        """Waits until the transport accepts more data."""
        self._writer.flush()
        while self._writer.is_blocked and not self.closed:
            await self._changed.wait()

    def close_soon(self) -> None:
        """Sends the queued data, then closes; aborts at the write deadline."""
        if self._transport is None:
            self.connection_lost(None)
        elif not (self._closing or self.closed):
            self._begin_closing(self._transport)

    async def close(self) -> None:
        self.close_soon()
        await self.wait_closed()

    async def wait_closed(self) -> None:
        while not self.closed:
            await self._changed.wait()

    def abort(self, because: str | None = None) -> None:
        self.lost_because = self.lost_because or because
        if self._transport is not None:
            self._transport.abort()
        self._take_inbox()
        self._backlog = b""
        self.connection_lost(None)

    # Reading.

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(self._buffer[:nbytes]))

    def data_received(self, data: bytes) -> None:
        self.last_received = self._loop.time()
        if self._log is not None:
            self._log.received(data)
        if not self._input_ended:
            self._backlog = self._backlog + data if self._backlog else data
            self._decode_backlog()

    def eof_received(self) -> bool:
        self.eof = True
        self._deadline.pause()
        self._changed.notify()
        # The peer may have closed only its own side (`nc -N`), and replies can still be sent.
        # TLS has no half-closed state.
        is_tls = self._transport and self._transport.get_extra_info("sslcontext")
        return not (self._closing or is_tls)

    def _decode_backlog(self) -> None:
        """Decodes until the inbox is full or too many replies are unread by the peer."""
        data, done, progress, has_replied = self._backlog, 0, False, False
        # Reading pauses when the inbox is full, so while we read there is room.
        full = self._is_full() if self._read_paused or self.eof else False
        while done < len(data) and not full:
            piece = data[done : done + SLICE_BYTES] if len(data) > SLICE_BYTES else data
            done += len(piece)
            batch = self.connection.receive_data(piece)
            automatic = self.connection.data_to_send()
            self._partial_bytes += len(piece)
            if automatic:
                has_replied = True
                self._partial_bytes = 0  # a PING puts no item into the inbox
                self._writer.add_automatic_reply(automatic)
                if self._log is not None:
                    self._log.sent(automatic)
            if batch:
                self._inbox.extend(batch)
                self._inbox_bytes += self._partial_bytes
                self._partial_bytes = 0
                self._input_ended = isinstance(batch[-1], ConnectionRefused)
            progress = progress or bool(batch or automatic)
            full = self._is_full()
        self._backlog = b"" if self._input_ended else data[done:]
        if has_replied:
            self._writer.flush()
        if self._inbox:
            self._changed.notify()
        if self._read_paused != (full or bool(self._backlog)):
            self._regulate_reading(not self._read_paused)
        # While we don't read, the peer can't finish its message.
        if self._read_paused or self.eof or self.closed or not self.connection.has_partial:
            self._deadline.pause()
        elif progress or not self._deadline.is_running:
            self._deadline.restart()

    def _take_inbox(self) -> list[Item | ConnectionRefused]:
        batch, self._inbox, self._inbox_bytes = self._inbox, [], 0
        return batch

    def _is_full(self) -> bool:
        inbox_is_full = len(self._inbox) > INBOX_ITEMS_MAX or self._inbox_bytes > INBOX_BYTES_MAX
        if self._input_ended or inbox_is_full:
            return True
        return self._writer.is_blocked and self._writer.replies_pile_up

    def _regulate_reading(self, pause: bool) -> None:
        if self._closing or self.closed or self.eof or self._transport is None:
            return
        self._read_paused = pause
        if pause:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _message_is_late(self) -> None:
        self._input_ended = True
        within = f"within {self._limits.message_seconds_max:g} s"
        reason = f"A message was begun and not finished {within}."
        self._inbox.append(ConnectionRefused(reason=reason))
        self._regulate_reading(True)
        self._changed.notify()

    # Callbacks of asyncio: connected, writable, lost. Closing.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, not an assertion: uvloop's transports are not subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self._writer.start(self._transport)
        endpoint = transport.get_extra_info("socket")
        if endpoint is not None and endpoint.family in (socket.AF_INET, socket.AF_INET6):
            endpoint.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            endpoint.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if hasattr(socket, "TCP_KEEPIDLE"):
                endpoint.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self.lost_because = self.lost_because or str(exc) or type(exc).__name__
        self.closed = True
        self._writer.stop()
        self._deadline.cancel()
        if self._close_watch is not None:
            self._close_watch.cancel()
            self._close_watch = None
        self._decode_backlog()
        self._changed.notify()

    def pause_writing(self) -> None:
        self._writer.is_blocked = True

    def resume_writing(self) -> None:
        self._writer.unblock()
        self._decode_backlog()
        self._changed.notify()

    def _stalled(self) -> None:
        self.abort(f"the peer took nothing for {self._limits.write_seconds_max:g} s")

    def _begin_closing(self, transport: asyncio.Transport) -> None:
        silent_for = self._loop.time() - self.last_received
        peer_is_sending = self._read_paused or silent_for < LINGER_SECONDS_MAX
        self._closing = self._input_ended = True
        self._backlog = b""
        self._deadline.cancel()
        self._writer.finish()
        if self.eof or not (self.lingers and peer_is_sending and transport.can_write_eof()):
            self._end_closing()
            return
        # Closing while bytes arrive resets the connection, and the peer may lose the last
        # frames. So we end our side, and read on for a moment.
        try:
            transport.write_eof()
        except OSError:  # the peer is gone, and asyncio has not noticed
            self._end_closing()
            return
        if self._read_paused:
            transport.resume_reading()
        self._close_watch = self._loop.call_later(LINGER_SECONDS_MAX, self._end_closing)

    def _end_closing(self) -> None:
        if self._transport is not None and not self.closed:
            self._transport.close()
            seconds = self._limits.write_seconds_max
            self._close_watch = self._loop.call_later(seconds, self.abort, "closing took too long")


# The parts of a stream.


class Writer:
    """The writing half of a stream. Bytes wait here until the end of the tick, or longer while
    the transport is full, because only here replies and events are counted separately. They
    count as unsent until the kernel has them. The deadline runs only while the transport holds
    data, and starts again with each byte that the kernel accepts."""

    __slots__ = (
        "_event_bytes",
        "_flush_due",
        "_handed_bytes",
        "_handed_event_bytes",
        "_kept",
        "_kept_bytes",
        "_limits",
        "_loop",
        "_on_stalled",
        "_progress",
        "_takes_more",
        "_transport",
        "_watch",
        "is_blocked",
        "last_sent",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limits: WireLimits,
        on_stalled: Callable[[], None],
    ) -> None:
        self.is_blocked = False
        """Whether the transport is full, so that new data is kept here."""
        self.last_sent = loop.time()
        self._loop = loop
        self._limits = limits
        self._on_stalled = on_stalled
        self._kept: list[bytes] = []
        self._kept_bytes = self._event_bytes = 0
        """The bytes that wait here, and how many of them are events."""
        self._handed_bytes = self._handed_event_bytes = 0
        """All bytes given to the transport, and the bytes of events since it was last empty."""
        self._transport: asyncio.Transport | None = None
        self._flush_due = False
        self._takes_more = True
        self._watch: asyncio.TimerHandle | None = None
        self._progress = (0, 0.0)

    def start(self, transport: asyncio.Transport) -> None:
        high = min(TRANSPORT_BYTES_MAX, self._limits.event_bytes_max)
        transport.set_write_buffer_limits(high=high, low=high // 4)
        self._transport = transport
        self._flush_soon()

    def finish(self) -> None:
        """Gives all data to the transport, even if it is full, and accepts no more."""
        self.flush(even_if_blocked=True)
        self._takes_more = False

    def stop(self) -> None:
        """Drops all data, because the connection is lost."""
        self._transport = None
        self._takes_more = self.is_blocked = False
        self._kept.clear()
        self._kept_bytes = self._event_bytes = 0
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    @property
    def unsent_bytes(self) -> int:
        return self._kept_bytes + self._transport_bytes

    @property
    def replies_pile_up(self) -> bool:
        if not self.is_blocked:
            return False
        return self.unsent_bytes - self._unsent_event_bytes > UNSENT_REPLY_BYTES_MAX

    def add_reply(self, data: bytes) -> None:
        if self._takes_more:
            self._kept.append(data)
            self._kept_bytes += len(data)
            if not self._flush_due:
                self._flush_soon()

    def add_automatic_reply(self, data: bytes) -> None:
        """Adds a reply of the connection itself, such as a PONG. The caller flushes in the same
        tick."""
        if self._takes_more:
            self._kept.append(data)
            self._kept_bytes += len(data)

    def add_event(self, data: bytes) -> bool:
        is_much = self.is_blocked or self._kept_bytes > self._limits.event_bytes_max
        if is_much and not self.is_blocked:
            self.flush()
        if not self._takes_more or (
            is_much and self._unsent_event_bytes > self._limits.event_bytes_max
        ):
            return False
        self._kept.append(data)
        self._kept_bytes += len(data)
        self._event_bytes += len(data)
        if not self._flush_due:
            self._flush_soon()
        return True

    def flush(self, *, even_if_blocked: bool = False) -> None:
        self._flush_due = False
        transport, kept = self._transport, self._kept
        if transport is None or not kept or (self.is_blocked and not even_if_blocked):
            return
        if transport.get_write_buffer_size() == 0:
            self._handed_event_bytes = 0
        self._handed_event_bytes += self._event_bytes
        self._handed_bytes += self._kept_bytes
        data = kept[0] if len(kept) == 1 else b"".join(kept)
        kept.clear()
        self._kept_bytes = self._event_bytes = 0
        transport.write(data)
        self.last_sent = self._loop.time()
        if self._watch is None and transport.get_write_buffer_size():
            self._progress = (self._sent_bytes, self.last_sent)
            self._watch_again()

    def unblock(self) -> None:
        self.is_blocked = False
        self.flush()

    def _flush_soon(self) -> None:
        if not self.is_blocked and self._transport is not None:
            self._flush_due = True
            self._loop.call_soon(self.flush)

    @property
    def _transport_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    @property
    def _unsent_event_bytes(self) -> int:
        return self._event_bytes + min(self._handed_event_bytes, self._transport_bytes)

    @property
    def _sent_bytes(self) -> int:
        """The bytes that the kernel has accepted so far; they grow as the peer reads."""
        return self._handed_bytes - self._transport_bytes

    def _watch_again(self) -> None:
        pause = self._limits.write_seconds_max / _CHECKS_PER_DEADLINE
        self._watch = self._loop.call_later(pause, self._check_progress)

    def _check_progress(self) -> None:
        self._watch = None
        if self._transport_bytes == 0:
            return
        sent, since = self._progress
        now = self._loop.time()
        if self._sent_bytes != sent:
            self._progress = (self._sent_bytes, now)
        elif now - since >= self._limits.write_seconds_max:
            self._on_stalled()
            return
        self._watch_again()


class Deadline:
    """A deadline that is moved far more often than missed. Restarting it is one assignment: a
    timer that fires too early is set again. An idle stream has no timer."""

    __slots__ = ("_loop", "_on_missed", "_seconds", "_since", "_timer")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, seconds: float, on_missed: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._seconds = seconds
        self._on_missed = on_missed
        self._since: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_running(self) -> bool:
        return self._since is not None

    def restart(self) -> None:
        self._since = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(self._seconds, self._look)

    def pause(self) -> None:
        """Does not cancel the timer, which would cost more: it will find nothing to do."""
        self._since = None

    def cancel(self) -> None:
        self._since = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        if self._since is None:
            return
        left = self._since + self._seconds - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._look)
        else:
            self._since = None
            self._on_missed()


class FrameLog:
    """Writes one line per frame: `<` for received frames, `>` for sent ones."""

    __slots__ = ("_decoder", "_write_line")

    def __init__(self, write_line: Callable[[str], None]) -> None:
        self._write_line = write_line
        self._decoder = FrameDecoder()

    def received(self, data: bytes) -> None:
        for frame in self._decoder.receive_data(data):
            self._write_line(f"< {frame}")

    def sent(self, data: bytes) -> None:
        # Only whole frames are sent.
        for frame in FrameDecoder().receive_data(data):
            self._write_line(f"> {frame}")


class Notifier:
    """Wakes all waiters; each checks its own condition again."""

    __slots__ = ("_loop", "_waiters")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiters: list[asyncio.Future[None]] = []

    async def wait(self) -> None:
        waiter = self._loop.create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def notify(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


_of_this_thread = threading.local()


def _read_buffer() -> memoryview:
    """Returns the buffer that all streams of a thread share; bytes are copied out of it at once.
    asyncio itself allocates 256 KiB for each read, which costs more than small messages do."""
    buffer: memoryview | None = getattr(_of_this_thread, "buffer", None)
    if buffer is None:
        buffer = _of_this_thread.buffer = memoryview(bytearray(READ_BYTES))
    return buffer
