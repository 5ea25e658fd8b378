"""Connections without I/O: states, transitions, and what is heard.

Theory of operation
===================

A connection is two state machines that never touch a socket. Bytes go in at
`receive_data`, which gives back values that say what was heard; `send_…`
gives back bytes that say it; `data_to_send` gives the answers nobody needs to
think about (a PONG). Whoever owns the connection moves the bytes, and owns the
clock. So every rule of the wire can be tested by joining a client to a server
in memory, byte by byte.

The server begins UNDECIDED: one port, two dialects, and only the client's
first frame tells which. The server may greet with a text before that, for a
text is what both dialects understand. The first byte is enough to turn away
strangers: it is HELLO, or a code that plain clients send, or it is somebody
else's protocol (`GET /`, `POST /`), whose "frame" might never be complete. A
TLS hello happens to look like a plain SESSION_NEW, so that one frame is looked
at more closely.

After HELLO the server is AWAITING_WELCOME: requests may follow without
waiting, they are heard and kept in order, but nothing but an error or a late
greeting can be said until WELCOME, since a client drops what comes before it.
A HELLO that was answered by an error may be followed by another. WELCOME makes
the connection STRUCTURED. A first plain frame makes it PLAIN at once. Neither
dialect ever turns into the other.

Three things can be wrong with what is heard. One message is bad: it is
RequestRefused, the owner says so, the connection lives. The bytes can't be
framed, or come from a stranger: ConnectionRefused, and the connection is deaf
from then on; the owner may still say last words and closes. And the owner may
ask for something that can't be said now: LocalProtocolError, and no bytes.

A request in the structured dialect carries a number of the client's choice.
The connection remembers the numbers still unanswered, so that none is used
twice at a time and none is answered twice. A PING stands outside: it is
answered here, at once, and its number is not looked at. So does FILE_DATA,
which carries the number of the upload it belongs to. Events carry no number;
they are encoded once for everyone, outside the connection.

The client begins NEW (or PLAIN, if it was told so). HELLO makes it
AWAITING_WELCOME: texts are kept as the greeting, errors are heard, all else is
dropped. WELCOME makes it STRUCTURED.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, TypeAlias

from nplt_protocol.codes import MessageType
from nplt_protocol.errors import RequestError
from nplt_protocol.events import ErrorReport, Event
from nplt_protocol.json_values import JsonObject
from nplt_protocol.replies import Reply
from nplt_protocol.requests import Request

if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    from nplt_protocol.values import dataclass


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


class Cue(Enum):
    """What makes a connection change its state."""

    HELLO = auto()
    PLAIN_FRAME = auto()
    WELCOME = auto()
    CLOSE = auto()


SERVER_TRANSITIONS: dict[State, dict[Cue, State]] = {
    State.UNDECIDED: {
        Cue.HELLO: State.AWAITING_WELCOME,
        Cue.PLAIN_FRAME: State.PLAIN,
        Cue.CLOSE: State.CLOSED,
    },
    State.AWAITING_WELCOME: {Cue.WELCOME: State.STRUCTURED, Cue.CLOSE: State.CLOSED},
    State.PLAIN: {Cue.CLOSE: State.CLOSED},
    State.STRUCTURED: {Cue.CLOSE: State.CLOSED},
    State.CLOSED: {Cue.CLOSE: State.CLOSED},
}

CLIENT_TRANSITIONS: dict[State, dict[Cue, State]] = {
    State.NEW: {Cue.HELLO: State.AWAITING_WELCOME, Cue.CLOSE: State.CLOSED},
    State.AWAITING_WELCOME: {Cue.WELCOME: State.STRUCTURED, Cue.CLOSE: State.CLOSED},
    State.PLAIN: {Cue.CLOSE: State.CLOSED},
    State.STRUCTURED: {Cue.CLOSE: State.CLOSED},
    State.CLOSED: {Cue.CLOSE: State.CLOSED},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestReceived:
    type: MessageType
    seq: int
    request: Request


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRefused:
    """One bad message; say so (`send_error` with this seq) and go on."""

    type: int
    seq: int
    error: RequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionRefused:
    """Nothing more will be heard; say the reason and close."""

    reason: str


Received: TypeAlias = RequestReceived | RequestRefused | ConnectionRefused
"""What a server hears."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyReceived:
    seq: int
    request_type: MessageType
    reply: Reply | JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorReceived:
    """The answer to the request with this seq is no."""

    seq: int
    report: ErrorReport


@dataclass(frozen=True, slots=True, kw_only=True)
class EventReceived:
    event: Event


@dataclass(frozen=True, slots=True, kw_only=True)
class TextReceived:
    """Plain, or a greeting before WELCOME. In plain an empty one ends a chat."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ThoughtReceived:
    payload: JsonObject


Heard: TypeAlias = (
    ReplyReceived
    | ErrorReceived
    | EventReceived
    | TextReceived
    | ThoughtReceived
    | ConnectionRefused
)
"""What a client hears."""
