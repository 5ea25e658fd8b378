"""Sends events to all subscribers of a conversation, and replays those a client missed.

An event is encoded once, and a slow subscriber does not delay the others. All subscribers
get the same events in the same order. Text of a running turn is merged per tick of the event
loop and written to the live journal before it is sent. Presence events say which clients
joined and left.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from msgspec import Raw
from msgspec.structs import replace

from nplt_protocol.codec import encode_event
from nplt_protocol.json_text import JsonObject, JsonValue, dump_json
from nplt_protocol.messages import (
    AgentThought,
    Attach,
    EncodedEntryAdded,
    Event,
    TextDelta,
    ToolFinished,
    ToolStarted,
)
from nplt_storage.codec import encode_entry, entry_as_json
from nplt_storage.entries import Entry, ToolCallRequest, ToolCallResult
from nplt_storage.pages import cut_message_to_fit
from nplt_storage.store import DeltaKind

if TYPE_CHECKING:
    from nplt_server.conversations.conversation import Conversation
    from nplt_server.conversations.turn import TurnRun


log = logging.getLogger(__name__)


class BroadcastEvent:
    """An event for all subscribers, and its encoded frames, made on first use."""

    __slots__ = ("_bytes_max", "_frames", "event")

    def __init__(self, event: Event, bytes_max: int) -> None:
        self.event = event
        self._bytes_max = bytes_max
        self._frames: bytes | None = None

    @property
    def frames(self) -> bytes:
        if self._frames is None:
            self._frames = encode_event(self.event, message_bytes_max=self._bytes_max)
        return self._frames


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectedClient:
    """The client of a subscriber, as presence events describe it."""

    client_id: str = ""
    user: str = ""
    client: str = ""
    observer: bool = False
    can_decide: bool = False
    """Whether the client can show approval requests to a person."""

    def as_json(self) -> JsonObject:
        return {
            "client_id": self.client_id,
            "user": self.user,
            "client": self.client[:_NAME_CHARACTERS_MAX],
            "observer": self.observer,
        }


NO_CLIENT: Final = ConnectedClient()
"""For a subscriber that does not count as present."""


class Subscriber(Protocol):
    """The `Session` of each attached client."""

    def deliver(self, event: BroadcastEvent) -> None: ...

    def dropped(self) -> None:
        """`deliver` failed, and the subscriber was removed."""
        ...


class Broadcast:
    __slots__ = ("_bytes_max", "_pending", "_subscribers")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        # A dict keeps the order of arrival: events are delivered in that order.
        self._subscribers: dict[Subscriber, ConnectedClient] = {}
        self._pending: list[BroadcastEvent] | None = None
        """While an event is delivered: the events emitted meanwhile."""

    def __len__(self) -> int:
        return len(self._subscribers)

    @property
    def clients(self) -> tuple[ConnectedClient, ...]:
        return tuple(client for client in self._subscribers.values() if client is not NO_CLIENT)

    def join(self, subscriber: Subscriber, client: ConnectedClient = NO_CLIENT) -> None:
        self._subscribers[subscriber] = client

    def leave(self, subscriber: Subscriber) -> None:
        self._subscribers.pop(subscriber, None)

    def emit(self, event: Event) -> None:
        if not self._subscribers:
            return
        shared = BroadcastEvent(event, self._bytes_max)
        if self._pending is not None:
            self._pending.append(shared)
            return
        self._pending = [shared]
        try:
            while self._pending:
                shared = self._pending.pop(0)
                for subscriber in tuple(self._subscribers):
                    try:
                        subscriber.deliver(shared)
                    except Exception:
                        # The turn goes on, and the others get the event.
                        log.exception("a subscriber failed and is removed")
                        self.leave(subscriber)
                        subscriber.dropped()
        finally:
            self._pending = None


_NAME_CHARACTERS_MAX: Final = 64
CLIENTS_MAX: Final = 100
"""A presence event lists so many clients, in order of arrival; `count` is the total."""


def announce_join(
    conversation: Conversation, subscriber: Subscriber, client: ConnectedClient
) -> None:
    _announce_presence(conversation, "joined", client, (*conversation.broadcast.clients, client))
    conversation.broadcast.join(subscriber, client)


def announce_leave(
    conversation: Conversation, subscriber: Subscriber, client: ConnectedClient
) -> None:
    """Removes the subscriber and tells the others. A subscriber that joins again with
    `NO_CLIENT` gets events but does not count as present."""
    conversation.broadcast.leave(subscriber)
    _announce_presence(conversation, "left", client, conversation.broadcast.clients)


def _announce_presence(
    conversation: Conversation,
    what: str,
    client: ConnectedClient,
    clients: tuple[ConnectedClient, ...],
) -> None:
    if conversation.broadcast and client is not NO_CLIENT:
        named: list[JsonValue] = [each.as_json() for each in clients[:CLIENTS_MAX]]
        details: JsonObject = {"clients": named, "count": len(clients), what: client.as_json()}
        conversation.announce("presence", details)


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

    def __init__(self, conversation: Conversation, turn_id: str) -> None:
        self._broadcast = conversation.broadcast
        self._writer = conversation.writer
        self._session_id = conversation.session_id
        self._turn_id = turn_id
        self._kind: DeltaKind = "text"
        self._pieces: list[str] = []
        self._held: list[_HeldEvents] = []
        self._flush_scheduled: asyncio.Handle | None = None
        self.begin_call(0)

    def begin_call(self, call: int) -> None:
        if self._pieces or self._held:
            self.flush()
            self.send_held()
        self._call = call
        self._sent_offsets: dict[DeltaKind, int] = {"text": 0, "reasoning": 0}
        self._queued_offsets: dict[DeltaKind, int] = {"text": 0, "reasoning": 0}
        """What was sent, and what is held."""

    def offset(self, kind: DeltaKind) -> int:
        """How many code points of the current call were sent so far."""
        return self._sent_offsets[kind]

    def thought(self, what: str, content: str) -> None:
        self._emit(
            AgentThought(
                session_id=self._session_id, turn_id=self._turn_id, type=what, content=content
            )
        )

    def tool_started(self, tool_call: ToolCallRequest) -> None:
        short = len(tool_call.raw_arguments) <= _RESULT_CHARACTERS_MAX
        self._emit(
            ToolStarted(
                session_id=self._session_id,
                turn_id=self._turn_id,
                call=self._call,
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
        text, kind = "".join(self._pieces), self._kind
        self._pieces.clear()
        journaled = self._writer.journal_delta(self._turn_id, self._call, kind, text)
        events = self.deltas(kind, text, self._queued_offsets[kind])
        self._queued_offsets[kind] += len(text)
        if journaled is None and not self._held:
            self._send(events, kind, len(text))
            return
        self._held.append((journaled, events, kind, len(text)))
        if journaled is not None:
            journaled.add_done_callback(lambda _: self._send_ready())

    def _emit(self, event: Event) -> None:
        """After the text so far, and what is held."""
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

    def add(self, kind: DeltaKind, text: str) -> None:
        if not text:
            return
        if kind != self._kind:
            self.flush()
            self._kind = kind
        self._pieces.append(text)
        if self._flush_scheduled is None:
            self._flush_scheduled = asyncio.get_running_loop().call_soon(self.flush)


_EVENT_FIELDS_BYTES = 512
"""Reserved for the other fields of an event that carries an entry."""
_REPLAY_ENTRIES_MAX: Final = 1_000
_REPLAY_BYTES_MAX: Final = 4 * 1024 * 1024


def entry_event(session_id: str, entry: Entry, bytes_max: int) -> EncodedEntryAdded:
    """The event for an entry. An entry that does not fit in a message is cut, and its real
    size given."""
    size_max, encoded = bytes_max - _EVENT_FIELDS_BYTES, encode_entry(entry)
    if len(encoded) > size_max:
        encoded = dump_json(cut_message_to_fit(entry_as_json(entry), size_max))
    return EncodedEntryAdded(
        session_id=session_id,
        entry=Raw(encoded),
        turn_id=entry.turn_id,
        call=getattr(entry, "call", None),
    )


def replay_of(conversation: Conversation, cursor: Attach | None) -> tuple[bytes, bool]:
    """The frames that a client missed that attaches now, and whether it is to `resync`: it
    missed too much, or names a seq that this record does not have (it knew another copy of
    this conversation, for example one from before a restored backup). The missed entries are
    not included then, and the client has to read the history itself."""
    entries: list[bytes] | None = []
    if cursor is not None and cursor.after_seq is not None:
        entries = _missed_entries(conversation, cursor.after_seq)
    text = _missed_text(conversation.queue.running, cursor)
    return b"".join((*(entries or ()), *text)), entries is None


def _missed_entries(conversation: Conversation, after_seq: int) -> list[bytes] | None:
    """The events of entries after `after_seq`; `None` if there are too many, or if the seq is
    not in this record."""
    history, bytes_max = conversation.history, conversation.services.limits.message_bytes_max
    lost = conversation.row.lost if conversation.row else None
    if lost is not None and lost[0] <= after_seq <= lost[1]:
        return None  # it may know an entry of this seq that a restored back-up removed
    missed = history.head_seq - after_seq
    if missed < 0 or missed > _REPLAY_ENTRIES_MAX:
        return None
    entries = history.entries_after(after_seq)
    if entries is None:
        return None
    frames: list[bytes] = []
    total = 0
    for entry in entries:
        event = entry_event(history.session_id, entry, bytes_max)
        frames.append(encode_event(event, message_bytes_max=bytes_max))
        total += len(frames[-1])
        if total > _REPLAY_BYTES_MAX:
            return None
    return frames


def _missed_text(turn: TurnRun | None, cursor: Attach | None) -> list[bytes]:
    """The output of the running call, from the client's offset on. If the cursor names no
    offset in this call, or one that does not exist, the text is sent from its beginning.
    Reasoning is always sent from its beginning, because cursors have no offset for it."""
    if turn is None or turn.output is None:
        return []
    text = turn.output.text[: turn.events.offset("text")]
    reasoning = turn.output.reasoning[: turn.events.offset("reasoning")]
    events = turn.events.deltas("reasoning", reasoning, 0)
    offset = None
    if cursor and cursor.turn_id == turn.turn_id and (cursor.call or 0) == turn.call:
        offset = cursor.offset or 0
    if offset is not None and offset <= len(text):
        events += turn.events.deltas("text", text[offset:], offset)
    else:
        again = turn.events.deltas("text", text, 0)
        if offset is not None and not again:
            again = [turn.events.piece("text", "", 0)]  # so that the client drops its text
        # `replay_from` in the first delta tells the client to replace the text it has.
        events += [replace(event, replay_from=0) for event in again[:1]] + again[1:]
    return [encode_event(event) for event in events]
