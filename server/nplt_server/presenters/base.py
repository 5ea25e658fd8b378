"""The presenter port: how what happened is told to one client."""

from __future__ import annotations

from typing import Protocol

from nplt_protocol.codes import MessageType
from nplt_protocol.errors import RequestError
from nplt_protocol.replies import Reply
from nplt_server.audience import Said


class Presenter(Protocol):
    numbers_requests: bool
    """Whether the seq of a request means anything to this client."""

    def answer(self, message_type: MessageType, seq: int, reply: Reply) -> None: ...

    def refuse(self, message_type: int, seq: int, error: RequestError) -> None: ...

    def hear(self, said: Said) -> bool:
        """False: this client is too far behind, and was not told."""
        ...

    def lagged(self, session_id: str, head_seq: int) -> None:
        """The client was taken out of the audience and must catch up."""
        ...

    @property
    def is_ready(self) -> bool:
        """May the next request be taken up?"""
        ...

    async def ready(self) -> None: ...

    def expect(self, message_type: int) -> None:
        """A request of this type was taken up; its answer will come."""
        ...

    def heartbeat(self) -> None:
        """Nothing was said for a while."""
        ...

    def last_words(self, error: RequestError) -> None:
        """Said before the server closes the connection."""
        ...


class Answer:
    """The one reply a request gets, now or when it is ready."""

    __slots__ = ("_given", "_message_type", "_presenter", "_seq")

    def __init__(self, presenter: Presenter, message_type: MessageType, seq: int) -> None:
        self._presenter = presenter
        self._message_type = message_type
        self._seq = seq
        self._given = False

    @property
    def is_given(self) -> bool:
        return self._given

    @property
    def seq(self) -> int:
        return self._seq

    def give(self, reply: Reply) -> None:
        if not self._given:
            self._given = True
            self._presenter.answer(self._message_type, self._seq, reply)

    def refuse(self, error: RequestError) -> None:
        if not self._given:
            self._given = True
            self._presenter.refuse(self._message_type, self._seq, error)
