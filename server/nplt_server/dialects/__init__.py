"""The two dialects of the wire, behind one port.

`Presenter` tells one client of replies and events; `structured` is version 3, `plain`
version 2. No other part of the server knows that there are two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import orjson

from nplt_protocol import Dialect, JsonObject, MessageType, Received, RequestError, ServerConnection
from nplt_protocol.messages import Reply
from nplt_protocol.stream import FrameStream
from nplt_server.conversations.broadcast import BroadcastEvent
from nplt_server.dialects.plain import NO_TOKEN, PlainPresenter, too_silent
from nplt_server.dialects.structured import StructuredPresenter
from nplt_server.settings import Limits

__all__ = ["NO_TOKEN", "Answer", "Presenter", "check_silence", "presenter_for", "written_size"]


class Presenter(Protocol):
    """Tells one client of replies and events, in its dialect."""

    has_handshake: bool
    """Whether this client says HELLO, and with it a token."""
    can_decide: bool
    """Whether people there can be asked whether a tool may be run."""

    def number(self, seq: int) -> int:
        """The seq to answer under; 0 in a dialect whose answers have none."""
        ...

    @property
    def answer_bytes_max(self) -> int | None: ...

    def answer(self, message_type: MessageType, seq: int, reply: Reply) -> None: ...

    def refuse(self, message_type: int, seq: int, error: RequestError) -> None: ...

    def send_event(self, event: BroadcastEvent) -> bool:
        """False: this client is too far behind, and the event was not sent."""
        ...

    def replay(self, frames: bytes) -> None:
        """Sends missed events of the conversation that is entered now."""
        ...

    def lagged(self, session_id: str, head_seq: int) -> None:
        """The client was taken out of the subscribers and must catch up."""
        ...

    @property
    def is_ready(self) -> bool:
        """May the next request be taken up?"""
        ...

    async def ready(self) -> None: ...

    def expect(self, message_type: int) -> None:
        """A request of this type was taken up; its answer will come."""
        ...

    def check_silence(self, silence: float, unsent: float, limits: Limits) -> str | None:
        """For so many seconds nothing came from this client, and nothing was sent to it: sends
        a sign of life if one is due, or gives the reason to close the connection."""
        ...

    def last_words(self, error: RequestError) -> None:
        """Sends the reason before the server closes the connection."""
        ...


def presenter_for(connection: ServerConnection, stream: FrameStream[Received]) -> Presenter:
    """The first frame told which dialect this is."""
    if connection.dialect is Dialect.STRUCTURED:
        return StructuredPresenter(connection, stream)
    return PlainPresenter(connection, stream)


def check_silence(
    presenter: Presenter | None, silence: float, unsent: float, limits: Limits
) -> str | None:
    """As `Presenter.check_silence`; without a presenter, of a client whose first frame is
    still to come."""
    if presenter is None:
        return too_silent(silence, limits)
    return presenter.check_silence(silence, unsent, limits)


def written_size(message: JsonObject) -> int:
    """Bytes of a message in whichever dialect it goes out: brackets count as the plain
    dialect writes them."""
    data = orjson.dumps(message)
    return len(data) + 5 * data.count(b"[")


class Answer:
    """The one reply a request gets, now or when it is ready."""

    __slots__ = ("_given", "_message_type", "_presenter", "_settled", "seq")

    def __init__(
        self,
        presenter: Presenter,
        message_type: MessageType,
        seq: int,
        settled: Callable[[], None],
    ) -> None:
        self._settled = settled
        self._presenter = presenter
        self._message_type = message_type
        self.seq = seq
        self._given = False

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
            self._settle()

    def refuse(self, error: RequestError) -> None:
        if not self._given:
            self._presenter.refuse(self._message_type, self.seq, error)
            self._settle()

    def _settle(self) -> None:
        self._given = True
        self._settled()
