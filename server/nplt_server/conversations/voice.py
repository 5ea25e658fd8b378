"""What a running turn says to its audience, in order.

Pieces of text that arrive within one tick of the event loop leave as one
event: a provider that is faster than the network can't flood anybody with tiny
frames, and a slow one is still heard word by word. Whatever else the turn says
comes after the text that stood before it. What is said is noted first, so that
text people have seen outlives this process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Literal

from nplt_protocol.events import (
    AgentThought,
    Event,
    TextDelta,
    ToolFinished,
    ToolStarted,
)
from nplt_storage.facts.tool_calls import ToolCallRequest, ToolCallResult

_DELTA_CHARACTERS_MAX = 64 * 1024
_RESULT_CHARACTERS_MAX = 32 * 1024

Kind = Literal["text", "reasoning"]
Note = Callable[[str, int, Kind, str], None]
"""(turn_id, call, kind, text): kept, should this process die before the entry is."""


class Voice:
    def __init__(
        self,
        emit: Callable[[Event], None],
        *,
        note: Note,
        session_id: str,
        turn_id: str,
    ) -> None:
        self._emit = emit
        self._note = note
        self._session_id = session_id
        self._turn_id = turn_id
        self._call = 0
        self._kind: Kind = "text"
        self._pieces: list[str] = []
        self._offsets: dict[Kind, int] = {"text": 0, "reasoning": 0}
        self._flush_scheduled: asyncio.Handle | None = None

    def begin_call(self, call: int) -> None:
        self.flush()
        self._call = call
        self._offsets = {"text": 0, "reasoning": 0}

    @property
    def offset(self) -> int:
        """Code points of this call's text that were said so far."""
        return self._offsets["text"]

    @property
    def reasoning_offset(self) -> int:
        return self._offsets["reasoning"]

    def say(self, text: str) -> None:
        self._add("text", text)

    def reason(self, text: str) -> None:
        self._add("reasoning", text)

    def think(self, what: str, content: str) -> None:
        self.flush()
        self._emit(
            AgentThought(
                session_id=self._session_id, turn_id=self._turn_id, type=what, content=content
            )
        )

    def tool_started(self, call: ToolCallRequest) -> None:
        self.flush()
        short = len(call.raw_arguments) <= _RESULT_CHARACTERS_MAX
        self._emit(
            ToolStarted(
                session_id=self._session_id,
                turn_id=self._turn_id,
                call=self._call,
                tool_call_id=call.tool_call_id,
                tool_name=call.tool_name[:200],
                arguments=dict(call.arguments) if call.arguments and short else {},
            )
        )

    def tool_finished(self, result: ToolCallResult) -> None:
        self.flush()
        cut = len(result.result) > _RESULT_CHARACTERS_MAX
        self._emit(
            ToolFinished(
                session_id=self._session_id,
                turn_id=self._turn_id,
                call=self._call,
                tool_call_id=result.tool_call_id,
                tool_name=result.tool_name[:200],
                status=result.status,
                duration=result.duration,
                result=result.result[:_RESULT_CHARACTERS_MAX],
                truncated=True if cut else None,
                size=len(result.result) if cut else None,
            )
        )

    def flush(self) -> None:
        if self._flush_scheduled is not None:
            self._flush_scheduled.cancel()
            self._flush_scheduled = None
        if not self._pieces:
            return
        text = "".join(self._pieces)
        self._pieces.clear()
        self._note(self._turn_id, self._call, self._kind, text)
        for event in self.events(self._kind, text, self._offsets[self._kind]):
            self._emit(event)
        self._offsets[self._kind] += len(text)

    def events(self, kind: Kind, text: str, offset: int) -> list[Event]:
        """One event, or several when the text would not fit a message."""
        starts = range(0, len(text), _DELTA_CHARACTERS_MAX)
        return [
            self._piece(kind, text[start : start + _DELTA_CHARACTERS_MAX], offset + start)
            for start in starts
        ]

    def nothing(self) -> Event:
        """For a client that believes more was said than was."""
        return self._piece("text", "", 0)

    def _piece(self, kind: Kind, text: str, offset: int) -> Event:
        if kind == "text":
            return TextDelta(
                session_id=self._session_id,
                turn_id=self._turn_id,
                call=self._call,
                offset=offset,
                text=text,
            )
        return AgentThought(
            session_id=self._session_id,
            turn_id=self._turn_id,
            type="reasoning",
            call=self._call,
            offset=offset,
            text=text,
        )

    def _add(self, kind: Kind, text: str) -> None:
        if not text:
            return
        if kind != self._kind:
            self.flush()
            self._kind = kind
        self._pieces.append(text)
        if self._flush_scheduled is None:
            self._flush_scheduled = asyncio.get_running_loop().call_soon(self.flush)
