"""The events of a running turn: merged, journaled, and sent in order.

`TurnEvents` holds the running call's output so that `replay` can send a newly attached client
what it missed.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from nplt_protocol.messages import AgentThought, Event, TextDelta, ToolFinished, ToolStarted
from nplt_server.conversations.record import ConversationRecord
from nplt_server.providers.accumulator import ModelOutputAccumulator
from nplt_storage.entries import ToolCallRequest, ToolCallResult
from nplt_storage.partial_answers import DeltaKind

_DELTA_CHARACTERS_MAX = 64 * 1024
_TOOL_TEXT_CHARACTERS_MAX = 32 * 1024
"""Longer results of a tool are cut, longer arguments left out. Both are whole in the record."""
_TOOL_NAME_CHARACTERS_MAX = 200
STORAGE_SLOW_SECONDS = 1.0
"""A wait for the journal that takes longer is announced."""


@dataclass(slots=True)
class _HeldEvents:
    """Events waiting for their journal write, or for events ahead of them. Only stores that
    journal asynchronously cause this."""

    journaled: asyncio.Future[bool] | None
    events: list[Event]
    kind: DeltaKind
    length: int
    """The length of the events' text."""
    offsets: dict[DeltaKind, int]
    """The offsets of the call that they belong to, as far as it was sent."""


