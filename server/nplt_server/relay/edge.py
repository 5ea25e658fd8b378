"""The edge's side of a relay: forwards requests of this server's clients to conversations' owners.

`EdgeRelay` belongs to one client. It finds the owner (`OwnerSearch`), sends requests over a
channel to it, and sends replies and events to the client. If the owner or the link is lost it
asks the store again: this server becomes the owner itself, or learns the next one. It resumes for a
client that can't attach again itself, with the cursor that it keeps for the client.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from time import monotonic
from typing import Final, TypeAlias

import anyio
from msgspec.structs import replace

from nplt_protocol import ErrorCode, JsonObject, MessageType, RequestError, messages
from nplt_protocol.link import split_messages
from nplt_protocol.resume import Cursor, TurnProgress, has_ended
from nplt_server.connections.session import Session, client_of
from nplt_server.conversations.broadcast import BroadcastEvent
from nplt_server.conversations.conversation import Conversation
from nplt_server.dialects import PendingReply
from nplt_server.errors import error_to_tell
from nplt_server.relay.link import (
    Channel,
    ChannelUser,
    LinkLost,
    Links,
    Moved,
    Outcome,
    RelayedEvent,
    ReplyOrRefusal,
)
from nplt_storage.codec import entry_as_json
from nplt_storage.errors import ConversationHeld, WrittenElsewhere

log = logging.getLogger(__name__)

RELAY_SECONDS_MAX: Final = 25.0
"""How long a request waits for an owner: longer than a lease, shorter than clients wait."""
_UNREACHED_SECONDS: Final = 4.0
"""After this time an unreachable owner is asked, through the store, to hand over."""
_PAUSE_SECONDS: Final = (0.02, 0.5)

_HERE: Final = (messages.ModelSwitch, messages.ClearRequest, messages.Cancel, messages.Approval)
"""Requests about the conversation that the client is in, which they do not name."""
_NAMED: Final = (
    messages.Prompt,
    messages.Attach,
    messages.SessionSwitch,
    messages.ContextRequest,
    messages.Tools,
    messages.Usage,
    messages.Compact,
    messages.Rollback,
    messages.Redact,
    messages.SessionUpdate,
    messages.SessionFork,
    messages.SessionDelete,
    messages.FileGet,
)
"""Requests about the conversation that they name, or the one that the client is in."""
_REPLIED_LATER: Final = (
    messages.ClearRequest,
    messages.Compact,
    messages.Redact,
    messages.FileMetadata,
)
"""Requests that wait at the owner while later ones of the same client are handled."""
_NOT_REPEATED: Final = (
    *_REPLIED_LATER,
    messages.Rollback,
    messages.SessionFork,
    messages.SessionDelete,
)
"""Requests that must not be repeated: the second time has another effect, or is refused."""

Owner: TypeAlias = Channel | Conversation
"""A channel to the server that owns a conversation, or the conversation if this server owns it."""


class Channels:
    """The channels of one client, one for each server that it has used."""

    def __init__(self, links: Links, session: Session, user: ChannelUser) -> None:
        self.links = links
        self._session = session
        self._user = user
        self._by_address: dict[str, Channel] = {}

    async def to(self, address: str) -> Channel:
        if address not in self._by_address:
            link = await self.links.link_to(address)
            if address not in self._by_address:  # another request may have opened it meanwhile
                session = self._session
                self._by_address[address] = link.open_channel(
                    self._user,
                    user=session.user,
                    client=session.client_name,
                    can_decide=session.can_decide,
                )
        return self._by_address[address]

    def forget(self, lost: Channel) -> None:
        channels = self._by_address.items()
        self._by_address = {key: channel for key, channel in channels if channel is not lost}

    def close(self) -> None:
        for channel in self._by_address.values():
            channel.close()
        self._by_address = {}


class OwnerSearch:
    """Yields the owners of a conversation, until an attempt with one of them succeeds:

        async for owner in search:
            with search.attempt():
                …

    An attempt fails if the owner is lost, or has lost the conversation. Then the store is asked:
    this server becomes the owner, or learns the next one. An owner that can't be reached is asked,
    through the store, to hand over the conversation.
    """

    def __init__(
        self, session: Session, channels: Channels, session_id: str, address: str | None
    ) -> None:
        """`address` is the address of the presumed owner, if it is known."""
        self.was_lost = False
        """Whether an attempt failed because an owner was lost."""
        self._session = session
        self._channels = channels
        self._session_id = session_id
        self._address = address
        self._give_up_at = monotonic() + RELAY_SECONDS_MAX
        self._pause = _PAUSE_SECONDS[0]
        self._began = 0.0
        self._unreached: list[tuple[str | None, float]] = []
        """The addresses that could not be reached, each with the time of the attempt."""
        self._failure: Exception | None = None
        self._is_done = False

    @contextmanager
    def attempt(self) -> Iterator[None]:
        try:
            yield
        except (ConversationHeld, LinkLost, Moved, WrittenElsewhere) as error:
            self._failure = error
        else:
            self._is_done = True

    def __aiter__(self) -> OwnerSearch:
        return self

    async def __anext__(self) -> Owner:
        if self._is_done:
            raise StopAsyncIteration
        while True:
            if self._failure is not None:
                failure, self._failure = self._failure, None
                await self._find_next(failure)
            self._began = monotonic()
            try:
                return await self._reach()
            except (ConversationHeld, LinkLost, WrittenElsewhere) as error:
                self._failure = error

    async def _reach(self) -> Owner:
        if self._address is not None:
            return await self._channels.to(self._address)
        server = self._session.server
        if server.services.draining:  # it acquires no conversations
            raise RequestError(
                ErrorCode.SHUTTING_DOWN, "the server is shutting down; try again later"
            )
        return await server.session_manager.get(self._session_id, self._session.user)

    async def _find_next(self, failure: Exception) -> None:
        is_late = monotonic() > self._give_up_at
        if isinstance(failure, ConversationHeld):
            if failure.address is None:
                raise failure
            self._address = failure.address
            attempts = [at for address, at in self._unreached if address == failure.address]
            if len(attempts) > 1 and self._began - attempts[0] > _UNREACHED_SECONDS:
                await self._session.server.session_manager.ask_for(failure, self._session.user)
            if not is_late:
                return
        else:
            if isinstance(failure, LinkLost | Moved):
                self._unreached.append((self._address, self._began))
            self._address, self.was_lost = None, True
        if is_late:
            self._channels.links.relays_failed += 1
            raise RequestError(
                ErrorCode.UNAVAILABLE,
                "the server that has this conversation can't be reached; try again",
                retry_after=1.0,
            )
        await anyio.sleep(self._pause)
        self._pause = min(self._pause * 2, _PAUSE_SECONDS[1])


class EdgeRelay:
    """One client's access to conversations of other servers: the one that it is attached to, if
    another server owns it, and a channel to each server that it has used."""

    __slots__ = ("_channel", "_channels", "_session", "_uploads", "cursor")

    def __init__(self, links: Links, session: Session) -> None:
        self.cursor: Cursor | None = None
        self._channel: Channel | None = None
        """The channel that delivers events; `None` during the search for the owner."""
        self._session = session
        self._channels = Channels(links, session, self)
        self._uploads: dict[int, tuple[Channel, int]] = {}
        """Uploads in progress: the channel and the seq on it, by the client's seq."""

    # Requests

    def concerns(self, request: messages.Request, seq: int) -> bool:
        if isinstance(request, messages.FileData):
            return seq in self._uploads
        if self.cursor is None:
            return False
        if isinstance(request, messages.FileMetadata):
            return request.purpose == "attachment"
        if isinstance(request, _HERE):
            return True
        return isinstance(request, _NAMED) and request.session_id in (None, self.cursor.session_id)

    async def forward(self, request: messages.Request, pending: PendingReply) -> None:
        if isinstance(request, messages.FileData):
            channel, seq_there = self._uploads[pending.seq]
            await channel.send_data(seq_there, request.data)
            return
        assert self.cursor is not None
        address = None if self._channel is None else self._channel.link.address
        await self._forward(request, pending, self.cursor.session_id, address)

    async def ask_owner(
        self,
        error: ConversationHeld | WrittenElsewhere,
        request: messages.Request,
        pending: PendingReply,
        current_id: str | None,
    ) -> None:
        if isinstance(error, WrittenElsewhere):
            session_id = getattr(request, "session_id", None) or current_id
            if session_id is None or isinstance(request, messages.FileData):
                raise error
            await self._forward(request, pending, session_id, None)
            return
        if error.address is None:
            raise error
        here = self._session.conversation
        if isinstance(here, Conversation) and current_id == error.session_id:
            # This server created a conversation with the same id that was never stored.
            here.record.mark_stale()
        await self._forward(request, pending, error.session_id, error.address)

    async def _forward(
        self, request: messages.Request, pending: PendingReply, session_id: str, address: str | None
    ) -> None:
        request, cursor = self._addressed(request, session_id), self.cursor
        attached: messages.Attached | None = None
        search = OwnerSearch(self._session, self._channels, session_id, address)
        async for owner in search:
            with search.attempt():
                attached = await self._attach_again(owner, session_id)
                await self._ask(owner, request, pending)
                if isinstance(owner, Conversation):
                    attached = owner.snapshot()
        cursor = self.cursor or cursor
        is_prompt = isinstance(request, messages.Prompt)
        if search.was_lost and is_prompt and cursor is not None and not self._session.can_attach:
            await self._send_ends(cursor, attached)

    def _addressed(self, request: messages.Request, session_id: str) -> messages.Request:
        """Adds the ids that any owner needs: of the conversation, and of the prompt, so that a
        prompt that is sent twice runs once."""
        if isinstance(request, messages.Cancel) and request.turn_id is None:
            return replace(request, turn_id=self._session.last_turn)
        if isinstance(request, _NAMED):
            request = replace(request, session_id=session_id)
        if isinstance(request, messages.Prompt) and request.message_id is None:
            message_id = self._session.server.services.new_entry_id()
            request = replace(request, message_id=message_id)
        return request

    async def _ask(self, owner: Owner, request: messages.Request, pending: PendingReply) -> None:
        if isinstance(owner, Conversation):
            await self._session.handlers[type(request)](self._session, request, pending)
            return
        try:
            if isinstance(request, _REPLIED_LATER):
                self._send(owner, request, pending)
            else:
                await owner.ask(request, partial(self._receive_reply, owner, request, pending))
        except LinkLost:
            if isinstance(request, _NOT_REPEATED):
                raise _unknown_outcome() from None
            raise

    def _send(self, channel: Channel, request: messages.Request, pending: PendingReply) -> None:
        """Sends a request without waiting for its reply."""

        def receive(outcome: Outcome) -> None:
            self._uploads.pop(pending.seq, None)
            if isinstance(outcome, LinkLost | Moved):
                pending.refuse(_unknown_outcome())
            else:
                self._receive_reply(channel, request, pending, outcome)

        seq = channel.send(request, receive)
        if isinstance(request, messages.FileMetadata):
            self._uploads[pending.seq] = (channel, seq)

    def _receive_reply(
        self,
        channel: Channel,
        request: messages.Request,
        pending: PendingReply,
        reply: ReplyOrRefusal,
    ) -> None:
        session = self._session
        match reply:
            case RequestError():
                pending.refuse(reply)
                return
            case messages.Attached():
                if channel is self._channel:
                    self._channel = None  # the owner has left the other conversation already
                session.depart()
                self._channel, self.cursor = channel, Cursor("").after_attach(reply, request)
            case messages.Receipt():
                current_id = None if self.cursor is None else self.cursor.session_id
                is_current = channel is self._channel and reply.session_id == current_id
                if is_current and not (reply.duplicate and session.can_attach):
                    session.own_turns[reply.turn_id] = reply.seq
            case messages.SessionDeleted():
                here, current_id = session.conversation, session.current_id or ""
                model = here.model if here else None
                reply = replace(reply, current_session_id=current_id, model=model)
            case messages.SessionRow():
                reply = replace(reply, is_current=reply.session_id == session.current_id)
            case _:
                pass
        pending.send(reply)

    # The conversation that the client is in

    async def enter(self, held: ConversationHeld, entered: Callable[[str, str], None]) -> None:
        if held.address is None:
            raise held
        attach = messages.Attach(session_id=held.session_id)
        search = OwnerSearch(self._session, self._channels, held.session_id, held.address)
        async for owner in search:
            with search.attempt():
                if isinstance(owner, Conversation):
                    entered(owner.session_id, owner.model)
                    self._session.enter(owner)
                else:
                    await self._attach_there(owner, attach, entered)

    async def _attach_again(self, owner: Owner, session_id: str) -> messages.Attached | None:
        """Attaches the client at its cursor, if it is in this conversation and gets no events of it
        from this owner. Returns the reply."""
        cursor = self.cursor
        if cursor is None or cursor.session_id != session_id:
            return None
        if isinstance(owner, Conversation):
            return self._attach_here(owner, cursor)
        if self._channel is None:
            return await self._attach_there(owner, cursor.attach())
        return None

    async def _attach_there(
        self,
        channel: Channel,
        attach: messages.Attach,
        entered: Callable[[str, str], None] | None = None,
    ) -> messages.Attached:
        def receive(reply: ReplyOrRefusal) -> None:
            if isinstance(reply, messages.Attached):
                if entered is not None:
                    entered(reply.session_id, reply.model)
                self._channel = channel
                self.cursor = (self.cursor or Cursor("")).after_attach(reply, attach)

        reply = await channel.ask(attach, receive)
        if isinstance(reply, RequestError):
            raise reply
        assert isinstance(reply, messages.Attached)
        return reply

    def _attach_here(self, conversation: Conversation, cursor: Cursor) -> messages.Attached:
        """Attaches the client to a conversation that this server owns now."""
        session = self._session
        frames, _ = conversation.replay(cursor.attach())
        attached = conversation.snapshot(client_of(session, observer=cursor.observer))
        self.cursor = self._channel = None
        session.enter(conversation, observer=cursor.observer)
        for message in split_messages(frames):
            event = RelayedEvent(message)
            if message.type == MessageType.TEXT_DELTA:
                cursor.note_delta(event)
            session.deliver(event)
        return attached

    def leave(self) -> None:
        channel, self._channel, self.cursor = self._channel, None, None
        if channel is not None:
            with suppress(LinkLost):
                channel.send(messages.Detach(), lambda outcome: None)

    def receive_event(self, channel: Channel, event: RelayedEvent) -> None:
        """Sends the event to the client. Most events are not decoded."""
        if channel is not self._channel or self.cursor is None:
            return
        send = self._session.send_event
        match event.message.type:
            case MessageType.TEXT_DELTA:
                self.cursor.note_delta(event)
            case MessageType.ENTRY:
                self.cursor.note_entry(event)
            case MessageType.ERROR:
                return  # the owner's reason for closing the channel
            case MessageType.SESSION_EVENT:
                decoded = event.event
                if isinstance(decoded, messages.SessionEvent) and decoded.event == "shutdown":
                    return  # the owner shuts down, not this server
                send = self._session.deliver
            case MessageType.TURN_FINISHED:
                send = self._session.deliver
            case _:
                pass
        try:
            send(event)
        except Exception:
            log.exception("a relayed event could not be sent")
            self._session.dropped()

    def channel_lost(self, channel: Channel) -> None:
        self._channels.forget(channel)
        if channel is not self._channel or self.cursor is None:
            return
        self._channel = None
        if self._session.can_attach:
            details: JsonObject = {"head_seq": self.cursor.seq}
            session_id = self.cursor.session_id
            lagged = messages.SessionEvent(session_id=session_id, event="lagged", details=details)
            self._deliver(lagged)
        elif self._session.own_turns:
            self._session.server.services.spawn(self._resume)

    def resume(self, cursor: Cursor, turns: Mapping[str, int]) -> None:
        self.cursor = cursor
        self._session.own_turns.update(turns)
        self._session.server.services.spawn(self._resume)

    async def _resume(self) -> None:
        cursor = self.cursor
        if cursor is None:
            return
        attached: messages.Attached | None = None
        search = OwnerSearch(self._session, self._channels, cursor.session_id, None)
        try:
            async for owner in search:
                with search.attempt():
                    attached = await self._attach_again(owner, cursor.session_id)
            await self._send_ends(self.cursor or cursor, attached)
        except Exception as error:
            refusal = error_to_tell(error, log, "a client could not be attached again")
            self._session.send_away(refusal.message)

    async def _send_ends(self, cursor: Cursor, attached: messages.Attached | None) -> None:
        """Sends the client the missing text and the end of its turns that ended while it was not
        attached, as the record has them. `attached` tells which turns have ended; if it is None,
        the record does."""
        session, session_id = self._session, cursor.session_id
        ended = {
            turn_id: seq
            for turn_id, seq in session.own_turns.items()
            if attached is None or has_ended(turn_id, attached)
        }
        found = None
        if ended:
            found = await session.server.session_manager.find(session_id, session.user)
        if found is None:
            return
        progress: dict[str, TurnProgress] = defaultdict(TurnProgress)
        after = min(ended.values()) - 1
        async for batch in found.profile.store.entries(session_id, after=after):
            for entry in batch:
                turn_id = entry.turn_id
                if turn_id not in ended or turn_id not in session.own_turns:
                    continue
                event = messages.EntryAdded(
                    session_id=session_id,
                    turn_id=turn_id,
                    call=getattr(entry, "call", None),
                    entry=entry_as_json(entry),
                )
                progress[turn_id].apply(event)
                if (text := cursor.take_stored_text(event)) is not None:
                    self._deliver(text)
                if (end := progress[turn_id].end) is not None:
                    self._deliver(end)

    def _deliver(self, event: messages.Event) -> None:
        bytes_max = self._session.server.services.limits.message_bytes_max
        self._session.deliver(BroadcastEvent(event, bytes_max))

    def close(self) -> None:
        self.cursor = self._channel = None
        self._channels.close()


def _unknown_outcome() -> RequestError:
    return RequestError(
        ErrorCode.UNAVAILABLE,
        "the server that has this conversation was lost; whether it did this is not known",
    )
