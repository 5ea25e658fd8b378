"""One client's session with a server, over as many connections as it needs. No I/O.

It is neither a conversation, which the server stores (on the wire its id is called
`session_id`), nor a chat session, which is the state of one chat.

A shell owns the socket and the clock: `wire.transport` with anyio, `wire.blocking` with
`select`. It passes bytes and times to the session and does its I/O:

    the shell calls                        when
        start                                  the session begins
        open_connection, connection_made       `wants_connection` is true: around connecting
        connection_lost                        connecting failed, or the connection ended
        receive                                messages were decoded
        check_time                             `next_time` has come
        request, ask, close                    its caller calls them
    and after each of these
        sends `data_to_send()`, and closes its socket if `connection` is no longer the one
        of that socket.

    IDLE ──start──▶ OPENING ──made──▶ GREETING ──WELCOME──▶ ONLINE ◀──────────────┐
                       ▲  ▲               │        └─(not the first)─▶ RESUMING ──┤
                       │  └──check_time── WAITING ◀──lost────────────────┴────────┘
    CLOSED: closed, given up, or refused for a reason that a retry does not change.

A connection ends in `_drop_connection`, which schedules a retry or closes the session. A
request whose reply is then missing goes through `_repeat_or_fail`. `close` is the only end
of the session.

When a connection is lost the session requests another with jittered, growing delays,
attaches at the cursor and lets the server replay the rest, so that readers see each event
once. If the server stopped sending events because this client read too slowly (`lagged`),
the session attaches again on the same connection.

Requests wait while there is no connection. A request that was under way is sent again only
if it is idempotent (`may_repeat`); otherwise it fails with `ConnectionLost`. A prompt is
idempotent by its `message_id`. Replies tell which conversation is attached: events before
such a reply belong to the old conversation, events after it to the new one.
"""

from __future__ import annotations

import errno
import os
import re
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar
from weakref import WeakSet

from msgspec.structs import replace

from nplt_client.errors import (
    CannotConnect,
    ConnectionLost,
    LimitExceeded,
    MovedElsewhere,
    NpltError,
    ProtocolViolation,
    RequestRefused,
    TimedOut,
    error_from_report,
)
from nplt_client.settings import DEFAULT_TIMEOUT_SECONDS, SILENCE_SECONDS_MAX, Address
from nplt_client.wire.reconnect_policy import (
    Backoff,
    ConnectionState,
    Liveness,
    Offline,
    Online,
    Patience,
    Reconnecting,
    is_retryable,
)
from nplt_client.wire.replay import ENDED, AnyReply, Steps, replay_from_record
from nplt_protocol import messages
from nplt_protocol.client_connection import ClientConnection
from nplt_protocol.codec import dump_json, from_object
from nplt_protocol.connection import (
    ConnectionRefused,
    Dialect,
    ErrorReceived,
    EventReceived,
    ReceivedByClient,
    ReplyReceived,
)
from nplt_protocol.errors import LocalProtocolError, RemoteProtocolError, RequestError
from nplt_protocol.frames import WireLimits
from nplt_protocol.json_text import JsonObject
from nplt_protocol.resume import Cursor, TurnProgress, has_ended

if TYPE_CHECKING:
    import anyio

INCOMING = WireLimits(message_bytes_max=64 * 1024 * 1024, message_seconds_max=60.0)
"""The limits for receiving, which allow for long messages and a slow network."""

OWN_TURNS_REMEMBERED = 1_000
FEED_EVENTS_MAX = 10_000
_UNJOINED_EVENTS_MAX = 1_000
_JOINED_CHARACTERS_MAX = 4_096

T = TypeVar("T")


# Event queues and exchanges


class Awaited:
    """Something that a reader can wait for. A shell stores its event as `waiter`, which is set
    after each change."""

    waiter: anyio.Event | None = None

    def _wake(self) -> None:
        if self.waiter is not None:
            waiter, self.waiter = self.waiter, None
            waiter.set()


class EventQueue(Awaited):
    """A queue between the connection and a reader. `put` never waits, so each subclass limits
    its size in its own way. Queued events can still be read after it was closed."""

    def __init__(self) -> None:
        self._events: deque[messages.Event] = deque()
        self._error: NpltError | None = None
        self.is_closed = False

    @property
    def is_ready(self) -> bool:
        return bool(self._events) or self.is_closed

    def put(self, event: messages.Event) -> None:
        if not self.is_closed:
            self._add(event)
            self._wake()

    def close(self, error: NpltError | None = None) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._error = error
            self._wake()

    def take(self) -> messages.Event | None:
        """Returns the next event, once `is_ready`. At the end it raises the error, or returns
        `None`."""
        if self._events:
            return self._events.popleft()
        if self._error is not None:
            raise self._error
        return None

    def _add(self, event: messages.Event) -> None:
        self._events.append(event)


