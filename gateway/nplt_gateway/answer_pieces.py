"""The pieces in which an answer reaches the endpoints, and the interface of answers.

`unrecorded` makes them of a provider's deltas, `recorded` of the events of a conversation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeAlias

from msgspec import Struct

from nplt_protocol import JsonValue


class Text(Struct, frozen=True):
    text: str


class Reasoning(Struct, frozen=True):
    text: str


class CallPiece(Struct, frozen=True, kw_only=True):
    """A piece of a call of a tool that the client runs. The first piece of a call has its id and
    name."""

    index: int
    arguments: str
    call_id: str = ""
    name: str = ""


class Ended(Struct, frozen=True, kw_only=True):
    stop_reason: str
    usage: Mapping[str, JsonValue]
    model: str


AnswerPiece: TypeAlias = Text | Reasoning | CallPiece | Ended


class Answer(Protocol):
    """An answer that is being made."""

    model: str
    answer_id: str

    async def next_pieces(self) -> list[AnswerPiece]:
        """Returns the pieces that came since the last call, at least one; waits for them. The last
        piece is `Ended`. A caller may give up waiting and call again. Raises `ApiError` or
        `RequestError` if the answer failed."""
        ...

    def finish(self) -> None:
        """The client has all of it."""
        ...

    async def close(self) -> None:
        """The client wants no more of it."""
        ...
