"""Sends the events of a running turn to the subscribers, in order.

`TurnEvents` merges the deltas of a call, writes them to the live journal and then sends them.
It holds the output of the running call, so that a client that attaches now is sent what it
missed (`replay`).
"""

from __future__ import annotations

import asyncio
from typing import TypeAlias

from nplt_protocol.messages import AgentThought, Event, TextDelta, ToolFinished, ToolStarted
from nplt_server.conversations.record import ConversationRecord
from nplt_server.providers.accumulator import ModelOutputAccumulator
from nplt_storage.entries import ToolCallRequest, ToolCallResult
from nplt_storage.store import DeltaKind

_DELTA_CHARACTERS_MAX = 64 * 1024
_RESULT_CHARACTERS_MAX = 32 * 1024

_HeldEvents: TypeAlias = tuple[asyncio.Future[None] | None, list[Event], DeltaKind, int]
"""Events that wait for the live journal (the future), or behind such events; of which kind
and length their text is. Only a store that takes time to write its journal makes them wait."""


class TurnEvents:
    """Sends the events of a running turn to the subscribers, in order.

    Pieces of text that arrive within one tick of the event loop are sent as one event, so
    that a fast provider does not cause many tiny frames, and the text of a slow one is still
    sent word by word. Text is written to the live journal before it is sent, so that it
    survives a crash; where that takes time, it is held until then, and so is what comes after.
    """

    def __init__(self, record: ConversationRecord, turn_id: str) -> None:
        self._record = record
        self._broadcast = record.broadcast
        self._session_id = record.session_id
        self.turn_id = turn_id
        self._kind: DeltaKind = "text"
        self._pieces: list[str] = []
        self._held: list[_HeldEvents] = []
        self._flush_scheduled: asyncio.Handle | None = None
        self.begin_call(0)

    def begin_call(self, call: int) -> None:
        if self._pieces or self._held:
            self.flush()
            self.send_held()
        self.call = call
        self._output: ModelOutputAccumulator | None = None
        self._sent_offsets: dict[DeltaKind, int] = {"text": 0, "reasoning": 0}
        self._queued_offsets: dict[DeltaKind, int] = {"text": 0, "reasoning": 0}
        """The offsets after what is held."""

    def begin_output(self, output: ModelOutputAccumulator) -> None:
        """Replays to a client that attaches now send this output."""
        self._output = output

    def end_output(self) -> None:
        """The output is an entry of the record now, or is dropped."""
        self._output = None

    @property
    def has_output(self) -> bool:
        return self._output is not None

    def offset(self, kind: DeltaKind) -> int:
        """How many code points of the current call were sent so far."""
        return self._sent_offsets[kind]

    def sent_text(self, kind: DeltaKind) -> str:
        """The part of the current call's output that was sent."""
        if self._output is None:
            return ""
        whole = self._output.text if kind == "text" else self._output.reasoning
        return whole[: self._sent_offsets[kind]]

    def thought(self, what: str, content: str) -> None:
        self._emit(
            AgentThought(
                session_id=self._session_id, turn_id=self.turn_id, type=what, content=content
            )
        )

    def tool_started(self, tool_call: ToolCallRequest) -> None:
        short = len(tool_call.raw_arguments) <= _RESULT_CHARACTERS_MAX
        self._emit(
            ToolStarted(
                session_id=self._session_id,
                turn_id=self.turn_id,
                call=self.call,
                tool_call_id=tool_call.tool_call_id,
                tool_name=tool_call.tool_name[:200],
                arguments=dict(tool_call.arguments) if tool_call.arguments and short else {},
            )
        )

    def tool_finished(self, result: ToolCallResult) -> None:
        cut = len(result.result) > _RESULT_CHARACTERS_MAX
        self._emit(
            ToolFinished(
                session_id=self._session_id,
                turn_id=self.turn_id,
                call=self.call,
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
        text, kind = "".join(self._pieces), self._kind
        self._pieces.clear()
        journaled = self._record.journal_delta(self.turn_id, self.call, kind, text)
        events = self.deltas(kind, text, self._queued_offsets[kind])
        self._queued_offsets[kind] += len(text)
        if journaled is None and not self._held:
            self._send(events, kind, len(text))
            return
        self._held.append((journaled, events, kind, len(text)))
        if journaled is not None:
            journaled.add_done_callback(lambda _: self._send_ready())

    def _emit(self, event: Event) -> None:
        """Emits the event after the text so far and after what is held."""
        self.flush()
        if self._held:
            self._held.append((None, [event], "text", 0))
        else:
            self._broadcast.emit(event)

    def _send(self, events: list[Event], kind: DeltaKind, length: int) -> None:
        for event in events:
            self._broadcast.emit(event)
        self._sent_offsets[kind] += length

    def _send_ready(self) -> None:
        while self._held and ((first := self._held[0][0]) is None or first.done()):
            self._send(*self._held.pop(0)[1:])

    async def settled(self) -> None:
        """Returns when all that was flushed is sent."""
        while self._held:
            if (journaled := self._held[0][0]) is not None:
                await asyncio.wait([journaled])
            self._send_ready()

    def send_held(self) -> None:
        """Sends what is held at once, journaled or not, because something else is to be told."""
        held, self._held = self._held, []
        for ready in held:
            self._send(*ready[1:])

    def deltas(self, kind: DeltaKind, text: str, offset: int) -> list[Event]:
        """One event, or several if the text does not fit in one message."""
        return [
            self.piece(kind, text[start : start + _DELTA_CHARACTERS_MAX], offset + start)
            for start in range(0, len(text), _DELTA_CHARACTERS_MAX)
        ]

    def piece(self, kind: DeltaKind, text: str, offset: int) -> Event:
        if kind == "text":
            return TextDelta(
                session_id=self._session_id,
                turn_id=self.turn_id,
                call=self.call,
                offset=offset,
                text=text,
            )
        return AgentThought(
            session_id=self._session_id,
            turn_id=self.turn_id,
            type="reasoning",
            call=self.call,
            offset=offset,
            text=text,
        )

    def add(self, kind: DeltaKind, text: str) -> None:
        if not text:
            return
        if kind != self._kind:
            self.flush()
            self._kind = kind
        self._pieces.append(text)
        if self._flush_scheduled is None:
            self._flush_scheduled = asyncio.get_running_loop().call_soon(self.flush)
