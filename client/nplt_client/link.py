"""A blocking conversation with a server, for commands that ask and are gone.

The short commands need one request after the other and perhaps one stream of
events; an event loop would cost them more time than all of their work. The
rules of the wire are the same ones (`ClientConnection`), only the waiting is
done by `select`. Nothing waits forever: replies have a deadline, the whole
command may have one, and a silent server is asked for a sign of life.
"""

from __future__ import annotations

import select
import socket
from collections import deque
from collections.abc import Callable
from time import monotonic
from types import TracebackType
from typing import TypeVar

from nplt_client.errors import (
    ConnectionLost,
    ProtocolViolation,
    TimedOut,
    error_from_report,
)
from nplt_client.interrupts import Interrupts
from nplt_client.liveness import Liveness
from nplt_client.settings import DEFAULT_TIMEOUT_SECONDS, SILENCE_SECONDS_MAX, Address
from nplt_client.verdicts import (
    INCOMING,
    cannot_connect,
    cannot_send,
    closed_before_welcome,
    welcome_in,
)
from nplt_protocol.client_connection import ClientConnection
from nplt_protocol.connection import (
    ConnectionRefused,
    Dialect,
    ErrorReceived,
    EventReceived,
    Heard,
    ReplyReceived,
)
from nplt_protocol.errors import LocalProtocolError
from nplt_protocol.events import Event
from nplt_protocol.json_values import JsonObject
from nplt_protocol.replies import HistoryPage, MessageRange, Reply, Welcome
from nplt_protocol.requests import FileMetadata, Hello, HistoryRequest, Ping, Request

_READ_BYTES = 256 * 1024
_FILE_PIECE_BYTES = 512 * 1024

R = TypeVar("R", bound=Reply)


class Deadline:
    """A moment after which the answer is not wanted any more. None: never."""

    __slots__ = ("_end", "seconds")

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self._end = None if seconds is None else monotonic() + seconds

    def left(self) -> float | None:
        if self._end is None:
            return None
        left = self._end - monotonic()
        if left <= 0:
            raise TimedOut(f"no answer within {self.seconds:g} s")
        return left

    def within(self, seconds: float) -> Deadline:
        """The nearer of this one and one `seconds` from now."""
        left = self.left()
        return self if left is not None and left < seconds else Deadline(seconds)