class TurnEventQueue(EventQueue):
    """The events of one turn. None is dropped: when many wait, adjacent text deltas are
    joined."""

    def _add(self, event: messages.Event) -> None:
        if len(self._events) > _UNJOINED_EVENTS_MAX and (
            joined := _join_deltas(self._events[-1], event)
        ):
            self._events[-1] = joined
        else:
            self._events.append(event)


def _join_deltas(last: messages.Event, event: messages.Event) -> messages.TextDelta | None:
    """Returns both as one event, if the second continues the first and the result is small."""
    if (
        isinstance(last, messages.TextDelta)
        and isinstance(event, messages.TextDelta)
        and (event.turn_id, event.call) == (last.turn_id, last.call)
        and event.offset == last.offset + len(last.text)
        and event.replay_from is None
        and len(last.text) < _JOINED_CHARACTERS_MAX
    ):
        return replace(last, text=last.text + event.text)
    return None


class FeedEventQueue(EventQueue):
    """The events of the attached conversation. A full queue drops all events and reports
    `lagged`, as the server does."""

    def _add(self, event: messages.Event) -> None:
        if (dropped := len(self._events)) >= FEED_EVENTS_MAX:
            self._events.clear()
            session_id = getattr(event, "session_id", None) or ""
            details: JsonObject = {"dropped": dropped}
            self._events.append(
                messages.SessionEvent(session_id=session_id, event="lagged", details=details)
            )
        self._events.append(event)


WATCH_LAGGED = messages.SessionEvent(session_id="", event="lagged", details={"watch": True})
"""Changes of rows were missed: WATCH must be sent again."""


class ChangeQueue(EventQueue):
    """The rows of conversations that changed, each as it was last, and `WATCH_LAGGED`."""

    def __init__(self) -> None:
        super().__init__()
        self._newest: dict[str, messages.Event] = {}

    def __contains__(self, session_id: str) -> bool:
        return session_id in self._newest

    @property
    def is_ready(self) -> bool:
        return bool(self._newest) or self.is_closed

    def take(self) -> messages.Event | None:
        if self._newest:
            return self._newest.pop(next(iter(self._newest)))
        return super().take()

    def _add(self, event: messages.Event) -> None:
        if not isinstance(event, messages.SessionChanged) or len(self._newest) >= FEED_EVENTS_MAX:
            self._newest = {"": WATCH_LAGGED}
        else:
            self._newest.pop(event.session_id, None)
            self._newest[event.session_id] = event


class Exchange(Awaited, Generic[T]):
    """Requests and their replies that lead to one result.

    `steps` yields the requests and is sent the replies; refusals are thrown into it. If the
    connection is lost in between, it starts again on the next one, provided that `request`,
    the main request, may be repeated.
    """

    waits_for_connection = False
    """Whether it waits for a connection without a limit; by default it waits for `timeout`."""

    def __init__(
        self, request: messages.Request, steps: Callable[[], Steps[T]], *, timeout: float | None
    ) -> None:
        self.request = request
        self.steps = steps
        self.timeout = timeout
        self.is_done = False
        self.error: NpltError | None = None
        self.deadline: float | None = None
        self.refusal: NpltError | None = None
        """The refusal of a server that is shutting down, until that connection ends."""
        self.sent: messages.Request | None = None
        """The request that was sent last."""
        self.seq: int | None = None
        """The seq of the request that waits for its reply; `None` if there is none."""
        self.running: Steps[T] | None = None
        self._result: T | None = None

    def result(self) -> T:
        assert self.is_done
        if self.error is not None:
            raise self.error
        return self._result  # type: ignore[return-value]

    def finish(self, result: T) -> None:
        self._result = result
        self._end()

    def fail(self, error: NpltError) -> None:
        if not self.is_done:
            self.error = error
            self._end()

    def set_deadline(self, deadline: float | None) -> None:
        self.deadline = deadline
        self._wake()

    def _end(self) -> None:
        self.is_done = True
        self.deadline = self.seq = self.running = None
        self._wake()


class FollowedTurn(Exchange[messages.Receipt]):
    """One prompt, its receipt (the result), and its events.

    It is followed from its receipt on. A turn whose prompt was sent again is recognized by its
    `message_id` in the replay, which comes before the receipt and may hold text.
    """

    waits_for_connection = True

    def __init__(self, prompt: messages.Prompt, session: WireSession) -> None:
        super().__init__(prompt, lambda: session.prompt_steps(self), timeout=session.timeout)
        self.prompt = prompt
        self.session_id = prompt.session_id or session.session_id
        self.turn_id: str | None = None
        self.prompt_seq = 0
        self.events = TurnEventQueue()
        self.progress = TurnProgress()

    def put(self, event: messages.Event) -> None:
        if self.progress.apply(event):
            self.events.put(event)


# The session


