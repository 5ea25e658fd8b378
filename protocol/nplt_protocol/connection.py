"""Connections without I/O: the states, the transitions, and what is received.

A connection is two state machines that never touch a socket. Bytes go in at
`receive_data`, which returns values that say what was received. `send_…`
returns bytes. `data_to_send` returns the answers that need no decision (a
PONG). The owner of a connection moves the bytes and has the clock, so that
every rule of the wire can be tested by joining a client to a server in memory,
byte by byte.

    client   NEW ───────HELLO────────▶ AWAITING_WELCOME ──WELCOME──▶ STRUCTURED
    server   UNDECIDED ─HELLO────────▶ AWAITING_WELCOME ──WELCOME──▶ STRUCTURED
             UNDECIDED ─plain frame──▶ PLAIN
             any ───────close────────▶ CLOSED

The server begins UNDECIDED: one port has two dialects, and the client's first
frame tells which. Before that the server may greet with a text, which both
dialects understand. The first byte is enough to refuse other protocols: it is
HELLO, or a code that plain clients send, or something like `GET /`, whose
"frame" might never be complete. A TLS hello looks like a plain SESSION_NEW, so
that one frame is looked at more closely.

After HELLO the server is AWAITING_WELCOME. Requests may follow without
waiting; they are received in order. Until WELCOME only an error or a greeting
can be sent, since a client drops everything else. A HELLO that was answered by
an error may be followed by another. WELCOME makes the connection STRUCTURED. A
first plain frame makes it PLAIN at once. Neither dialect turns into the other.

Three things can go wrong. One message is bad: RequestRefused; the owner sends
an error, and the connection lives on. The bytes can't be framed, or belong to
another protocol: ConnectionRefused; nothing is received any more, the owner
may still send the reason, and closes. The owner sends something that can't be
sent in this state: LocalProtocolError, and no bytes.

A request of the structured dialect carries a number of the client's choice.
The connection keeps the numbers of unanswered requests, so that none is used
twice at a time and none is answered twice. A PING is answered here, at once,
whatever its number. FILE_DATA carries the number of its upload. Events carry
no number; they are encoded once for all clients, outside the connection.

The client begins NEW (or PLAIN, if it was made so). HELLO makes it
AWAITING_WELCOME: texts are kept as the greeting, errors are received, all else
is dropped. WELCOME makes it STRUCTURED.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TypeAlias

from msgspec import Struct

from nplt_protocol.codes import MessageType
from nplt_protocol.errors import RequestError
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


class Connection:
    """What all ends have in common, those of a link too."""

    __slots__ = ("_answers", "_decoder", "_input_ended", "_joiner", "_limits", "state")

    def __init__(self, state: State, limits: WireLimits) -> None:
        self.state = state
        self._limits = limits
        self._decoder = FrameDecoder(limits.frame_bytes_max)
        self._joiner = FragmentJoiner(limits.message_bytes_max)
        self._answers: list[bytes] = []
        self._input_ended = False

    @property
    def has_partial(self) -> bool:
        """A message was begun and not finished."""
        return self._decoder.has_partial or self._joiner.is_open

    def data_to_send(self) -> bytes:
        """The answers that need no decision of the owner: PONGs."""
        if not self._answers:
            return b""
        answers = b"".join(self._answers)
        self._answers.clear()
        return answers

    def close(self) -> None:
        self.end_input()
        self._answers.clear()
        self.state = State.CLOSED

    def end_input(self) -> None:
        """Nothing more is read: what was begun and not finished is dropped."""
        self._input_ended = True
        self._joiner.reset()
        self._decoder = FrameDecoder()


class RequestReceived(Struct, frozen=True, kw_only=True):
    type: MessageType
    seq: int
    request: Request


class RequestRefused(Struct, frozen=True, kw_only=True):
    """One bad message. Answer it (`send_error` with this seq) and go on."""

    type: int
    seq: int
    error: RequestError


class ConnectionRefused(Struct, frozen=True, kw_only=True):
    """Nothing more will be received. Send the reason and close."""

    reason: str


Received: TypeAlias = RequestReceived | RequestRefused | ConnectionRefused
"""What a server receives."""


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
    """Plain, or a greeting before WELCOME. In plain an empty one ends a chat."""

    text: str


class ThoughtReceived(Struct, frozen=True, kw_only=True):
    payload: JsonObject


Heard: TypeAlias = (
    ReplyReceived
    | ErrorReceived
    | EventReceived
    | TextReceived
    | ThoughtReceived
    | ConnectionRefused
)
"""What a client receives."""