class TurnEvents:
    """Sends the events of a running turn to the subscribers, in order.

    Pieces of text that arrive within one tick of the event loop are sent as one event, so
    that a fast provider does not cause many tiny frames, and the text of a slow one is still
    sent word by word. Text is written to the live journal before it is sent, so that it
    survives a crash. Events after it wait too. Text that the journal refuses, because another
    server has the conversation, is never sent.
    """

    def __init__(self, record: ConversationRecord, turn_id: str) -> None:
        self._record = record
        self._broadcast = record.broadcast
        self._session_id = record.session_id
        self.turn_id = turn_id
        self._kind: DeltaKind = "text"
        self._pieces: list[str] = []
        self.held: list[_HeldEvents] = []
        """The events that wait for the journal."""
        self._held_since = 0.0
        self._held_timer: asyncio.TimerHandle | None = None
        self._flush_handle: asyncio.Handle | None = None
        self.begin_call(0)

    def begin_call(self, call: int) -> None:
        if self._pieces:
            self.flush()
        self.call = call
        self._output: ModelOutputAccumulator | None = None
        self._sent_offsets: dict[DeltaKind, int] = {"text": 0, "reasoning": 0}
        self._offsets_after_held: dict[DeltaKind, int] = {"text": 0, "reasoning": 0}
        """The length of each kind of text once everything held has been sent."""

    def begin_output(self, output: ModelOutputAccumulator) -> None:
        """From now on, replays include this output."""
        self._output = output

    def end_output(self) -> None:
        """The output has become an entry, or was discarded."""
        self._output = None

    def add(self, kind: DeltaKind, text: str) -> None:
        """Adds text. It is sent at the end of this tick of the event loop."""
        if not text:
            return
        if kind != self._kind:
            self.flush()
            self._kind = kind
        self._pieces.append(text)
        if self._flush_handle is None:
            self._flush_handle = asyncio.get_running_loop().call_soon(self.flush)

    @property
    def has_output(self) -> bool:
        return self._output is not None

    def offset(self, kind: DeltaKind) -> int:
        """How many code points of this kind have been sent in the current call."""
        return self._sent_offsets[kind]

    def sent_text(self, kind: DeltaKind) -> str:
        """The text of this kind that has been sent in the current call."""
        if self._output is None:
            return ""
        whole = self._output.text if kind == "text" else self._output.reasoning
        return whole[: self._sent_offsets[kind]]

    def send_status(self, status: str, content: str) -> None:
        self._emit(self._status(status, content))

    def _status(self, status: str, content: str) -> AgentThought:
        return AgentThought(
            session_id=self._session_id, turn_id=self.turn_id, type=status, content=content
        )

    def tool_started(self, tool_call: ToolCallRequest) -> None:
        short = len(tool_call.raw_arguments) <= _TOOL_TEXT_CHARACTERS_MAX
        self._emit(
            ToolStarted(
                session_id=self._session_id,
                turn_id=self.turn_id,
                call=self.call,
                tool_call_id=tool_call.tool_call_id,
                tool_name=tool_call.tool_name[:_TOOL_NAME_CHARACTERS_MAX],
                arguments=dict(tool_call.arguments) if tool_call.arguments and short else {},
            )
        )

    def tool_finished(self, result: ToolCallResult) -> None:
        is_cut = len(result.result) > _TOOL_TEXT_CHARACTERS_MAX
        self._emit(
            ToolFinished(
                session_id=self._session_id,
                turn_id=self.turn_id,
                call=self.call,
                tool_call_id=result.tool_call_id,
                tool_name=result.tool_name[:_TOOL_NAME_CHARACTERS_MAX],
                status=result.status,
                duration=result.duration,
                result=result.result[:_TOOL_TEXT_CHARACTERS_MAX],
                truncated=True if is_cut else None,
                size=len(result.result) if is_cut else None,
            )
        )

    def flush(self) -> None:
        if self._flush_handle is not None:
            self._flush_handle.cancel()
            self._flush_handle = None
        if not self._pieces:
            return
        text, kind = "".join(self._pieces), self._kind
        self._pieces.clear()
        journaled = self._record.journal_delta(self.turn_id, self.call, kind, text)
        events = self.deltas(kind, text, self._offsets_after_held[kind])
        self._offsets_after_held[kind] += len(text)
        if journaled is None and not self.held:
            self._send(_HeldEvents(None, events, kind, len(text), self._sent_offsets))
            return
        if not self.held:
            self._begin_hold()
        self.held.append(_HeldEvents(journaled, events, kind, len(text), self._sent_offsets))
        if journaled is not None:
            journaled.add_done_callback(lambda _: self._send_ready())

    def _emit(self, event: Event) -> None:
        """Emits the event after all text so far and after the held events."""
        self.flush()
        if self.held:
            self.held.append(_HeldEvents(None, [event], "text", 0, self._sent_offsets))
        else:
            self._broadcast.emit(event)

    def _send(self, ready: _HeldEvents) -> None:
        for event in ready.events:
            self._broadcast.emit(event)
        ready.offsets[ready.kind] += ready.length

    def _send_ready(self) -> None:
        while self.held:
            journaled = self.held[0].journaled
            if journaled is not None and not journaled.done():
                return
            if journaled is not None and not journaled.result():
                self.held.clear()
                return
            self._send(self.held.pop(0))

    def _begin_hold(self) -> None:
        loop = asyncio.get_running_loop()
        self._held_since = loop.time()
        if self._held_timer is None:
            self._held_timer = loop.call_later(STORAGE_SLOW_SECONDS, self._check_hold)

    def _check_hold(self) -> None:
        """Announces a hold that takes long. There is one timer, however many pieces are held."""
        self._held_timer = None
        if not self.held:
            return
        loop = asyncio.get_running_loop()
        left = self._held_since + STORAGE_SLOW_SECONDS - loop.time()
        if left > 0:
            self._held_timer = loop.call_later(left, self._check_hold)
        else:
            self.announce_wait("waits for storage")

    async def wait_until_sent(self) -> None:
        """Waits until everything flushed has been sent."""
        while self.held:
            if (journaled := self.held[0].journaled) is not None:
                await asyncio.wait([journaled])
            self._send_ready()

    def announce_wait(self, why: str) -> None:
        """Tells the clients at once that the turn waits, before the text that waits too."""
        self._broadcast.emit(self._status("waiting", why))

    def deltas(self, kind: DeltaKind, text: str, offset: int) -> list[Event]:
        """One event, or several if the text does not fit in one message."""
        return [
            self.delta(kind, text[start : start + _DELTA_CHARACTERS_MAX], offset + start)
            for start in range(0, len(text), _DELTA_CHARACTERS_MAX)
        ]

    def delta(self, kind: DeltaKind, text: str, offset: int) -> Event:
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