class Phase(Enum):
    IDLE = auto()
    OPENING = auto()
    GREETING = auto()
    RESUMING = auto()
    ONLINE = auto()
    WAITING = auto()
    CLOSED = auto()


class WireSession:
    """The session. `now` is always the shell's clock, in seconds; only differences count."""

    def __init__(
        self,
        address: Address,
        hello: messages.Hello,
        *,
        patience: Patience | None,
        timeout: float = DEFAULT_TIMEOUT_SECONDS,
        silence_seconds: float = SILENCE_SECONDS_MAX,
    ) -> None:
        self.phase = Phase.IDLE
        self.state: ConnectionState = Offline(reason="not connected yet")
        self.connection: ClientConnection | None = None
        self.end: NpltError | None = None
        """The error that closed the session."""
        self.attached = True
        self.timeout = timeout
        self._address = address
        self._hello = hello
        self._patience = patience
        self._silence_seconds = silence_seconds
        self._backoff = Backoff(patience or Patience())
        self._phase_ends_at = 0.0
        """The time at which WAITING or GREETING ends."""
        self._liveness: Liveness | None = None
        self._welcome: messages.Welcome | None = None
        self.model = ""
        """The model that answers next in the attached conversation."""
        self._cursor = Cursor(session_id="")
        self._never_stored: set[str] = set()
        self._must_move = False
        """Whether the conversation was deleted, and the server attached us to a fresh one."""
        self._has_lagged = False
        """Whether the server sends no events until the next ATTACH."""
        self._resume: Exchange[None] | None = None
        self._waiting: list[Exchange[object]] = []
        self._under_way: dict[int, Exchange[object]] = {}
        self._replies: list[tuple[Exchange[object], AnyReply | NpltError]] = []
        self._outgoing: list[bytes] = []
        self._turns: list[FollowedTurn] = []
        self._own_turns: deque[str] = deque(maxlen=OWN_TURNS_REMEMBERED)
        self._feeds: WeakSet[FeedEventQueue] = WeakSet()
        self._change_queues: WeakSet[ChangeQueue] = WeakSet()
        self._states: list[ConnectionState] = []

    @property
    def session_id(self) -> str:
        """The attached conversation."""
        return self._cursor.session_id

    @property
    def welcome(self) -> messages.Welcome:
        assert self._welcome is not None
        return self._welcome

    @property
    def history(self) -> str | None:
        """The history of the server's settings that stores new conversations, if one was
        named."""
        return self._hello.history

    @property
    def is_online(self) -> bool:
        return self.phase is Phase.ONLINE

    # Called by users of the session

    def start(self) -> None:
        assert self.phase is Phase.IDLE
        self.phase = Phase.OPENING

    def request(
        self, request: messages.Request, now: float, *, timeout: float | None
    ) -> Exchange[AnyReply]:
        """`timeout` limits the wait for a connection, and again the wait for the reply."""

        def steps() -> Steps[AnyReply]:
            return (yield exchange.request)

        exchange = Exchange(request, steps, timeout=timeout)
        return self._begin(exchange, now)

    def ask(self, prompt: messages.Prompt, now: float) -> FollowedTurn:
        turn = FollowedTurn(prompt, self)
        self._turns.append(turn)
        self._begin(turn, now)
        return turn

    def read_turn(self, receipt: messages.Receipt, now: float) -> Exchange[list[messages.Event]]:
        """Reads the stored entries of a turn that is over, as events."""
        request = messages.HistoryRequest(session_id=receipt.session_id)
        steps = partial(
            replay_from_record, receipt.session_id, receipt.turn_id, receipt.seq, is_over=True
        )
        return self._begin(Exchange(request, steps, timeout=self.timeout), now)

    def send_file_data(self, exchange: Exchange[AnyReply], piece: bytes) -> None:
        """Sends a piece of the upload whose metadata was sent as `exchange`."""
        if exchange.error is not None:
            raise exchange.error
        assert self.connection is not None
        assert exchange.seq is not None
        self._outgoing.append(self.connection.send_file_data(exchange.seq, piece))

    def forget(self, exchange: Exchange[T]) -> None:
        """Drops an exchange whose caller stopped waiting, with the events if it is a turn."""
        under_way = self._under_way.items()
        self._under_way = {seq: other for seq, other in under_way if other is not exchange}
        self._waiting = [other for other in self._waiting if other is not exchange]
        if isinstance(exchange, FollowedTurn):
            exchange.events.close()
            self._turns = [turn for turn in self._turns if turn is not exchange]

    def feed(self) -> FeedEventQueue:
        """Returns a queue of all events of the attached conversation from now on."""
        events = FeedEventQueue()
        if self.end is not None:
            events.close(self.end)
        self._feeds.add(events)
        return events

    def changes(self) -> ChangeQueue:
        """Returns a queue of the rows that the server sends from now on because of WATCH."""
        changes = ChangeQueue()
        if self.end is not None:
            changes.close(self.end)
        self._change_queues.add(changes)
        return changes

    @property
    def is_watched(self) -> bool:
        """Whether a reader still wants the rows that WATCH brings."""
        return any(not changes.is_closed for changes in self._change_queues)

    def started_here(self, turn_id: str | None) -> bool:
        return turn_id in self._own_turns

    def retry_now(self, now: float) -> None:
        if self.phase is Phase.WAITING:
            self._phase_ends_at = now
            self.check_time(now)

    def close(self, error: NpltError | None = None) -> None:
        """Closes the session for good. Feeds end with the error, if there is one."""
        if self.end is not None:
            return
        self.end = error or ConnectionLost("this client was closed")
        self.phase = Phase.CLOSED
        self.connection = self._liveness = self._resume = None
        for exchange in (*self._under_way.values(), *self._waiting):
            exchange.fail(self.end)
        self._under_way.clear()
        self._waiting.clear()
        self._outgoing.clear()
        self._close_turns(self.end)
        for queue in (*self._feeds, *self._change_queues):
            queue.close(error)
        self._set_state(Offline(reason=self.end.message, was_closed=error is None))

    # Called by the shell

    @property
    def wants_connection(self) -> bool:
        return self.phase is Phase.OPENING and self.connection is None

    def open_connection(self, address: Address | None = None) -> ClientConnection:
        """Called before connecting, with the server's new address if it has one; the shell
        decodes received bytes with the result."""
        assert self.wants_connection
        self._address = address or self._address
        self.connection = ClientConnection(Dialect.STRUCTURED, INCOMING)
        return self.connection

    def connection_made(self, now: float) -> None:
        assert self.connection is not None
        self.phase = Phase.GREETING
        self._phase_ends_at = now + self.timeout
        self._outgoing.append(self.connection.send_hello(self._hello))

    def connection_lost(self, error: NpltError, now: float) -> None:
        if self.phase is Phase.GREETING and isinstance(error, ConnectionLost):
            greeting = self.connection.greeting if self.connection else None
            # Every server of ours greets. One that speaks TLS just closes.
            tls = "" if self._address.tls else f" If it speaks TLS, try {self._address.with_tls}"
            silently = f" at once. Is it an nplt server?{tls}"
            why = f" and said: {greeting}" if greeting else silently
            error = CannotConnect(f"{self._address} closed the connection{why}")
        self._drop_connection(error, now)

    def bytes_received(self, when: float) -> None:
        """Notes that the server is alive, even if no message is complete yet."""
        if self._liveness is not None:
            self._liveness.bytes_received(when)

    def receive(self, items: Sequence[ReceivedByClient], now: float) -> None:
        self.bytes_received(now)
        broken: NpltError | None = None
        try:
            for item in items:
                if self.connection is not None:
                    self._receive(item, now)
        except NpltError as error:
            broken = error
        # Replies are handled after the whole batch, since a replay follows its reply.
        while self._replies:
            exchange, reply = self._replies.pop(0)
            self._advance(exchange, reply, now)
        if broken is not None:
            self._drop_connection(broken, now)

    def check_time(self, now: float) -> None:
        if self.phase is Phase.WAITING and now >= self._phase_ends_at:
            self.phase = Phase.OPENING
            if isinstance(self.state, Reconnecting):
                self._set_state(replace(self.state, in_seconds=0.0))
        elif self.phase is Phase.GREETING and now >= self._phase_ends_at:
            silent = f"{self._address} did not reply within {self.timeout:g} s"
            self._drop_connection(TimedOut(f"{silent}; is it an nplt server?"), now)
        elif self._liveness is not None:
            match self._liveness.check(now):
                case "lost":
                    self._drop_connection(ConnectionLost("the server does not reply any more"), now)
                case "ping" if self.connection is not None:
                    self._outgoing.append(self.connection.send(messages.Ping())[1])
                case _:
                    pass
        for exchange in (*self._under_way.values(), *self._waiting):
            if exchange.deadline is None or now < exchange.deadline:
                continue
            if exchange.seq is not None:
                self._under_way.pop(exchange.seq, None)
                late = TimedOut(f"the server did not reply within {exchange.timeout:g} s")
                self._advance(exchange, late, now)
            else:
                self._waiting.remove(exchange)
                unconnected = ConnectionLost("not connected; still trying to reach the server")
                exchange.fail(exchange.refusal or unconnected)

    def next_time(self) -> float | None:
        times = [
            exchange.deadline
            for exchange in (*self._under_way.values(), *self._waiting)
            if exchange.deadline is not None
        ]
        if self.phase in (Phase.WAITING, Phase.GREETING):
            times.append(self._phase_ends_at)
        elif self._liveness is not None:
            times.append(self._liveness.due)
        return min(times, default=None)

    def data_to_send(self) -> bytes:
        if self.connection is not None and (pongs := self.connection.data_to_send()):
            self._outgoing.append(pongs)
        data = b"".join(self._outgoing)
        self._outgoing.clear()
        return data

    def take_states(self) -> list[ConnectionState]:
        """Returns the changes of `state` since the last call."""
        states, self._states = self._states, []
        return states

    # Exchanges

    def _begin(self, exchange: Exchange[T], now: float) -> Exchange[T]:
        if self.end is not None:
            exchange.fail(self.end)
        elif self.is_online:
            self._advance(exchange, None, now)
        else:
            self._wait_for_connection(exchange, now)
        return exchange

    def _wait_for_connection(self, exchange: Exchange[T], now: float) -> None:
        exchange.running = exchange.refusal = exchange.seq = None
        patient = exchange.waits_for_connection or exchange.timeout is None
        exchange.set_deadline(None if patient else now + (exchange.timeout or 0.0))
        self._waiting.append(exchange)  # type: ignore[arg-type]

    def _advance(
        self, exchange: Exchange[T], reply: AnyReply | NpltError | None, now: float
    ) -> None:
        """Passes the reply to the exchange and sends its next request; `None` starts it."""
        if exchange.running is None:
            exchange.running = exchange.steps()
        exchange.seq = exchange.deadline = None
        try:
            self._send_next(exchange, exchange.running, reply, now)
        except StopIteration as done:
            exchange.finish(done.value)
            if exchange is self._resume:
                self._resume = None
                if self._has_lagged:
                    self._begin_resume(now)
                else:
                    self._go_online(now)
        except NpltError as error:
            if isinstance(error, ConnectionLost) and exchange is not self._resume:
                # The server is shutting down, and keeps the connection open for a while.
                self._repeat_or_fail(exchange, error, now, goes_on=self._patience is not None)
                if not exchange.is_done:
                    exchange.refusal = error
                    exchange.set_deadline(now + self.timeout)
                return
            exchange.fail(error)
            if exchange is self._resume:
                self._drop_connection(error, now)

    def _send_next(
        self,
        exchange: Exchange[T],
        steps: Steps[T],
        reply: AnyReply | NpltError | None,
        now: float,
    ) -> None:
        if isinstance(reply, NpltError):
            request = steps.throw(reply)
        elif reply is None:
            request = next(steps)
        else:
            request = steps.send(reply)
        assert self.connection is not None
        try:
            exchange.seq, data = self.connection.send(request)
        except LocalProtocolError as error:
            self._send_next(exchange, steps, _send_error(request, error), now)
            return
        exchange.sent = request
        self._under_way[exchange.seq] = exchange  # type: ignore[assignment]
        self._outgoing.append(data)
        exchange.set_deadline(None if exchange.timeout is None else now + exchange.timeout)

    def _repeat_or_fail(
        self, exchange: Exchange[T], error: ConnectionLost, now: float, *, goes_on: bool
    ) -> None:
        """Handles an exchange whose connection was lost before the reply was received."""
        if isinstance(exchange.request, messages.Cancel) and exchange.request.turn_id is None:
            exchange.request = messages.Cancel(
                turn_id=self._own_turns[-1] if self._own_turns else None
            )
        if not may_repeat(exchange.request):
            unknown = f"{error.message}; whether the server did what was asked is not known"
            exchange.fail(ConnectionLost(unknown, code=error.code))
        elif not goes_on:
            exchange.fail(error)
        else:
            self._wait_for_connection(exchange, now)

    # Connecting and disconnecting

    def _go_online(self, now: float) -> None:
        self.phase = Phase.ONLINE
        self._backoff.found(now)
        if not isinstance(self.state, Online):
            self._set_state(Online())
        waiting, self._waiting = self._waiting, []
        for exchange in waiting:
            self._advance(exchange, None, now)

    def _drop_connection(self, error: NpltError, now: float) -> None:
        """Handles a connection that was lost, or could not be made."""
        if self.phase is Phase.CLOSED:
            return
        was_welcomed = self._welcome is not None
        goes_on = (
            self._patience is not None
            and (was_welcomed or self._patience.from_the_start)
            and is_retryable(error)
        )
        resume, self._resume = self._resume, None
        self.connection = self._liveness = None
        self._outgoing.clear()
        self.phase = Phase.WAITING
        under_way = [*self._under_way.values(), *(exchange for exchange, _ in self._replies)]
        self._under_way.clear()
        self._replies.clear()
        for exchange in under_way:
            if exchange is resume:
                continue
            if isinstance(error, ProtocolViolation):
                exchange.fail(error)
            else:
                lost = error if isinstance(error, ConnectionLost) else ConnectionLost(error.message)
                self._repeat_or_fail(exchange, lost, now, goes_on=goes_on)
        for exchange in self._waiting:
            if exchange.refusal is not None:  # the next server may accept it
                exchange.refusal = None
                exchange.set_deadline(now + self.timeout)
        if goes_on:
            self._try_later(error, now)
        else:
            self.close(error)

    def _try_later(self, error: NpltError, now: float) -> None:
        self._backoff.lost(now)
        delay = self._backoff.next_delay(now)
        attempt = self._backoff.attempt
        if delay is not None:
            self._phase_ends_at = now + delay
            self._set_state(Reconnecting(attempt=attempt, in_seconds=delay, reason=error.message))
        elif attempt:
            self.close(ConnectionLost(f"given up after {attempt} attempts: {error.message}"))
        else:
            self.close(error)

    def _set_state(self, state: ConnectionState) -> None:
        self.state = state
        self._states.append(state)

    # Receiving

    def _receive(self, item: ReceivedByClient, now: float) -> None:
        if self.phase is Phase.GREETING:
            self._receive_welcome(item, now)
            return
        match item:
            case ReplyReceived():
                exchange = self._under_way.pop(item.seq, None)
                self._apply_reply(exchange, item.reply)
                if exchange is not None:
                    self._replies.append((exchange, item.reply))
            case ErrorReceived():
                exchange = self._under_way.pop(item.seq, None)
                if exchange is not None:
                    self._replies.append((exchange, error_from_report(item.report)))
            case EventReceived():
                self._receive_event(item.event, now)
            case ConnectionRefused():
                raise ProtocolViolation(item.reason)
            case _:
                pass

    def _receive_welcome(self, item: ReceivedByClient, now: float) -> None:
        """Handles messages before WELCOME. Raises if there will be no WELCOME."""
        match item:
            case ReplyReceived(reply=messages.Welcome() as welcome):
                pass
            case (
                ErrorReceived(report=report) | EventReceived(event=messages.ErrorReport() as report)
            ):
                error = error_from_report(report)
                # A refused HELLO is a refused connection, not a usage error.
                if isinstance(error, RequestRefused):
                    raise CannotConnect(error.message, code=error.code, field=error.field)
                raise error
            case ConnectionRefused(reason=reason):
                raise ProtocolViolation(f"this is not an NPLT server: {reason}")
            case _:
                return
        expected = self._address.instance
        if expected is not None and welcome.instance not in (None, expected):
            raise CannotConnect(f"{self._address} is another server than yours")
        if welcome.version not in self._hello.versions:
            raise ProtocolViolation(
                f"the server speaks version {welcome.version}, which was not offered to it"
            )
        is_first, self._welcome = self._welcome is None, welcome
        self._has_lagged = False
        self._liveness = Liveness(self._silence_seconds, now=now)
        if not is_first:
            self._put_change(WATCH_LAGGED)
        if is_first or self._must_move:
            self._move_to(Cursor(session_id=welcome.session_id), welcome.model)
            self._go_online(now)
        else:
            self._begin_resume(now)

    def _begin_resume(self, now: float) -> None:
        self.phase = Phase.RESUMING
        self._resume = Exchange(self._cursor.attach(), self._resume_steps, timeout=self.timeout)
        self._advance(self._resume, None, now)

    def _apply_reply(self, exchange: Exchange[object] | None, reply: AnyReply) -> None:
        """Updates the session from a reply. This is done in the order of the wire, because
        events after some replies belong to another conversation, or to the receipt's turn."""
        sent = exchange.sent if exchange is not None else None
        match reply:
            case messages.Attached():
                self._move_to(self._cursor.after_attach(reply, sent), reply.model)
                self._has_lagged = False
            case messages.SessionCreated() if isinstance(sent, messages.SessionNew):
                model = reply.model or sent.model
                self._move_to(Cursor(session_id=reply.session_id), model)
            case messages.SessionDeleted() if reply.current_session_id != self.session_id:
                self._move_to(Cursor(session_id=reply.current_session_id), reply.model)
            case messages.ModelChoice():
                self.model = reply.model
            case messages.Watching():
                for row in reply.sessions:
                    self._put_change(
                        messages.SessionChanged(session_id=row.session_id, what="state", row=row)
                    )
            case messages.Detached():
                self.attached = False
                self._leave_turns_except(None)
            case messages.Receipt() if isinstance(exchange, FollowedTurn):
                if reply.session_id != self.session_id:  # the old conversation was deleted
                    self._cursor = Cursor(session_id=reply.session_id, seq=reply.seq - 1)
                    self._must_move = False
                    self.model = reply.model or self.welcome.model
                self._follow(exchange, reply.turn_id, reply.session_id, reply.seq)
            case _:
                pass

    def _receive_event(self, event: messages.Event, now: float) -> None:
        if isinstance(event, messages.SessionChanged):
            self._put_change(event)
            return
        if isinstance(event, messages.SessionEvent) and event.details.get("watch") is True:
            self._put_change(WATCH_LAGGED)
            return
        if isinstance(event, messages.SessionEvent) and event.session_id == self.session_id:
            if event.event == "lagged":
                self._has_lagged = True
                if self.is_online:
                    self._begin_resume(now)
                return
            if event.event == "deleted":  # the server moves us to a fresh conversation
                self._must_move = True
                self.model = self.welcome.model
            elif event.event == "model" and isinstance(event.details.get("model"), str):
                self.model = str(event.details["model"])
        try:
            new = self._cursor.take(event)
        except RemoteProtocolError as error:
            raise ProtocolViolation(str(error)) from None
        if new is not None:
            self._put(new)

    def _put(self, event: messages.Event) -> None:
        if isinstance(event, messages.EntryAdded) and event.turn_id:
            message_id, seq = event.entry.get("message_id"), event.entry.get("seq")
            for turn in self._turns if message_id else ():
                is_its = turn.turn_id is None and turn.prompt.message_id == message_id
                if is_its and isinstance(seq, int):
                    self._follow(turn, event.turn_id, event.session_id, seq)
        turn_id = getattr(event, "turn_id", None)
        for turn in self._turns if turn_id else ():
            if turn.turn_id == turn_id:
                turn.put(event)
        self._put_to_feeds(event)

    def _put_change(self, event: messages.Event) -> None:
        for changes in tuple(self._change_queues):
            changes.put(event)

    def _put_to_feeds(self, event: messages.Event) -> None:
        for feed in tuple(self._feeds):
            feed.put(event)

    # Turns

    def _follow(self, turn: FollowedTurn, turn_id: str, session_id: str, seq: int) -> None:
        if not self.started_here(turn_id):
            self._own_turns.append(turn_id)
        if turn.turn_id is None:
            turn.turn_id, turn.session_id, turn.prompt_seq = turn_id, session_id, seq

    def _move_to(self, cursor: Cursor, model: str | None) -> None:
        """Attaches to another conversation, which `model` answers. An older server does not
        name the model of a new conversation; then it is the one in WELCOME."""
        self.model = model or self.welcome.model
        self._cursor = cursor
        self.attached = True
        self._must_move = False
        self._leave_turns_except(cursor.session_id)

    def _leave_turns_except(self, session_id: str | None) -> None:
        moved = "this client went to another conversation; the turn goes on there"
        self._close_turns(MovedElsewhere(moved), except_in=session_id)

    def _close_turns(self, error: NpltError, *, except_in: str | None = None) -> None:
        for turn in self._turns:
            if turn.turn_id is not None and turn.session_id != except_in:
                turn.events.close(error)

    # Steps of exchanges

    def prompt_steps(self, turn: FollowedTurn) -> Steps[messages.Receipt]:
        target = turn.session_id
        if target in self._never_stored:
            target = self.session_id
        prompt = turn.prompt
        if target not in (self.session_id, self._cursor.asked_for) or not self.attached:
            # Events come only for the attached conversation.
            yield messages.Attach(session_id=target, create=prompt.create, history=prompt.history)
        if prompt.session_id is not None:  # it may have been a name
            prompt = replace(prompt, session_id=self.session_id, create=None, history=None)
        receipt = yield prompt
        if not isinstance(receipt, messages.Receipt):
            raise ProtocolViolation(
                f"the server answered with {type(receipt).__name__} instead of Receipt"
            )
        if receipt.duplicate:
            # The turn began before it was followed, and its first events are not sent again.
            if receipt.state in ENDED:
                yield from self._replay_end(turn)
            else:
                yield from self._replay(turn, is_over=False)
        return receipt

    def _resume_steps(self) -> Steps[None]:
        """Attaches again. Then readers have every event, or a `lagged` event instead."""
        if not self.attached:
            yield messages.Detach()
            return
        old = self._cursor
        known = [turn for turn in self._turns if turn.turn_id is not None]
        try:
            attached = yield old.attach()
            if not isinstance(attached, messages.Attached):
                raise ProtocolViolation(f"the server answered ATTACH with {attached!r}")
            yield from self._catch_up(attached, known)
        except RequestRefused as refusal:
            # The conversation is gone, and this client is attached to the one in WELCOME.
            was_stored = old.seq > 0 or any(turn.turn_id is not None for turn in self._turns)
            self._close_turns(refusal)
            self._move_to(Cursor(session_id=self.welcome.session_id), self.welcome.model)
            if was_stored:
                what = "deleted" if refusal.code == "not_found" else "quarantined"
                self._put_to_feeds(messages.SessionEvent(session_id=old.session_id, event=what))
            else:  # its id was only reserved, by a server that has ended
                self._never_stored.add(old.session_id)

    def _catch_up(self, attached: messages.Attached, known: Sequence[FollowedTurn]) -> Steps[None]:
        """`known` are the turns that were followed before ATTACH was sent. The prompt of another
        turn may have been stored after the reply was made, which then does not mention it."""
        if attached.resync:
            details: JsonObject = {"head_seq": attached.head_seq}
            self._put_to_feeds(
                messages.SessionEvent(
                    session_id=attached.session_id, event="lagged", details=details
                )
            )
        for question in pending_approvals(attached):
            self._put(question)
        for turn in tuple(self._turns):
            is_here = turn.turn_id is not None and turn.session_id == attached.session_id
            is_newer = turn not in known and turn.prompt_seq > attached.head_seq
            if is_here and not turn.progress.is_over and not is_newer:
                yield from self._catch_up_with(turn, attached)

    def _catch_up_with(self, turn: FollowedTurn, attached: messages.Attached) -> Steps[None]:
        """Completes a turn that ended meanwhile: the server replays its entries, but not its
        TURN_FINISHED. The last entry gives the end; entries that were not replayed are read
        from the record."""
        active = attached.active_turn
        if active is not None and active.turn_id == turn.turn_id:
            if not turn.progress.has_started:
                turn.put(
                    messages.TurnStarted(
                        session_id=turn.session_id,
                        turn_id=active.turn_id,
                        seq=turn.prompt_seq,
                        model=active.model,
                    )
                )
            if attached.resync:
                yield from self._replay(turn, is_over=False)
        elif has_ended(turn.turn_id or "", attached):
            yield from self._replay_end(turn)

    def _replay_end(self, turn: FollowedTurn) -> Steps[None]:
        if turn.progress.end is None:
            yield from self._replay(turn, is_over=True)
        else:
            turn.put(turn.progress.end)

    def _replay(self, turn: FollowedTurn, *, is_over: bool) -> Steps[None]:
        events = yield from replay_from_record(
            turn.session_id, turn.turn_id or "", turn.prompt_seq, is_over=is_over
        )
        for event in events:
            turn.put(event)


