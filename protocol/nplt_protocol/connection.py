"""Connections without I/O: the states, the table of transitions, and what is received.

A connection is two state machines that never touch a socket. Bytes go in at
`receive_data`, which returns the messages as values. `send_…` returns bytes.
`data_to_send` returns replies that need no decision (a PONG). The owner of a
connection moves the bytes and has the clock, so that every rule of the wire can
be tested by connecting a client to a server in memory, byte by byte.

`SERVER_STATES` and `CLIENT_STATES` list what each end may send and receive in
each state, and the state that follows. Both ends check what they do against
these tables, and SPEC.md (4.7) shows the same ones. A step that a state does not
list can't be taken there: sending raises LocalProtocolError, and what is
received is dropped by a client and refused by a server. `close` leads from
every state to CLOSED, which lists nothing.

The server begins UNDECIDED: one port serves two dialects, and the client's first
frame selects one. Before that the server may greet with a text, which both
dialects understand. The first byte is enough to refuse other protocols: it is
HELLO, or a code that plain clients send, or something like `GET /`, whose
"frame" might never be complete. A TLS ClientHello looks like a plain SESSION_NEW,
so that frame is checked further. A channel of a link begins STRUCTURED, because
its client has sent HELLO to another server.

After HELLO the server is AWAITING_WELCOME. Requests may follow without
waiting; they are received in order. Until WELCOME only an error or a greeting
can be sent, since a client drops everything else. A HELLO that was refused by
an error may be followed by another. WELCOME makes the connection STRUCTURED. A
first plain frame makes it PLAIN at once. Neither dialect turns into the other.

The client begins NEW, or PLAIN if it was made for the plain dialect. HELLO makes
it AWAITING_WELCOME: it keeps texts as the greeting, receives errors and drops
all else. WELCOME makes it STRUCTURED.

Three things can go wrong. One message is bad: RequestRefused; the owner sends
an error, and the connection lives on. The bytes can't be framed, or belong to
another protocol: ConnectionRefused; nothing is received any more, the owner
may still send the reason, and closes. The owner sends something that can't be
sent in this state: LocalProtocolError, and no bytes.

A request of the structured dialect carries a number that the client chooses.
The connection keeps the numbers of the requests without a reply, so that none is used
twice at a time and none gets two replies. A PING gets its PONG here, at once,
whatever its number. FILE_DATA carries the number of its upload. Events carry
no number; they are encoded once for all clients, outside the connection.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import ClassVar, TypeAlias

from msgspec import Struct

from nplt_protocol.codes import MessageType
from nplt_protocol.errors import LocalProtocolError, RequestError
from nplt_protocol.frames import FragmentJoiner, FrameDecoder, WireLimits
from nplt_protocol.json_text import JsonObject
from nplt_protocol.messages import ErrorReport, Event, Reply, Request


class Dialect(Enum):
    PLAIN = "plain"
    STRUCTURED = "structured"


class State(Enum):
    NEW = auto()
    UNDECIDED = auto()
    AWAITING_WELCOME = auto()
    PLAIN = auto()
    STRUCTURED = auto()
    CLOSED = auto()

    __hash__ = object.__hash__  # Enum's own is written in Python, and slow


class Step(Enum):
    """The messages that an end sends or receives, in the words of SPEC.md."""

    SEND_HELLO = "sends HELLO"
    RECEIVE_HELLO = "receives HELLO"
    SEND_WELCOME = "sends WELCOME"
    RECEIVE_WELCOME = "receives WELCOME"
    SEND_REQUEST = "sends a request"
    RECEIVE_REQUEST = "receives a request"
    SEND_REPLY = "sends a reply"
    RECEIVE_REPLY = "receives a reply"
    SEND_ERROR = "sends an error"
    RECEIVE_ERROR = "receives an error"
    SEND_EVENT = "sends an event"
    RECEIVE_EVENT = "receives an event"
    REPLY_TO_PING = "receives PING, sends PONG"
    SEND_TEXT = "sends a text"
    RECEIVE_TEXT = "receives a text"
    SEND_THOUGHT = "sends a thought"
    RECEIVE_THOUGHT = "receives a thought"
    SEND_PLAIN_REQUEST = "sends a plain request"
    RECEIVE_PLAIN_REQUEST = "receives a plain request"

    __hash__ = object.__hash__


Transitions: TypeAlias = Mapping[State, Mapping[Step, State]]
"""The steps that each state allows, and the state that follows."""

SERVER_STATES: Transitions = {
    State.UNDECIDED: {
        Step.SEND_TEXT: State.UNDECIDED,
        Step.RECEIVE_HELLO: State.AWAITING_WELCOME,
        Step.RECEIVE_PLAIN_REQUEST: State.PLAIN,
    },
    State.AWAITING_WELCOME: {
        Step.RECEIVE_HELLO: State.AWAITING_WELCOME,
        Step.RECEIVE_REQUEST: State.AWAITING_WELCOME,
        Step.SEND_TEXT: State.AWAITING_WELCOME,
        Step.SEND_ERROR: State.AWAITING_WELCOME,
        Step.SEND_WELCOME: State.STRUCTURED,
    },
    State.STRUCTURED: {
        Step.RECEIVE_REQUEST: State.STRUCTURED,
        Step.REPLY_TO_PING: State.STRUCTURED,
        Step.SEND_REPLY: State.STRUCTURED,
        Step.SEND_ERROR: State.STRUCTURED,
        Step.SEND_EVENT: State.STRUCTURED,
    },
    State.PLAIN: {
        Step.RECEIVE_PLAIN_REQUEST: State.PLAIN,
        Step.SEND_TEXT: State.PLAIN,
        Step.SEND_THOUGHT: State.PLAIN,
    },
    State.CLOSED: {},
}

CLIENT_STATES: Transitions = {
    State.NEW: {
        Step.RECEIVE_TEXT: State.NEW,
        Step.RECEIVE_ERROR: State.NEW,
        Step.SEND_HELLO: State.AWAITING_WELCOME,
    },
    State.AWAITING_WELCOME: {
        Step.SEND_HELLO: State.AWAITING_WELCOME,
        Step.SEND_REQUEST: State.AWAITING_WELCOME,
        Step.RECEIVE_TEXT: State.AWAITING_WELCOME,
        Step.RECEIVE_ERROR: State.AWAITING_WELCOME,
        Step.RECEIVE_WELCOME: State.STRUCTURED,
    },
    State.STRUCTURED: {
        Step.SEND_REQUEST: State.STRUCTURED,
        Step.REPLY_TO_PING: State.STRUCTURED,
        Step.RECEIVE_REPLY: State.STRUCTURED,
        Step.RECEIVE_ERROR: State.STRUCTURED,
        Step.RECEIVE_EVENT: State.STRUCTURED,
    },
    State.PLAIN: {
        Step.SEND_PLAIN_REQUEST: State.PLAIN,
        Step.RECEIVE_TEXT: State.PLAIN,
        Step.RECEIVE_THOUGHT: State.PLAIN,
    },
    State.CLOSED: {},
}


class Connection:
    """The base class of both ends of a connection, and of the ends of a link."""

    transitions: ClassVar[Transitions] = {State.STRUCTURED: {}, State.CLOSED: {}}
    """A link has one state while it is open."""

    __slots__ = ("_decoder", "_input_ended", "_joiner", "_limits", "_pongs", "state")

    def __init__(self, state: State, limits: WireLimits) -> None:
        self.state = state
        self._limits = limits
        self._decoder = FrameDecoder(limits.frame_bytes_max)
        self._joiner = FragmentJoiner(limits.message_bytes_max)
        self._pongs: list[bytes] = []
        self._input_ended = False

    def allows(self, step: Step) -> bool:
        return step in self.transitions[self.state]

    def after(self, step: Step) -> State:
        """The state that follows the step."""
        follows = self.transitions[self.state].get(step)
        if follows is None:
            what = step.value.removeprefix("sends ")
            raise LocalProtocolError(f"{what} can't be sent while {self.state.name}")
        return follows

    @property
    def has_partial(self) -> bool:
        """Whether part of a message was received and the rest is missing."""
        return self._decoder.has_partial or self._joiner.is_open

    def data_to_send(self) -> bytes:
        """Returns the replies that need no decision by the owner: PONGs."""
        if not self._pongs:
            return b""
        pongs = b"".join(self._pongs)
        self._pongs.clear()
        return pongs

    def close(self) -> None:
        self.end_input()
        self._pongs.clear()
        self.state = State.CLOSED

    def end_input(self) -> None:
        """Stops receiving, and drops an unfinished message."""
        self._input_ended = True
        self._joiner.reset()
        self._decoder = FrameDecoder()


class RequestReceived(Struct, frozen=True, kw_only=True):
    type: MessageType
    seq: int
    request: Request


class RequestRefused(Struct, frozen=True, kw_only=True):
    """One message is bad. The owner replies with `send_error` and this seq, and goes on."""

    type: int
    seq: int
    error: RequestError


class ConnectionRefused(Struct, frozen=True, kw_only=True):
    """The input can't be used any more. The owner sends the reason and closes."""

    reason: str


Received: TypeAlias = RequestReceived | RequestRefused | ConnectionRefused
"""The values that a server's connection returns."""


class ReplyReceived(Struct, frozen=True, kw_only=True):
    seq: int
    request_type: MessageType
    reply: Reply | JsonObject


class ErrorReceived(Struct, frozen=True, kw_only=True):
    """The request with this seq was refused or has failed."""

    seq: int
    report: ErrorReport


class EventReceived(Struct, frozen=True, kw_only=True):
    event: Event


class TextReceived(Struct, frozen=True, kw_only=True):
    """A greeting, or a text of the plain dialect, where an empty text ends an answer."""

    text: str


class ThoughtReceived(Struct, frozen=True, kw_only=True):
    payload: JsonObject


ReceivedByClient: TypeAlias = (
    ReplyReceived
    | ErrorReceived
    | EventReceived
    | TextReceived
    | ThoughtReceived
    | ConnectionRefused
)
"""The values that a client's connection returns."""
