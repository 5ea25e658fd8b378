"""Runs a `WireSession` over a blocking socket, for commands that send a request and exit.

There is no event loop and no thread: `nplt ask` must start quickly, so nothing here imports
asyncio. Waiting is done by `select`, and nothing waits forever: replies have a deadline,
the whole command may have one (`Deadline`), and a silent server is sent a PING.

An exception raised between `recv` and the decoder would lose bytes, and the stream is
still needed for CANCEL. So the first Ctrl+C or SIGTERM only sets a flag that every wait
checks (`Interrupts`); a second one is the usual KeyboardInterrupt. Where a signal is
ignored, as in the background of a script, it stays ignored.

A server is started in the background only if no address was given.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from types import FrameType
from typing import TYPE_CHECKING, TypeVar

from nplt_client.errors import (
    CannotConnect,
    ConfigurationError,
    ConnectionLost,
    NpltError,
    ProtocolViolation,
    TimedOut,
)
from nplt_client.render.terminal import discard_stdout, remark_if_silent
from nplt_client.settings import (
    COMMAND_NAME,
    DEFAULT_TIMEOUT_SECONDS,
    SILENCE_SECONDS_MAX,
    Address,
    current_address,
    find_address,
    find_server,
    find_token,
)
from nplt_client.wire.reconnect_policy import Patience
from nplt_client.wire.replay import AnyReply
from nplt_client.wire.wire_session import Exchange, FollowedTurn, Phase, WireSession, connect_error
from nplt_protocol import messages
from nplt_protocol.version import __version__

if TYPE_CHECKING:
    from pathlib import Path

    from nplt_client.wire.ssh import SshLink

OUR_SERVER = f"nplt/{__version__}"
"""The `server` field in the WELCOME of a server of our own version."""

_READ_BYTES = 256 * 1024
_FILE_PIECE_BYTES = 512 * 1024

R = TypeVar("R", bound=messages.Reply)
T = TypeVar("T")


class Interrupts:
    """Holds back the first Ctrl+C or SIGTERM inside its `with`, and becomes readable for
    `select` instead."""

    signal: int | None = None
    """The first signal that was received."""

    def __enter__(self) -> Interrupts:
        self._is_pending = False
        self._pipe = os.pipe()
        self._former = {
            number: former
            for number in (signal.SIGINT, signal.SIGTERM)
            if (former := signal.getsignal(number)) is not signal.SIG_IGN
        }
        for number in self._former:
            signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, former in self._former.items():
            signal.signal(number, former)
        for end in self._pipe:
            os.close(end)

    def fileno(self) -> int:
        return self._pipe[0]

    def raise_if_pending(self) -> None:
        """Raises the KeyboardInterrupt that was held back; called where stopping is safe."""
        if self._is_pending:
            self._is_pending = False
            os.read(self._pipe[0], 1)
            raise KeyboardInterrupt

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = number
        self._is_pending = True
        os.write(self._pipe[1], b"!")


class Deadline:
    """The time at which a command gives up. `seconds` None: it never does."""

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
        """Returns the earlier of this deadline and one `seconds` from now."""
        left = self.left()
        return self if left is not None and left < seconds else Deadline(seconds)


ALARM_GRACE_SECONDS = 0.7
"""Time for the waits to notice the deadline, and to cancel at the server."""


@contextmanager
def alarm(seconds: float | None) -> Iterator[None]:
    """Interrupts code that still runs shortly after the deadline, by a signal. Every wait
    checks the deadline itself; a write to a full pipe can't."""
    if seconds is None or threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_alarm(number: int, frame: FrameType | None) -> None:
        discard_stdout()
        raise TimedOut(f"no answer within {seconds:g} s")

    signal.signal(signal.SIGALRM, on_alarm)
    signal.setitimer(signal.ITIMER_REAL, seconds + ALARM_GRACE_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


class BlockingConnection:
    """A connection to a server. `open_running` makes it; leaving its `with` closes it."""

    def __init__(
        self,
        address: Address,
        hello: messages.Hello,
        *,
        deadline: Deadline,
        patience: Patience | None = None,
        silence_seconds: float = SILENCE_SECONDS_MAX,
    ) -> None:
        self.deadline = deadline
        self.interrupts: Interrupts | None = None
        self.session = WireSession(
            address, hello, patience=patience, silence_seconds=silence_seconds
        )
        self._address = address
        self._socket: socket.socket | None = None
        self._ssh: SshLink | None = None
        self._would_block: tuple[type[OSError], ...] = (BlockingIOError,)

    def __enter__(self) -> BlockingConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> None:
        """Connects and waits for WELCOME."""
        self.session.start()
        while not self.session.is_online:
            if self.session.end is not None:
                raise self.session.end
            self._step()

    def close(self) -> None:
        self.session.close()
        self._close_socket()

    @property
    def welcome(self) -> messages.Welcome:
        return self.session.welcome

    def request(self, request: messages.Request, expected: type[R]) -> R:
        exchange = self.session.request(request, monotonic(), timeout=DEFAULT_TIMEOUT_SECONDS)
        reply = self.result(exchange)
        if not isinstance(reply, expected):
            raise ProtocolViolation(f"the server answered with {reply!r}")
        return reply

    def result(self, exchange: Exchange[T]) -> T:
        try:
            while not exchange.is_done:
                self._step()
        finally:
            if not exchange.is_done:
                self.session.forget(exchange)
        return exchange.result()

    def ask(self, prompt: messages.Prompt) -> FollowedTurn:
        """Sends a prompt. `result` waits for its receipt, `events` yields its events."""
        return self.session.ask(prompt, monotonic())

    def events(self, turn: FollowedTurn) -> Iterator[messages.Event]:
        """Yields the events of a turn until it is over."""
        is_over = False
        while not is_over:
            while not turn.events.is_ready:
                self._step()
            event = turn.events.take()
            if event is None:
                return
            is_over = isinstance(event, messages.TurnFinished)
            yield event

    def read_turn(self, receipt: messages.Receipt) -> list[messages.Event]:
        """Reads the stored entries of a turn, as events."""
        return self.result(self.session.read_turn(receipt, monotonic()))

    def send_file(
        self, description: messages.FileMetadata, data: bytes, *, sent: Callable[[int], None]
    ) -> AnyReply:
        """Uploads a file. `sent` is called with the number of bytes sent so far."""
        session = self.session
        exchange = session.request(description, monotonic(), timeout=DEFAULT_TIMEOUT_SECONDS)
        for start in range(0, len(data), _FILE_PIECE_BYTES):
            if exchange.is_done:
                break
            piece = data[start : start + _FILE_PIECE_BYTES]
            session.send_file_data(exchange, piece)
            self._flush()
            sent(start + len(piece))
        if not exchange.is_done:
            exchange.set_deadline(monotonic() + DEFAULT_TIMEOUT_SECONDS)
        return self.result(exchange)

    def pause(self, seconds: float) -> None:
        """Waits before a request is sent again, and keeps the connection meanwhile."""
        end = monotonic() + seconds
        while (left := end - monotonic()) > 0:
            if self.session.end is not None:
                raise self.session.end
            self._step(left)

    # One wait at a time

    def _step(self, seconds_max: float | None = None) -> None:
        """Connects, or waits once and passes received bytes to the session."""
        left = self.deadline.left()  # checked each time: bytes may never stop coming
        if seconds_max is not None:
            left = seconds_max if left is None else min(left, seconds_max)
        if self.interrupts is not None:
            self.interrupts.raise_if_pending()
        session, now = self.session, monotonic()
        due = session.next_time()
        session.check_time(now)
        self._flush()
        if session.end is not None:
            return  # the session is closed; nothing more will come
        if due is not None and due <= now:
            return  # the caller may wait for what has just timed out
        if session.wants_connection:
            self._connect()
        elif self._socket is None:
            self._wait(None, left)
        else:
            self._receive(self._socket, left)
        self._flush()

    def _connect(self) -> None:
        session = self.session
        address = self._address = current_address(self._address)
        session.open_connection(address)
        patience = self.deadline.within(DEFAULT_TIMEOUT_SECONDS).left()
        if address.over_ssh:
            from nplt_client.wire.ssh import SshLink

            self._ssh = SshLink(address, may_ask=self._ssh is None)
            self._socket = self._ssh.socket
            self._socket.setblocking(False)
            session.connection_made(monotonic())
            return
        # An ASCII host is passed as bytes: for a str, Python would load the IDNA tables first.
        host = address.host.encode() if address.host.isascii() else address.host
        place: tuple[str, int] = (host, address.port)  # type: ignore[assignment]
        try:
            self._socket = socket.create_connection(place, timeout=patience)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if address.tls:
                import ssl

                from nplt_client.wire.tls import client_context

                context = client_context()
                self._socket = context.wrap_socket(self._socket, server_hostname=address.host)
                self._would_block = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
            self._socket.setblocking(False)
        except (OSError, UnicodeError) as error:
            session.connection_lost(connect_error(address, error), monotonic())
        else:
            session.connection_made(monotonic())

    def _receive(self, wire: socket.socket, left: float | None) -> None:
        session = self.session
        assert session.connection is not None
        try:
            data = wire.recv(_READ_BYTES)
        except self._would_block:
            self._wait(wire, left)
        except OSError as error:
            session.connection_lost(self._why_lost(error), monotonic())
        else:
            if data:
                session.receive(session.connection.receive_data(data), monotonic())
            else:
                session.connection_lost(self._why_lost(), monotonic())

    def _why_lost(self, error: OSError | None = None) -> NpltError:
        if self._ssh is not None:
            return self._ssh.why_lost(at_the_start=self.session.phase is Phase.GREETING)
        if error is None:
            return ConnectionLost("the server closed the connection")
        return ConnectionLost(f"the connection was lost: {error.strerror or error}")

    def _wait(self, wire: socket.socket | None, left: float | None) -> None:
        """Waits for bytes, a signal, the session's next time or the deadline."""
        watched = [one for one in (wire, self.interrupts) if one is not None]
        times = [] if left is None else [left]
        if (next_time := self.session.next_time()) is not None:
            times.append(max(0.0, next_time - monotonic()))
        select.select(watched, [], [], min(times, default=None))
        if self.interrupts is not None:
            self.interrupts.raise_if_pending()

    def _flush(self) -> None:
        """Sends the session's data and closes a dropped socket; called after each call of the
        session."""
        data, session = self.session.data_to_send(), self.session
        if session.connection is None:
            self._close_socket()
        elif data and self._socket is not None:
            try:
                self._send(self._socket, data)
            except OSError as error:
                session.connection_lost(self._why_lost(error), monotonic())
                self._close_socket()
        session.take_states()

    def _send(self, wire: socket.socket, data: bytes) -> None:
        unsent = memoryview(data)
        deadline = self.deadline.within(DEFAULT_TIMEOUT_SECONDS)
        while unsent:
            try:
                unsent = unsent[wire.send(unsent) :]
            except self._would_block:
                select.select([], [wire], [], deadline.left())

    def _close_socket(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def open_for_command(server: str | None) -> BlockingConnection:
    return open_or_start(find_address(server), Deadline(None))


def open_running(
    address: Address, deadline: Deadline, *, patience: Patience | None = None
) -> BlockingConnection:
    """Connects and waits for WELCOME. A lost connection is opened again only with a
    `patience`."""
    hello = messages.Hello(
        client=COMMAND_NAME,
        token=find_token(None, address=address),
        features=(messages.WATCHING, messages.LATER),
    )
    opened = BlockingConnection(address, hello, deadline=deadline, patience=patience)
    try:
        with remark_if_silent(address):
            opened.open()
    except BaseException:
        opened.close()
        raise
    return opened


def open_or_start(
    address: Address, deadline: Deadline, *, patience: Patience | None = None
) -> BlockingConnection:
    opened = with_server(address, lambda at: open_running(at, deadline, patience=patience))
    if address.is_default and opened.welcome.server != OUR_SERVER:
        # After an upgrade of nplt, the old server may still run in the background.
        from nplt_client.background import compare_versions

        compare_versions(opened.welcome.server)
    return opened


def with_server(address: Address, use: Callable[[Address], T]) -> T:
    """Calls `use` with the address of a running server. At the default address a server is
    started if none runs, or if the running one is shutting down."""
    if not address.is_default:
        return use(address)
    if find_server() is None:
        from nplt_client.background import ensure_running

        address = ensure_running(address)
    try:
        return use(address)
    except CannotConnect as error:
        if not error.nothing_listens:
            raise
    from nplt_client.background import ensure_running

    return use(ensure_running(address, is_ending=True))


def read_file(path: Path) -> bytes:
    try:
        # Non-blocking, since opening a pipe without a writer would wait.
        descriptor = os.open(path.expanduser(), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ConfigurationError(f"can't send {path}: it is not a regular file")
            return file.read()
    except OSError as error:
        raise ConfigurationError(f"can't read {path}: {error.strerror or error}") from None