# Repeating requests


_IDEMPOTENT = (
    messages.Approval,  # only the first decision counts
    messages.Attach,
    messages.ContextRequest,
    messages.Detach,
    messages.FileGet,
    messages.HistoryRequest,
    messages.Ping,
    messages.Search,
    messages.Seen,
    messages.SessionList,
    messages.SessionSwitch,
    messages.StatusRequest,
    messages.Tools,
    messages.Usage,
    messages.Watch,
)


def may_repeat(request: messages.Request) -> bool:
    """Whether it is idempotent, so that it can be sent again if its reply was lost.

    Any other request (a new conversation, a rename, a deletion, an upload …) may have taken
    effect or not, and the caller has to find out.
    """
    match request:
        case messages.Prompt():
            return request.message_id is not None
        case messages.ModelSwitch():
            return request.model is None and request.role is None
        case messages.Cancel():  # without an id it means the turn of the lost connection
            return request.turn_id is not None
        case _:
            return isinstance(request, _IDEMPOTENT)


def pending_approvals(attached: messages.Attached) -> list[messages.ApprovalRequest]:
    """Returns the approval requests that are open at ATTACH. Those that can't be decoded, from a
    newer server, are left out."""
    questions: list[messages.ApprovalRequest] = []
    for pending in attached.pending_approvals:
        try:
            question = from_object(
                messages.ApprovalRequest, {"session_id": attached.session_id, **pending}
            )
        except RequestError:
            continue
        questions.append(question)
    return questions


