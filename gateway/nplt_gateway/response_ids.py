"""Ids of responses, conversations and items, and the numbers of a stream's events.

No table is kept. An id contains the ids of this server, so that any server finds what it names,
years later too. The number of an event follows from the place in the record that it reports: from
the call, the part of its output and the code points of that part. So a stream that is resumed has
the numbers it would have had, whatever pieces it is sent in. Numbers grow, with gaps.

    resp_<seq of the prompt>_<turn>_<conversation>
    conv_<conversation>
    msg_<seq of the prompt>_<call>_<turn>      also rs_, fc_ and mcp_; without a call: the prompt

    number        BITS  FIELD
                  41+   the call, counted from 1
                  29-40 the part: 0 reasoning, 1 text, 2 and more calls, 2047 sealed
                         reasoning, from 2048 results
                  0-28  the step: 0 and 1 open the part, then its code points, the last 8 close it
"""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

from nplt_protocol.messages import TurnPlace

CREATED: Final = 0
IN_PROGRESS: Final = 1
ENDED: Final = 2**52
"""The numbers of the first two events and of the last one. JavaScript counts to 2**53."""

REASONING: Final = 0
TEXT: Final = 1
FIRST_CALL: Final = 2
SEALED: Final = 2047
FIRST_RESULT: Final = 2048

_STEP_BITS: Final = 29
_PART_BITS: Final = 12
_CLOSING: Final = 2**_STEP_BITS - 8
_OPENING: Final = 2
_RESPONSE: Final = re.compile(r"resp_([0-9]{1,15})_([0-9a-f]{32})_([A-Za-z0-9][A-Za-z0-9_-]{0,63})")
_CONVERSATION: Final = re.compile(r"conv_([A-Za-z0-9][A-Za-z0-9_-]{0,63})")
_ITEM: Final = re.compile(
    r"(?:msg|rs|fc|mcp|fco)_([0-9]{1,15})_(?:([0-9]{1,5})_)?([0-9a-f]{32})(?:_[0-9]+)?"
)


class ResponseId(Struct, frozen=True, kw_only=True):
    prompt_seq: int
    turn_id: str
    session_id: str

    def __str__(self) -> str:
        return f"resp_{self.prompt_seq}_{self.turn_id}_{self.session_id}"

    @property
    def place(self) -> TurnPlace:
        return TurnPlace(turn_id=self.turn_id, seq=self.prompt_seq)

    def item(self, kind: str, call: int | None = None, place: int | None = None) -> str:
        """The id of an item of this turn. `place` tells the tools of one call apart."""
        parts = (kind, self.prompt_seq, call, self.turn_id, place)
        return "_".join(str(part) for part in parts if part is not None)


def response_id(text: str) -> ResponseId | None:
    found = _RESPONSE.fullmatch(text)
    if found is None:
        return None
    return ResponseId(prompt_seq=int(found[1]), turn_id=found[2], session_id=found[3])


def conversation_id(session_id: str) -> str:
    return f"conv_{session_id}"


def session_id_of(text: str) -> str | None:
    found = _CONVERSATION.fullmatch(text)
    return None if found is None else found[1]


def prompt_seq_of_item(text: str) -> int | None:
    """The seq of the prompt to whose turn the item belongs."""
    found = _ITEM.fullmatch(text)
    return None if found is None else int(found[1])


def _number(call: int, part: int, step: int) -> int:
    return ((call + 1) << _PART_BITS | part) << _STEP_BITS | step


def number_of_opening(call: int, part: int, step: int = 0) -> int:
    return _number(call, part, step)


def number_of_text(call: int, part: int, end: int) -> int:
    """The number of a delta that ends after `end` code points of its part."""
    return _number(call, part, min(_OPENING + end, _CLOSING - 1))


def number_of_closing(call: int, part: int, step: int = 0) -> int:
    return _number(call, part, _CLOSING + step)
