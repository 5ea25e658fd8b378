"""The edge's side of a relay: what a client of this server asks of a conversation's owner.

`Relay` belongs to one client. It finds the owner, sends requests over a `Channel` of the link
to it (`EdgeLink`), and gives replies and events to the client. If the owner or the link is
lost it asks the store again: this server becomes the owner itself, or learns the next one.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from time import monotonic
from typing import TYPE_CHECKING, Final, TypeAlias

import anyio
from msgspec.structs import replace

from nplt_protocol import ErrorCode, JsonObject, MessageType, RequestError, messages
from nplt_protocol.codec import REQUEST_CODES, decode_event, decode_reply, encode_request
from nplt_protocol.frames import Frame, encode_frame
from nplt_protocol.link import (
    ChannelClose,
    ChannelData,
    ChannelOpen,
    Enclosed,
    LinkConnection,
    decode_link_message,
    encode_channel_close,
    encode_channel_data,
    encode_channel_open,
    split_messages,
)
from nplt_protocol.stream import FrameStream
from nplt_server.connections.session import Session
from nplt_server.conversations.broadcast import BroadcastEvent
from nplt_server.conversations.conversation import Conversation
from nplt_server.dialects import Answer
from nplt_server.errors import error_to_tell
from nplt_storage.entries import FaultEntry, ModelOutputEntry
from nplt_storage.errors import ConversationHeld, WrittenElsewhere

if TYPE_CHECKING:
    from nplt_server.relay import Peers

log = logging.getLogger(__name__)

RELAY_SECONDS_MAX: Final = 25.0
"""How long a request waits for an owner: longer than a lease, shorter than clients wait."""
_UNREACHED_SECONDS: Final = 4.0
"""After which an owner that has not been reached is asked, through the store, to hand over."""
_PAUSE_SECONDS: Final = (0.02, 0.5)
_PING_SECONDS: Final = 1.0
_SILENCE_SECONDS_MAX: Final = 5.0
MOVED: Final = "moved"
"""A detail of an error between servers: another server is to be asked."""

_HERE: Final = (messages.ModelSwitch, messages.ClearRequest, messages.Cancel, messages.Approval)
"""About the conversation that the client is in, without naming it."""
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
"""About the conversation that they name, or the one that the client is in."""
_ANSWERED_LATER: Final = (
    messages.ClearRequest,
    messages.Compact,
    messages.Redact,
    messages.FileMetadata,
)
"""Requests that wait at the owner, while others of the same client go on."""
_NOT_REPEATED: Final = (
    *_ANSWERED_LATER,
    messages.Rollback,
    messages.SessionFork,
    messages.SessionDelete,
)
"""Requests that would do something else, or be refused, when they are done twice."""


class LinkLost(Exception):
    """The other server can't be reached, or not any more."""


class Moved(Exception):
    """The server that was asked does not have the conversation, and did nothing."""


Answered: TypeAlias = messages.Reply | RequestError
Outcome: TypeAlias = Answered | LinkLost | Moved
"""What comes of a request to another server."""


class RelayedEvent(BroadcastEvent):
    """An event of another server. Its frames go to clients as they are; it is decoded, once
    for all clients of this server, if one of them needs that."""

    __slots__ = ("message",)

    def __init__(self, message: Enclosed) -> None:
        self.message = message
        self._frames = message.frames

    def __getattr__(self, name: str) -> messages.Event:
        if name != "event":
            raise AttributeError(name)
        known = decode_event(self.message.type, self.message.payload)
        self.event: messages.Event = known or messages.Event()
        return self.event