class Link:
    """Made by `open_link`; closed by leaving its `with`."""

    def __init__(self, wire: socket.socket, *, deadline: Deadline, tls: bool = False) -> None:
        self.deadline = deadline
        self.silence_seconds = SILENCE_SECONDS_MAX
        self.interrupts: Interrupts | None = None
        self._wire = wire
        self._connection = ClientConnection(Dialect.STRUCTURED, INCOMING)
        self._heard: deque[Heard] = deque()
        self._events: deque[Event] = deque()
        self._would_block: tuple[type[OSError], ...] = (BlockingIOError,)
        if tls:
            import ssl

            self._would_block += (ssl.SSLWantReadError, ssl.SSLWantWriteError)

    def __enter__(self) -> Link:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._wire.close()

    @property
    def has_events(self) -> bool:
        """Whether some were heard and not asked for yet."""
        return bool(self._events)

    @property
    def welcome(self) -> Welcome:
        assert self._connection.welcome is not None
        return self._connection.welcome

    def say_hello(self, hello: Hello, address: Address) -> None:
        try:
            self._send(self._connection.send_hello(hello))
            while not any(welcome_in(item, hello) for item in self._take_heard(self.deadline)):
                pass
        except ConnectionLost:
            raise closed_before_welcome(address, self._connection.greeting) from None

    def request(self, request: Request, expected: type[R]) -> R:
        """Events that come before the reply are kept for `next_event`."""
        reply = self._reply_to(request)
        if not isinstance(reply, expected):
            raise ProtocolViolation(f"the server answered with {reply!r}")
        return reply

    def send_file(
        self, description: FileMetadata, data: bytes, *, sent: Callable[[int], None]
    ) -> Reply | JsonObject:
        """`sent` is told how many bytes are on their way."""
        seq, head = self._connection.send(description)
        self._send(head)
        for start in range(0, len(data), _FILE_PIECE_BYTES):
            piece = data[start : start + _FILE_PIECE_BYTES]
            self._send(self._connection.send_file_data(seq, piece))
            sent(start + len(piece))
        return self._reply(seq)

    def look_up(self, request: HistoryRequest) -> HistoryPage | MessageRange:
        if request.seq is not None:
            return self.request(request, MessageRange)
        return self.request(request, HistoryPage)

    def _reply_to(self, request: Request) -> Reply | JsonObject:
        try:
            seq, data = self._connection.send(request)
        except LocalProtocolError as error:
            raise cannot_send(request, error) from None
        self._send(data)
        return self._reply(seq)

    def _reply(self, seq: int) -> Reply | JsonObject:
        deadline = self.deadline.within(DEFAULT_TIMEOUT_SECONDS)
        while True:
            for item in self._take_heard(deadline):
                match item:
                    case ReplyReceived(reply=reply) if item.seq == seq:
                        return reply
                    case ErrorReceived(report=report) if item.seq == seq:
                        raise error_from_report(report)
                    case _:
                        pass

    def next_event(self) -> Event:
        while not self._events:
            self._take_heard(self.deadline)
        return self._events.popleft()

    # Bytes in, bytes out

    def _take_heard(self, deadline: Deadline) -> list[Heard]:
        """The next batch; its events are also put aside."""
        heard = self._connection.receive_data(self._receive(deadline))
        if answers := self._connection.data_to_send():
            self._send(answers)
        for item in heard:
            match item:
                case EventReceived():
                    self._events.append(item.event)
                case ConnectionRefused() if self._connection.welcome is not None:
                    raise ProtocolViolation(item.reason)
                case _:
                    pass
        return heard

    def _receive(self, deadline: Deadline) -> bytes:
        liveness = Liveness(self.silence_seconds, now=monotonic())
        while True:
            # Also while bytes keep coming: they may never stop.
            deadline.left()
            if self.interrupts is not None:
                self.interrupts.check()
            try:
                data = self._wire.recv(_READ_BYTES)
            except self._would_block:
                self._wait_for_bytes(deadline, liveness)
            except OSError as error:
                raise ConnectionLost(
                    f"the connection was lost: {error.strerror or error}"
                ) from None
            else:
                if not data:
                    raise ConnectionLost("the server closed the connection")
                return data

    def _wait_for_bytes(self, deadline: Deadline, liveness: Liveness) -> None:
        left, patience = deadline.left(), liveness.seconds_left(monotonic())
        watched: list[socket.socket | Interrupts] = [self._wire]
        if self.interrupts is not None:
            watched.append(self.interrupts)
        readable = select.select(watched, [], [], patience if left is None else min(left, patience))
        if self.interrupts is not None:
            self.interrupts.check()
        if readable[0]:
            return
        verdict = liveness.judge(monotonic())
        if verdict == "lost":
            raise ConnectionLost("the server has fallen silent")
        if verdict == "ask" and self._connection.welcome is not None:
            self._send(self._connection.send(Ping())[1])

    def _send(self, data: bytes) -> None:
        unsent = memoryview(data)
        deadline = self.deadline.within(DEFAULT_TIMEOUT_SECONDS)
        while unsent:
            try:
                unsent = unsent[self._wire.send(unsent) :]
            except self._would_block:
                select.select([], [self._wire], [], deadline.left())
            except OSError as error:
                raise ConnectionLost(
                    f"the connection was lost: {error.strerror or error}"
                ) from None


def open_link(address: Address, hello: Hello, deadline: Deadline) -> Link:
    """Connected and welcomed."""
    patience = deadline.within(DEFAULT_TIMEOUT_SECONDS)
    try:
        wire = socket.create_connection(_place(address), timeout=patience.left())
    except (OSError, UnicodeError) as error:
        raise cannot_connect(address, error) from None
    try:
        wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if address.tls:
            wire = _secured(wire, address)
        wire.setblocking(False)
        link = Link(wire, deadline=patience, tls=address.tls)
        link.say_hello(hello, address)
    except BaseException:
        wire.close()
        raise
    link.deadline = deadline
    return link


def _place(address: Address) -> tuple[str, int]:
    """A plain host goes as bytes: for a text, Python loads its tables of all scripts first."""
    host = address.host.encode() if address.host.isascii() else address.host
    return host, address.port  # type: ignore[return-value]


def _secured(wire: socket.socket, address: Address) -> socket.socket:
    import ssl

    try:
        return ssl.create_default_context().wrap_socket(wire, server_hostname=address.host)
    except OSError as error:
        raise cannot_connect(address, error) from None