# Errors


def connect_error(address: Address, error: OSError | UnicodeError) -> CannotConnect:
    if address.tls:
        from ssl import SSLError  # slow to load

        from nplt_client.wire.tls import handshake_error

        if isinstance(error, SSLError):
            return handshake_error(address, error)
    reason = getattr(error, "strerror", None) or str(error)
    # asyncio's message names its own call, for one address or several, not the system's error.
    numbers = re.findall(r"\[Errno (\d+)\] Connect call failed", str(error))
    if isinstance(error, TimeoutError):
        reason = "no reply in time"
    elif numbers:
        reason = "; ".join(dict.fromkeys(os.strerror(int(number)) for number in numbers))
    nothing_listens = reason == os.strerror(errno.ECONNREFUSED)
    hint = "; is nplt-server running there?" if nothing_listens else ""
    refusal = CannotConnect(f"can't connect to {address}: {reason}{hint}")
    refusal.nothing_listens = nothing_listens
    return refusal


def _send_error(request: messages.Request, error: LocalProtocolError) -> NpltError:
    """Distinguishes a request that is too long for this server from one that can't be encoded."""
    try:
        dump_json(request)
    except LocalProtocolError as unspeakable:
        return RequestRefused(str(unspeakable), code="malformed")
    return LimitExceeded(str(error), code="too_large")