@dataclass(slots=True, eq=False, repr=False)
class Channel:
    """What one client asks of one other server."""

    link: EdgeLink
    _number: int
    _relay: Relay
    _seq: int = 0
    _waiting: dict[int, tuple[MessageType, Callable[[Outcome], None]]] = field(default_factory=dict)

    def send(self, request: messages.Request, heard: Callable[[Outcome], None]) -> int:
        """`heard` is called once, in the order of what comes over the channel."""
        if self.link.is_closed:
            raise LinkLost
        self._seq = self._seq % 0xFFFF + 1
        while self._seq in self._waiting:
            self._seq = self._seq % 0xFFFF + 1
        frames = encode_request(request, self._seq, message_bytes_max=self.link.request_bytes_max)
        self._waiting[self._seq] = (REQUEST_CODES[type(request)], heard)
        self.link.stream.send(encode_channel_data((self._number,), frames))
        return self._seq

    async def ask(self, request: messages.Request, heard: Callable[[Answered], None]) -> None:
        """As `send`, and waits for it; `LinkLost` and `Moved` are raised."""
        done: asyncio.Future[LinkLost | Moved | None] = asyncio.Future()

        def take(outcome: Outcome) -> None:
            trouble = None
            if isinstance(outcome, LinkLost | Moved):
                trouble = outcome
            else:
                heard(outcome)
            if not done.done():
                done.set_result(trouble)

        self.send(request, take)
        if (trouble := await done) is not None:
            raise trouble

    async def send_data(self, seq: int, data: bytes) -> None:
        """A piece of the file that was announced under that number."""
        frames = encode_frame(MessageType.FILE_DATA, seq, data)
        self.link.stream.send(encode_channel_data((self._number,), frames))
        await self.link.stream.drain()

    def receive(self, items: list[RelayedEvent | Enclosed]) -> None:
        for item in items:
            if isinstance(item, RelayedEvent):
                self._relay.hear(self, item)
            elif (waiting := self._waiting.pop(item.seq, None)) is not None:
                code, heard = waiting
                heard(_outcome_of(code, item))

    def lost(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for _, heard in waiting.values():
            heard(LinkLost())
        self._relay.channel_lost(self)

    def close(self) -> None:
        self.link.close_channel(self._number)


async def ping(stream: FrameStream[Frame]) -> None:
    """Ends a link on which nothing comes: the other server may be stopped or cut off."""
    loop = asyncio.get_running_loop()
    while not stream.closed:
        stream.send(encode_frame(MessageType.PING, 0))
        began = loop.time()
        await anyio.sleep(_PING_SECONDS)
        was_stopped = loop.time() - began > _SILENCE_SECONDS_MAX / 2  # this process itself
        if not was_stopped and loop.time() - stream.last_received > _SILENCE_SECONDS_MAX:
            stream.abort("the other server is silent")


class EdgeLink:
    """A link from this server to an owner."""

    def __init__(self, address: str, stream: FrameStream[Frame], request_bytes_max: int) -> None:
        self.address = address
        self.request_bytes_max = request_bytes_max
        self.is_closed = False
        stream.connection = LinkConnection(self._take)
        self.stream = stream
        self._channels: dict[int, Channel] = {}
        self._numbers = count(1)

    def open_channel(self, relay: Relay, client: Session) -> Channel:
        if self.is_closed:
            raise LinkLost
        number = next(self._numbers)
        channel = self._channels[number] = Channel(self, number, relay)
        opened = ChannelOpen(
            channel=number,
            user=client.user,
            client=client.client_name,
            can_decide=client.can_decide,
        )
        self.stream.send(encode_channel_open(opened))
        return channel

    def close_channel(self, number: int) -> None:
        if self._channels.pop(number, None) is not None and not self.is_closed:
            self.stream.send(encode_channel_close(number))

    async def run(self) -> None:
        """Until it is lost."""
        pinging = asyncio.create_task(ping(self.stream))
        try:
            if batch := await self.stream.receive():  # what comes is given to `_take`
                log.warning("the link to %s ended: %s", self.address, batch)
        finally:
            pinging.cancel()
            self.is_closed = True
            self.stream.abort()
            channels, self._channels = self._channels, {}
            for channel in channels.values():
                channel.lost()

    def _take(self, message: Frame) -> None:
        try:
            match decode_link_message(message):
                case ChannelData(channels=numbers, frames=frames):
                    found = split_messages(frames)
                    items = [RelayedEvent(each) if each.seq == 0 else each for each in found]
                    for number in numbers:
                        if (channel := self._channels.get(number)) is not None:
                            channel.receive(items)
                case ChannelClose(channel=number):
                    if (channel := self._channels.pop(number, None)) is not None:
                        channel.lost()
                case _:
                    pass
        except Exception as error:  # the edge of a connection
            log.exception("the link to %s is closed", self.address)
            self.stream.abort(str(error))


@dataclass(slots=True, eq=False, repr=False)
class Relay:
    """What one client has at other servers: the conversation it is in, if that is at one of
    them, and a channel to each that it asked."""

    _peers: Peers
    _session: Session
    session_id: str | None = None
    """Of the conversation that the client is in, if another server owns it."""
    channel: Channel | None = None
    """Over which its events come; `None` while the owner is looked for."""
    _channels: dict[str, Channel] = field(default_factory=dict)
    _uploads: dict[int, tuple[Channel, int]] = field(default_factory=dict)
    """Files on their way in: by the client's number, the channel and its number there."""
    _last_entry: int | RelayedEvent = 0
    """What the client knows of the record."""
    _last_delta: RelayedEvent | None = None

    @property
    def head_seq(self) -> int:
        if isinstance(self._last_entry, RelayedEvent):
            entry = self._last_entry.event
            seq = entry.entry.get("seq") if isinstance(entry, messages.EntryAdded) else None
            self._last_entry = seq if isinstance(seq, int) else 0
        return self._last_entry

    def _heard_of(self, turn_id: str | None, call: int) -> int:
        """How much of the text of that call the client knows; all of an earlier one."""
        said = self._last_delta.event if self._last_delta is not None else None
        if not isinstance(said, messages.TextDelta) or said.turn_id != turn_id:
            return 0
        if said.call != call:
            return sys.maxsize if said.call > call else 0
        return said.offset + len(said.text)

    # Requests

    def concerns(self, request: messages.Request, seq: int) -> bool:
        """Whether it is for the owner of the conversation that the client is in."""
        if isinstance(request, messages.FileData):
            return seq in self._uploads
        if self.session_id is None:
            return False
        if isinstance(request, messages.FileMetadata):
            return request.purpose == "attachment"
        if isinstance(request, _HERE):
            return True
        return isinstance(request, _NAMED) and request.session_id in (None, self.session_id)

    async def forward(
        self,
        request: messages.Request,
        answer: Answer,
        session_id: str | None = None,
        address: str | None = None,
    ) -> None:
        """Has it handled by whoever owns the conversation: by default the one that the client
        is in. Returns when it is answered, or will be."""
        if isinstance(request, messages.FileData):
            channel, seq_there = self._uploads[answer.seq]
            await channel.send_data(seq_there, request.data)
            return
        if session_id is None:
            session_id = self.session_id
            address = None if self.channel is None else self.channel.link.address
            assert session_id is not None
        request = self._addressed(request, session_id)

        async def there(channel: Channel) -> None:
            if self.session_id == session_id and self.channel is None:
                await self._attach(channel)
            try:
                await self._ask(channel, request, answer)
            except LinkLost:
                if isinstance(request, _NOT_REPEATED):
                    raise _unknown_outcome() from None
                raise

        async def here(conversation: Conversation) -> None:
            if self.session_id == session_id:
                self._enter_here(conversation)
            await self._session.handlers[type(request)](self._session, request, answer)

        was_lost = await self._with_owner(session_id, address, there, here)
        if was_lost and isinstance(request, messages.Prompt) and not self._session.can_attach:
            await self._finish_ended(session_id)

    async def enter(
        self, held: ConversationHeld, entered: Callable[[str, str], None] = lambda *_: None
    ) -> None:
        """Attaches the client without a request of its own; `entered` is told id and model
        before any event is."""

        async def there(channel: Channel) -> None:
            self.session_id = held.session_id
            await self._attach(channel, entered)

        async def here(conversation: Conversation) -> None:
            self.session_id = None
            entered(conversation.session_id, conversation.model)
            self._session.enter(conversation)

        try:
            await self._with_owner(held.session_id, held.address, there, here)
        except BaseException:
            self.session_id = self.channel = None
            raise

    def _addressed(self, request: messages.Request, session_id: str) -> messages.Request:
        """With what it needs to be understood by any owner, and to be sent again."""
        if isinstance(request, messages.Cancel) and request.turn_id is None:
            return replace(request, turn_id=self._session.last_turn)
        if isinstance(request, _NAMED):
            request = replace(request, session_id=session_id)
        if isinstance(request, messages.Prompt) and request.message_id is None:
            minted = self._session.server.services.new_entry_id()
            request = replace(request, message_id=minted)
        return request

    async def _with_owner(
        self,
        session_id: str,
        address: str | None,
        there: Callable[[Channel], Awaitable[None]],
        here: Callable[[Conversation], Awaitable[None]],
    ) -> bool:
        """Calls `there` with a channel to the owner, or `here` if this server is the owner or
        becomes it; again with the next owner if that one is lost or has lost it. An owner that
        can't be reached is asked for the conversation. Whether one was lost."""
        registry, user = self._session.server.registry, self._session.user
        give_up_at = monotonic() + RELAY_SECONDS_MAX
        pause, longest = _PAUSE_SECONDS
        was_lost = False
        failed: list[tuple[str | None, float]] = []
        while True:
            began = monotonic()
            try:
                if address is not None:
                    await there(await self._channel_to(address))
                else:
                    if self._session.server.services.draining:  # it takes over nothing
                        raise RequestError(
                            ErrorCode.SHUTTING_DOWN, "the server is shutting down; try again later"
                        )
                    await here(await registry.get(session_id, user))
                return was_lost
            except ConversationHeld as held:
                if held.address is None:
                    raise
                address = held.address
                attempts = [at for each, at in failed if each == address]
                if len(attempts) > 1 and began - attempts[0] > _UNREACHED_SECONDS:
                    await registry.ask_for(held, user)
                if monotonic() < give_up_at:
                    continue
            except (LinkLost, Moved, WrittenElsewhere) as error:
                if isinstance(error, LinkLost):
                    failed.append((address, began))
                address, was_lost = None, True
            if monotonic() > give_up_at:
                raise RequestError(
                    ErrorCode.UNAVAILABLE,
                    "the server that has this conversation can't be reached; try again",
                    retry_after=1.0,
                )
            await anyio.sleep(pause)
            pause = min(pause * 2, longest)

    async def _channel_to(self, address: str) -> Channel:
        if address not in self._channels:
            link = await self._peers.link_to(address)
            if address not in self._channels:  # by another request meanwhile
                self._channels[address] = link.open_channel(self, self._session)
        return self._channels[address]

    async def _ask(self, channel: Channel, request: messages.Request, answer: Answer) -> None:
        heard = partial(self._heard, channel, answer)
        if not isinstance(request, _ANSWERED_LATER):
            await channel.ask(request, heard)
            return

        def take(outcome: Outcome) -> None:
            self._uploads.pop(answer.seq, None)
            if isinstance(outcome, LinkLost | Moved):
                answer.refuse(_unknown_outcome())
            else:
                heard(outcome)

        seq = channel.send(request, take)
        if isinstance(request, messages.FileMetadata):
            self._uploads[answer.seq] = (channel, seq)

    def _heard(self, channel: Channel, answer: Answer, reply: Answered) -> None:
        session = self._session
        match reply:
            case RequestError():
                answer.refuse(reply)
                return
            case messages.Attached():
                if channel is self.channel:
                    self.channel = None  # the owner has left the other one
                session.depart()
                self.channel, self.session_id = channel, reply.session_id
                self._last_entry, self._last_delta = reply.head_seq, None
            case messages.Receipt():
                is_here = channel is self.channel and reply.session_id == self.session_id
                if is_here and not (reply.duplicate and session.can_attach):
                    session.own_turns[reply.turn_id] = reply.seq
            case messages.SessionDeleted():
                here, current_id = session.conversation, session.current_id or ""
                model = here.model if here else None
                reply = replace(reply, current_session_id=current_id, model=model)
            case messages.SessionRow():
                reply = replace(reply, is_current=reply.session_id == session.current_id)
            case _:
                pass
        answer.give(reply)

    # The conversation that the client is in

    async def _attach(
        self, channel: Channel, entered: Callable[[str, str], None] = lambda *_: None
    ) -> None:
        """To the conversation that the client is in, as far as it knows."""
        assert self.session_id is not None

        def heard(reply: Answered) -> None:
            if isinstance(reply, messages.Attached):
                entered(reply.session_id, reply.model)
                self.channel = channel
                self._last_entry = reply.head_seq
            elif isinstance(reply, RequestError):
                refused.append(reply)

        refused: list[RequestError] = []
        cursor = messages.Attach(session_id=self.session_id, observer=self._session.observer)
        said = self._last_delta.event if self._last_delta is not None else None
        if isinstance(said, messages.TextDelta):
            offset = said.offset + len(said.text)
            cursor = replace(cursor, turn_id=said.turn_id, call=said.call, offset=offset)
        await channel.ask(cursor, heard)
        if refused:
            raise refused[0]

    def _enter_here(self, conversation: Conversation) -> None:
        """This server owns it now."""
        session, turns = self._session, dict(self._session.own_turns)
        running = conversation.queue.running
        offset = 0 if running is None else self._heard_of(running.turn_id, running.call)
        self.session_id = self.channel = None
        session.enter(conversation, observer=session.observer)
        session.own_turns.update(turns)
        if running is None or running.turn_id not in turns or not running.events.has_output:
            return
        text = running.events.sent_text("text")[offset:]
        for event in running.events.deltas("text", text, offset):
            self._deliver(event)

    def leave(self) -> None:
        """The client goes elsewhere."""
        channel, self.channel, self.session_id = self.channel, None, None
        self._last_delta = None
        if channel is not None:
            with suppress(LinkLost):
                channel.send(messages.Detach(), lambda outcome: None)

    def hear(self, channel: Channel, event: RelayedEvent) -> None:
        if channel is not self.channel:
            return
        tell = self._session.send_event  # most events are not even decoded
        match event.message.type:
            case MessageType.TEXT_DELTA:
                self._last_delta = event
            case MessageType.ENTRY:
                self._last_entry = event
            case MessageType.ERROR:
                return  # why the owner closes the channel
            case MessageType.SESSION_EVENT:
                told = event.event
                if isinstance(told, messages.SessionEvent) and told.event == "shutdown":
                    return  # of the owner, not of this server
                tell = self._session.deliver
            case MessageType.TURN_FINISHED:
                tell = self._session.deliver
            case _:
                pass
        try:
            tell(event)
        except Exception:
            log.exception("a relayed event could not be told")
            self._session.dropped()

    def channel_lost(self, channel: Channel) -> None:
        self._channels = {key: one for key, one in self._channels.items() if one is not channel}
        if channel is not self.channel or self.session_id is None:
            return
        self.channel = None
        if self._session.can_attach:
            details: JsonObject = {"head_seq": self.head_seq}
            id_ = self.session_id
            self._deliver(messages.SessionEvent(session_id=id_, event="lagged", details=details))
        elif self._session.own_turns:
            self._session.server.services.spawn(self._resume)

    def resume(self, session_id: str, turns: dict[str, int]) -> None:
        """This server has lost the conversation that the client is in; it can't attach again
        by itself."""
        self.session_id = session_id
        self._session.own_turns.update(turns)
        self._session.server.services.spawn(self._resume)

    async def _resume(self) -> None:
        """Finds the owner, attaches again and hears on of the turns the client waits for."""
        session_id = self.session_id
        if session_id is None:
            return

        async def there(channel: Channel) -> None:
            if self.channel is None and self.session_id == session_id:
                await self._attach(channel)

        async def here(conversation: Conversation) -> None:
            if self.channel is None and self.session_id == session_id:
                self._enter_here(conversation)

        try:
            await self._with_owner(session_id, None, there, here)
            await self._finish_ended(session_id)
        except Exception as error:
            told = error_to_tell(error, log, "a client could not be attached again")
            self._session.send_away(told.message)

    async def _finish_ended(self, session_id: str) -> None:
        """Tells the client of its turns that ended while it was attached to nothing: what it
        lacks of the text, and the end, as the record has them."""
        own_turns = self._session.own_turns
        found = await self._session.server.registry.find(session_id, self._session.user)
        if not own_turns or found is None:
            return
        after = min(own_turns.values()) - 1
        async for batch in found.profile.store.entries(session_id, after=after):
            for entry in batch:
                if isinstance(entry, ModelOutputEntry | FaultEntry) and entry.turn_id in own_turns:
                    self._tell_rest(session_id, entry.turn_id, entry)

    def _tell_rest(
        self, session_id: str, turn_id: str, entry: ModelOutputEntry | FaultEntry
    ) -> None:
        if isinstance(entry, FaultEntry):
            error: JsonObject | None = {"code": entry.code, "message": entry.content}
        else:
            offset = self._heard_of(turn_id, entry.call)
            if text := entry.content[offset:]:
                self._deliver(
                    messages.TextDelta(
                        session_id=session_id,
                        turn_id=turn_id,
                        call=entry.call,
                        offset=offset,
                        text=text,
                    )
                )
            if not entry.ends_turn:
                return
            error = None if entry.error is None else dict(entry.error)
        self._deliver(
            messages.TurnFinished(
                session_id=session_id,
                turn_id=turn_id,
                state=entry.state,
                seq=entry.seq,
                error=error,
            )
        )

    def _deliver(self, event: messages.Event) -> None:
        bytes_max = self._session.server.services.limits.message_bytes_max
        self._session.deliver(BroadcastEvent(event, bytes_max))

    def close(self) -> None:
        self.session_id = self.channel = None
        for channel in self._channels.values():
            channel.close()
        self._channels = {}


def _outcome_of(code: MessageType, message: Enclosed) -> Outcome:
    try:
        reply = decode_reply(code, message.type, message.payload)
    except RequestError as error:
        return error
    if not isinstance(reply, messages.ErrorReport):
        return reply
    if (reply.details or {}).get(MOVED):
        return Moved()
    try:
        error_code = ErrorCode(reply.code)
    except ValueError:  # of a later version
        error_code = ErrorCode.INTERNAL
    return RequestError(
        error_code,
        reply.message,
        field=reply.field,
        retry_after=reply.retry_after,
        details=reply.details,
    )


def _unknown_outcome() -> RequestError:
    return RequestError(
        ErrorCode.UNAVAILABLE,
        "the server that has this conversation was lost; whether it did this is not known",
    )
