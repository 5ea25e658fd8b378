"""The two dialects of the wire, behind one port.

A `Presenter` tells one client of replies and events: itself one of version 3, its subclass in
`plain` one of version 2. No other part of the server knows that there are two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import orjson

from nplt_protocol import (
    Dialect,
    JsonObject,
    MessageType,
    Received,
    RequestError,
    ServerConnection,
    encode_event,
)
from nplt_protocol.messages import Reply, SessionEvent
from nplt_protocol.stream import FrameStream
from nplt_server.conversations.broadcast import BroadcastEvent
from nplt_server.settings import Limits

NO_TOKEN = (
    "This server needs a token, and version 2 of the protocol can't send one. "
    "Use a client of version 3, such as nplt."
)


class Presenter:
    """Tells one client of replies and events. For version 3: typed JSON. A reply carries the
    seq of its request; event frames are encoded once for all clients."""

    __slots__ = ("_connection", "_stream")

    has_handshake = True
    """Whether this client says HELLO, and with it a token."""
    can_decide = True
    """Whether people there can be asked whether a tool may be run."""
    answer_bytes_max: int | None = None

    def __init__(self, connection: ServerConnection, stream: FrameStream[Received]) -> None:
        self._connection = connection
        self._stream = stream

    def number(self, seq: int) -> int:
        """The seq to answer under; 0 in a dialect whose answers have none."""
        return seq

    def answer(self, message_type: MessageType, seq: int, reply: Reply) -> None:
        self._stream.send(self._connection.send_reply(message_type, seq, reply))

    def refuse(self, message_type: int, seq: int, error: RequestError) -> None:
        self._stream.send(self._connection.send_error(seq, error))

    def send_event(self, event: BroadcastEvent) -> bool:
        """False: this client is too far behind, and the event was not sent."""
        return self._stream.send_event(event.frames)

    def replay(self, frames: bytes) -> None:
        """Sends missed events of the conversation that is entered now."""
        self._stream.send(frames)

    def lagged(self, session_id: str, head_seq: int) -> None:
        """The client was taken out of the subscribers and must catch up."""
        event = SessionEvent(session_id=session_id, event="lagged", details={"head_seq": head_seq})
        self._stream.send(encode_event(event))

    @property
    def is_ready(self) -> bool:
        """May the next request be taken up? Here always; only replies may overtake each other."""
        return True

    async def ready(self) -> None:
        pass

    def expect(self, message_type: int) -> None:
        """A request of this type was taken up; its answer will come."""

    def check_silence(self, silence: float, unsent: float, limits: Limits) -> str | None:
        """For so many seconds nothing came from this client, and nothing was sent to it: sends
        a sign of life if one is due, or gives the reason to close the connection. Here it may
        be silent for as long as it likes, unless it names a `keepalive`."""

    def last_words(self, error: RequestError) -> None:
        """Sends the reason before the server closes the connection."""
        self._stream.send(self._connection.send_error(0, error))


def presenter_for(connection: ServerConnection, stream: FrameStream[Received]) -> Presenter:
    """The first frame told which dialect this is."""
    if connection.dialect is Dialect.STRUCTURED:
        return Presenter(connection, stream)
    from nplt_server.dialects.plain import PlainPresenter  # most clients are of version 3

    return PlainPresenter(connection, stream)


def too_silent(silence: float, limits: Limits) -> str | None:
    """Why a plain client, or one whose first frame is still to come, is sent away."""
    if silence <= limits.plain_silence_seconds_max:
        return None
    return f"Nothing came from you for {silence:.0f} s. Connect again."


def written_size(message: JsonObject) -> int:
    """Bytes of a message in whichever dialect it goes out: brackets count as the plain
    dialect writes them."""
    data = orjson.dumps(message)
    return len(data) + 5 * data.count(b"[")


@dataclass(slots=True, eq=False)
class Answer:
    """The one reply a request gets, now or when it is ready."""

    _presenter: Presenter
    _message_type: MessageType
    seq: int
    _settled: Callable[[], None]
    _given: bool = False

    @property
    def bytes_max(self) -> int | None:
        """How long the answer may be at most, if this client has a limit of its own."""
        return self._presenter.answer_bytes_max

    def complain(self, error: RequestError) -> None:
        """About a message that has no answer of its own."""
        self._presenter.refuse(self._message_type, 0, error)

    def give(self, reply: Reply) -> None:
        if not self._given:
            # If it can't be said, it isn't given, and may still be refused.
            self._presenter.answer(self._message_type, self.seq, reply)
            self._given = True
            self._settled()

    def refuse(self, error: RequestError) -> None:
        if not self._given:
            self._presenter.refuse(self._message_type, self.seq, error)
            self._given = True
            self._settled()
