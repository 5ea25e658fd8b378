"""Sends the events of one conversation to all its subscribers.

An event is encoded once, and a slow subscriber does not delay the others. All subscribers
get the same events in the same order; a listener (the hooks) gets them too. Presence events name
the clients that join and leave. `Broadcast` knows its conversation's id and nothing else about it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final, Protocol

from msgspec import Raw

from nplt_protocol.codec import dump_json, encode_event
from nplt_protocol.errors import LocalProtocolError
from nplt_protocol.json_text import JsonObject, JsonValue
from nplt_protocol.messages import EncodedEntryAdded, Event, SessionEvent
from nplt_storage.codec import encode_entry, entry_as_json
from nplt_storage.entries import Entry
from nplt_storage.pages import cut_message_to_fit

log = logging.getLogger(__name__)

_EVENT_FIELDS_BYTES: Final = 512
"""Reserved for the other fields of an event that carries an entry."""
_NAME_CHARACTERS_MAX: Final = 64
CLIENTS_MAX: Final = 100
"""A presence event lists at most this many clients, in order of arrival; `count` is the total."""


class BroadcastEvent:
    """An event for all subscribers, and its encoded frames."""

    __slots__ = ("event", "frames")

    def __init__(self, event: Event, bytes_max: int) -> None:
        self.event = event
        self.frames = encode_event(event, message_bytes_max=bytes_max)


def entry_event(session_id: str, entry: Entry, bytes_max: int) -> EncodedEntryAdded:
    """The event for an entry. An entry that does not fit in a message is cut, and the event gives
    its real size."""
    size_max, encoded = bytes_max - _EVENT_FIELDS_BYTES, encode_entry(entry)
    if len(encoded) > size_max:
        encoded = dump_json(cut_message_to_fit(entry_as_json(entry), size_max))
    return EncodedEntryAdded(
        session_id=session_id,
        entry=Raw(encoded),
        turn_id=entry.turn_id,
        call=getattr(entry, "call", None),
    )


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
"""Stands for a subscriber that gets events but does not count as present."""


class Subscriber(Protocol):
    """The `Session` of each attached client."""

    def deliver(self, event: BroadcastEvent) -> None: ...

    def dropped(self) -> None:
        """`deliver` failed, and the subscriber was removed."""
        ...


class Listener(Protocol):
    """Receives all events and entries of a conversation, even while it has no subscribers. Its
    methods must not raise."""

    def emitted(self, event: Event) -> None: ...

    def stored(self, session_id: str, entry: Entry) -> None: ...


class Broadcast:
    __slots__ = ("_listener", "_pending", "_subscribers", "bytes_max", "session_id")

    def __init__(self, session_id: str, bytes_max: int, listener: Listener | None = None) -> None:
        """`bytes_max`: the largest message that a client accepts."""
        self.session_id = session_id
        self.bytes_max = bytes_max
        self._listener = listener
        # A dict keeps the order of arrival: events are delivered in that order.
        self._subscribers: dict[Subscriber, ConnectedClient] = {}
        self._pending: list[BroadcastEvent] | None = None
        """The events emitted while another one is being delivered."""

    def __len__(self) -> int:
        return len(self._subscribers)

    @property
    def clients(self) -> tuple[ConnectedClient, ...]:
        return tuple(client for client in self._subscribers.values() if client is not NO_CLIENT)

    def join(self, subscriber: Subscriber, client: ConnectedClient = NO_CLIENT) -> None:
        """Announces the client to the present subscribers, then adds the new one."""
        if client is not NO_CLIENT:
            self._announce_presence("joined", client, (*self.clients, client))
        self._subscribers[subscriber] = client

    def leave(self, subscriber: Subscriber) -> None:
        """Removes the subscriber, then announces that to the others."""
        client = self._subscribers.pop(subscriber, NO_CLIENT)
        if client is not NO_CLIENT:
            self._announce_presence("left", client, self.clients)

    def stay_unseen(self, subscriber: Subscriber) -> None:
        """Keeps sending events to the subscriber, while its client counts as gone."""
        self.leave(subscriber)
        self.join(subscriber)

    def _announce_presence(
        self, what: str, client: ConnectedClient, clients: tuple[ConnectedClient, ...]
    ) -> None:
        if self._subscribers:
            named: list[JsonValue] = [each.as_json() for each in clients[:CLIENTS_MAX]]
            self.announce(
                "presence", {"clients": named, "count": len(clients), what: client.as_json()}
            )

    def announce(self, what: str, details: JsonObject | None = None) -> None:
        """Emits a SESSION_EVENT."""
        if self._subscribers:
            self.emit(SessionEvent(session_id=self.session_id, event=what, details=details or {}))

    def emit_entry(self, entry: Entry) -> None:
        if self._listener is not None:
            self._listener.stored(self.session_id, entry)
        if self._subscribers:
            self.emit(entry_event(self.session_id, entry, self.bytes_max))

    def emit(self, event: Event) -> None:
        if self._listener is not None:
            self._listener.emitted(event)
        if not self._subscribers:
            return
        try:
            shared = BroadcastEvent(event, self.bytes_max)
        except LocalProtocolError:
            # The turn continues. A client that attaches again reads the record.
            log.exception("an event can't be sent, and all subscribers are removed")
            for subscriber in tuple(self._subscribers):
                self._remove(subscriber)
            return
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
                        # The turn continues, and the others get the event.
                        log.exception("a subscriber failed and is removed")
                        self._remove(subscriber)
        finally:
            self._pending = None

    def _remove(self, subscriber: Subscriber) -> None:
        self.leave(subscriber)
        subscriber.dropped()
