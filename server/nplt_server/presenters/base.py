"""The presenter port: how what happened is told to one client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from nplt_protocol.codes import MessageType
from nplt_protocol.errors import RequestError
from nplt_protocol.replies import Reply
from nplt_server.conversations.audience import Said


class Presenter(Protocol):
    numbers_requests: bool
    """Whether the seq of a request means anything to this client."""

    @property
    def answer_bytes_max(self) -> int | None: ...

    def answer(self, message_type: MessageType, seq: int, reply: Reply) -> None: ...

    def refuse(self, message_type: int, seq: int, error: RequestError) -> None: ...

    def hear(self, said: Said) -> bool:
        """False: this client is too far behind, and was not told."""
        ...

    def replay(self, frames: bytes) -> None:
        """What was said in the conversation that is entered now."""
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

    __slots__ = ("_given", "_message_type", "_presenter", "_seq", "_settled")

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
        self._seq = seq
        self._given = False

    @property
    def bytes_max(self) -> int | None:
        """How long the answer may be at most, if this client has a limit of its own."""
        return self._presenter.answer_bytes_max

    def complain(self, error: RequestError) -> None:
        """About a message that has no answer of its own."""
        self._presenter.refuse(self._message_type, 0, error)

    @property
    def seq(self) -> int:
        return self._seq

    def give(self, reply: Reply) -> None:
        if not self._given:
            # If it can't be said, it isn't given, and may still be refused.
            self._presenter.answer(self._message_type, self._seq, reply)
            self._settle()

    def refuse(self, error: RequestError) -> None:
        if not self._given:
            self._presenter.refuse(self._message_type, self._seq, error)
            self._settle()

    def _settle(self) -> None:
        self._given = True
        self._settled()
