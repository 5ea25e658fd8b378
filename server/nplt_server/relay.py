"""Relays between servers: a client may be at any of them, a conversation is at its owner.

A server that does not own a conversation (the edge) asks the owner, over one link for each
pair of servers (`nplt_protocol.link`), opened when it is first needed. Each client of the
edge has a channel of its own on it. At the owner a channel is an ordinary session
(`ChannelSession`) whose user the edge vouches for, so that attaching, approvals, presence,
cancelling, uploads and limits are the same code for all clients.

The edge keeps nothing of the record. A request that meets another server's conversation is
sent there, and the reply is given in the client's own dialect. If the owner or the link is
lost, the edge asks the store again: it becomes the owner itself or learns the next one. An
owner that has the conversation still is asked, through the store, to hand it over. What was
not answered is sent again, as long as sending it twice does no harm; prompts have a
`message_id` for that, given by the edge if the client gave none. Clients that can are told
`lagged` and attach again; for the others (plain ones, and those that have closed their side)
the edge attaches again, and reads from the record how their turns ended.

A client that reads too slowly lags at the edge, alone. If the link itself is too slow, what
is sent over it waits in the channels, each with the limit that a client has.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from itertools import count
from time import monotonic
from typing import Final, TypeAlias
from weakref import WeakKeyDictionary

import anyio
import anyio.lowlevel
from msgspec.structs import replace

from nplt_protocol import (
    PROTOCOL_VERSION,
    ErrorCode,
    JsonObject,
    MessageType,
    ProtocolError,
    Received,
    RequestError,
    ServerConnection,
    WireLimits,
    messages,
)
from nplt_protocol.client_connection import ClientConnection
from nplt_protocol.codec import decode_event, decode_reply, encode_request
from nplt_protocol.connection import ConnectionRefused, ErrorReceived, Heard, ReplyReceived
from nplt_protocol.frames import Frame, encode_frame
from nplt_protocol.link import (
    CHANNELS_PER_MESSAGE_MAX,
    ChannelClose,
    ChannelData,
    ChannelOpen,
    Enclosed,
    LinkConnection,
    decode_link_message,
    encode_channel_close,
    encode_channel_data,
    encode_channel_open,
    peer_proof,
    split_messages,
)
from nplt_protocol.messages import (
    REQUEST_TYPES,
    Attach,
    Attached,
    ErrorReport,
    FileData,
    FileMetadata,
    Hello,
    Prompt,
    Receipt,
    Reply,
    Request,
    SessionEvent,
    TextDelta,
    TurnFinished,
    Welcome,
)
from nplt_protocol.stream import FrameStream, open_stream
from nplt_server import __version__
from nplt_server.connections.session import Session
from nplt_server.conversations.broadcast import BroadcastEvent
from nplt_server.conversations.conversation import Conversation
from nplt_server.conversations.services import Spawn
from nplt_server.dialects import Answer
from nplt_server.errors import error_to_tell
from nplt_storage.entries import FaultEntry, ModelOutputEntry
from nplt_storage.errors import ConversationHeld, WrittenElsewhere

log = logging.getLogger(__name__)

RELAY_SECONDS_MAX: Final = 25.0
"""How long a request waits for an owner: longer than a lease, shorter than clients wait."""
_UNREACHED_SECONDS: Final = 4.0
"""After which an owner that has not been reached is asked, through the store, to hand over."""
_PAUSE_SECONDS: Final = (0.02, 0.5)
_CONNECT_SECONDS_MAX: Final = 3.0
_PING_SECONDS: Final = 1.0
_SILENCE_SECONDS_MAX: Final = 5.0
_LINK_UNSENT_BYTES_MAX: Final = 4 * 1024 * 1024
_ADDED_BYTES_MAX: Final = 4_096
"""What the edge adds to a request: ids."""
_BATCH_SECONDS_MAX: Final = 0.005

_CODES: Final = {shape: code for code, shape in REQUEST_TYPES.items()}
_HERE: Final = (messages.ModelSwitch, messages.ClearRequest, messages.Cancel, messages.Approval)
"""About the conversation that the client is in, without naming it."""
_NAMED: Final = (
    Prompt,
    Attach,
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
    FileMetadata,
)
"""Requests that wait at the owner, while others of the same client go on."""
_NOT_REPEATED: Final = (
    *_ANSWERED_LATER,
    messages.Rollback,
    messages.SessionFork,
    messages.SessionDelete,
)
"""Requests that would do something else, or be refused, when they are done twice."""

MOVED: Final = "moved"
"""A detail of an error between servers: another server is to be asked."""


class LinkLost(Exception):
    """The other server can't be reached, or not any more."""


class Moved(Exception):
    """The server that was asked does not have the conversation, and did nothing."""


Outcome: TypeAlias = Reply | ErrorReport | LinkLost | Moved
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


# ------------------------------------------------------------------------------
# The edge


class Channel:
    """What one client asks of one other server."""

    __slots__ = ("_link", "_number", "_relay", "_seq", "_waiting")

    def __init__(self, link: EdgeLink, number: int, relay: Relay) -> None:
        self._link = link
        self._number = number
        self._relay = relay
        self._seq = 0
        self._waiting: dict[int, tuple[MessageType, Callable[[Outcome], None]]] = {}

    @property
    def address(self) -> str:
        return self._link.address

    def send(self, request: Request, heard: Callable[[Outcome], None]) -> int:
        """`heard` is called once, in the order of what comes over the channel."""
        if self._link.is_closed:
            raise LinkLost
        self._seq = self._seq % 0xFFFF + 1
        while self._seq in self._waiting:
            self._seq = self._seq % 0xFFFF + 1
        frames = encode_request(request, self._seq, message_bytes_max=self._link.request_bytes_max)
        self._waiting[self._seq] = (_CODES[type(request)], heard)
        self._link.send(encode_channel_data((self._number,), frames))
        return self._seq

    async def ask(self, request: Request, heard: Callable[[Reply | ErrorReport], None]) -> None:
        """As `send`, and waits for it; `LinkLost` and `Moved` are raised."""
        done: asyncio.Future[LinkLost | Moved | None] = asyncio.Future()

        def take(outcome: Outcome) -> None:
            trouble = outcome if isinstance(outcome, LinkLost | Moved) else None
            if not isinstance(outcome, LinkLost | Moved):
                heard(outcome)
            if not done.done():
                done.set_result(trouble)

        self.send(request, take)
        trouble = await done
        if trouble is not None:
            raise trouble

    async def send_data(self, seq: int, data: bytes) -> None:
        """A piece of the file that was announced under that number."""
        frames = encode_frame(MessageType.FILE_DATA, seq, data)
        self._link.send(encode_channel_data((self._number,), frames))
        await self._link.drain()

    def receive(self, items: list[RelayedEvent | Enclosed]) -> None:
        for item in items:
            if isinstance(item, RelayedEvent):
                self._relay.hear(self, item)
            else:
                self._receive_reply(item)

    def _receive_reply(self, message: Enclosed) -> None:
        code, heard = self._waiting.pop(message.seq, (None, None))
        if code is None or heard is None:
            return
        try:
            reply: Outcome = decode_reply(code, message.type, message.payload)
        except RequestError as error:
            reply = ErrorReport(code=error.code, message=error.message)
        if isinstance(reply, ErrorReport) and (reply.details or {}).get(MOVED):
            reply = Moved()
        heard(reply)

    def lost(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for _, heard in waiting.values():
            heard(LinkLost())
        self._relay.channel_lost(self)

    def close(self) -> None:
        self._link.close_channel(self._number)


class EdgeLink:
    """A link from this server to an owner."""

    def __init__(self, address: str, stream: FrameStream[Frame], request_bytes_max: int) -> None:
        self.address = address
        self.request_bytes_max = request_bytes_max
        self.is_closed = False
        stream.connection = LinkConnection(self._take)
        self._stream = stream
        self._channels: dict[int, Channel] = {}
        self._numbers = count(1)

    def open_channel(self, relay: Relay, client: ChannelOpen) -> Channel:
        if self.is_closed:
            raise LinkLost
        number = next(self._numbers)
        channel = self._channels[number] = Channel(self, number, relay)
        self.send(encode_channel_open(replace(client, channel=number)))
        return channel

    def close_channel(self, number: int) -> None:
        if self._channels.pop(number, None) is not None and not self.is_closed:
            self.send(encode_channel_close(number))

    def send(self, data: bytes) -> None:
        self._stream.send(data)

    async def drain(self) -> None:
        await self._stream.drain()

    async def run(self) -> None:
        """Until it is lost."""
        pinging = asyncio.create_task(_ping(self._stream))
        try:
            while batch := await self._stream.receive():  # what comes is given to `_take`
                log.warning("the link to %s ended: %s", self.address, batch)
                break
        finally:
            pinging.cancel()
            self.is_closed = True
            self._stream.abort()
            channels, self._channels = self._channels, {}
            for channel in channels.values():
                channel.lost()

    def _take(self, message: Frame) -> None:
        try:
            self._dispatch(message)
        except Exception as error:  # the edge of a connection
            log.exception("the link to %s is closed", self.address)
            self._stream.abort(str(error))

    def _dispatch(self, message: Frame) -> None:
        match decode_link_message(message):
            case ChannelData(channels=numbers, frames=frames):
                items = [
                    RelayedEvent(each) if each.seq == 0 else each for each in split_messages(frames)
                ]
                for number in numbers:
                    if (channel := self._channels.get(number)) is not None:
                        channel.receive(items)
            case ChannelClose(channel=number):
                if (channel := self._channels.pop(number, None)) is not None:
                    channel.lost()
            case _:
                pass


async def _ping(stream: FrameStream[Frame]) -> None:
    """Ends a link on which nothing comes: the other server may be stopped or cut off."""
    loop = asyncio.get_running_loop()
    while not stream.closed:
        stream.send(encode_frame(MessageType.PING, 0))
        began = loop.time()
        await anyio.sleep(_PING_SECONDS)
        was_stopped = loop.time() - began > _SILENCE_SECONDS_MAX / 2  # this process itself
        if not was_stopped and loop.time() - stream.last_received > _SILENCE_SECONDS_MAX:
            stream.abort("the other server is silent")


class Relay:
    """What one client has at other servers: the conversation it is in, if that is at one of
    them, and a channel to each that it asked."""

    __slots__ = (
        "_channels",
        "_last_delta",
        "_last_entry",
        "_peers",
        "_session",
        "_uploads",
        "channel",
        "session_id",
    )

    def __init__(self, peers: Peers, session: Session) -> None:
        self._peers = peers
        self._session = session
        self.session_id: str | None = None
        """Of the conversation that the client is in, if another server owns it."""
        self.channel: Channel | None = None
        """Over which its events come; `None` while the owner is looked for."""
        self._channels: dict[str, Channel] = {}
        self._uploads: dict[int, tuple[Channel, int]] = {}
        """Files on their way in: by the client's number, the channel and its number there."""
        self._last_entry: int | RelayedEvent = 0
        """What the client knows of the record."""
        self._last_delta: RelayedEvent | None = None

    @property
    def head_seq(self) -> int:
        if isinstance(self._last_entry, RelayedEvent):
            entry = self._last_entry.event
            seq = entry.entry.get("seq") if isinstance(entry, messages.EntryAdded) else None
            self._last_entry = seq if isinstance(seq, int) else 0
        return self._last_entry

    # Requests

    def concerns(self, request: Request, seq: int) -> bool:
        """Whether it is for the owner of the conversation that the client is in."""
        if isinstance(request, FileData):
            return seq in self._uploads
        if self.session_id is None:
            return False
        if isinstance(request, FileMetadata):
            return request.purpose == "attachment"
        if isinstance(request, _HERE):
            return True
        return isinstance(request, _NAMED) and request.session_id in (None, self.session_id)

    async def forward(
        self,
        request: Request,
        answer: Answer,
        session_id: str | None = None,
        address: str | None = None,
    ) -> None:
        """Has it handled by whoever owns the conversation: by default the one that the client
        is in. Returns when it is answered, or will be."""
        if isinstance(request, FileData):
            await self._forward_data(request, answer.seq)
            return
        if session_id is None:
            session_id = self.session_id
            address = None if self.channel is None else self.channel.address
            assert session_id is not None
        request = self._addressed(request, session_id)

        async def there(channel: Channel) -> None:
            if self.session_id == session_id and self.channel is None:
                await self._attach(channel, lambda attached: None)
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
        if was_lost and isinstance(request, Prompt) and not self._session.can_attach:
            await self._finish_ended(session_id)

    async def enter(
        self, held: ConversationHeld, entered: Callable[[str, str], None] = lambda *_: None
    ) -> None:
        """Attaches the client without a request of its own; `entered` is told id and model
        before any event is."""

        async def there(channel: Channel) -> None:
            self.session_id = held.session_id
            await self._attach(channel, lambda it: entered(it.session_id, it.model))

        async def here(conversation: Conversation) -> None:
            self.session_id = None
            entered(conversation.session_id, conversation.model)
            self._session.enter(conversation)

        try:
            await self._with_owner(held.session_id, held.address, there, here)
        except BaseException:
            self.session_id = self.channel = None
            raise

    def _addressed(self, request: Request, session_id: str) -> Request:
        """With what it needs to be understood by any owner, and to be sent again."""
        if isinstance(request, messages.Cancel) and request.turn_id is None:
            return replace(request, turn_id=self._session.last_turn)
        if isinstance(request, _NAMED):
            request = replace(request, session_id=session_id)
        if isinstance(request, Prompt) and request.message_id is None:
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
                    self._check_not_draining()
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

    def _check_not_draining(self) -> None:
        """A server that shuts down takes over nothing."""
        if self._session.server.services.draining:
            raise RequestError(
                ErrorCode.SHUTTING_DOWN, "the server is shutting down; try again later"
            )

    async def _channel_to(self, address: str) -> Channel:
        channel = self._channels.get(address)
        if channel is None:
            link = await self._peers.link_to(address)
            channel = self._channels.get(address)
            if channel is None:
                session = self._session
                client = ChannelOpen(
                    channel=0,
                    user=session.user,
                    client=session.client_name,
                    can_decide=session.can_decide,
                )
                channel = self._channels[address] = link.open_channel(self, client)
        return channel

    async def _ask(self, channel: Channel, request: Request, answer: Answer) -> None:
        heard = partial(self._heard, channel, request, answer)
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
        if isinstance(request, FileMetadata):
            self._uploads[answer.seq] = (channel, seq)

    def _heard(
        self, channel: Channel, request: Request, answer: Answer, reply: Reply | ErrorReport
    ) -> None:
        session = self._session
        match reply:
            case ErrorReport():
                answer.refuse(_error_of(reply))
            case Attached():
                self._entered(channel, reply)
                answer.give(reply)
            case Receipt():
                is_here = channel is self.channel and reply.session_id == self.session_id
                if is_here and not (reply.duplicate and session.can_attach):
                    session.my_turn(reply)
                answer.give(reply)
            case messages.SessionDeleted():
                here = session.conversation
                answer.give(
                    replace(
                        reply,
                        current_session_id=session.current_id or "",
                        model=here.model if here else None,
                    )
                )
            case messages.SessionRow():
                is_current = reply.session_id == session.current_id
                answer.give(replace(reply, is_current=is_current))
            case _:
                answer.give(reply)

    async def _forward_data(self, piece: FileData, seq: int) -> None:
        channel, seq_there = self._uploads[seq]
        await channel.send_data(seq_there, piece.data)

    # The conversation that the client is in

    def _entered(self, channel: Channel, attached: Attached) -> None:
        if channel is self.channel:
            self.channel = None  # the owner has left the other one
        self._session.depart()
        self.channel, self.session_id = channel, attached.session_id
        self._last_entry, self._last_delta = attached.head_seq, None

    async def _attach(self, channel: Channel, entered: Callable[[Attached], None]) -> None:
        """To the conversation that the client is in, as far as it knows."""
        assert self.session_id is not None

        def heard(reply: Reply | ErrorReport) -> None:
            if isinstance(reply, Attached):
                entered(reply)
                self.channel = channel
                self._last_entry = reply.head_seq
            elif isinstance(reply, ErrorReport):
                refused.append(_error_of(reply))

        refused: list[RequestError] = []
        said = self._last_delta.event if self._last_delta is not None else None
        cursor = Attach(session_id=self.session_id, observer=self._session.observer)
        if isinstance(said, TextDelta):
            offset = said.offset + len(said.text)
            cursor = replace(cursor, turn_id=said.turn_id, call=said.call, offset=offset)
        await channel.ask(cursor, heard)
        if refused:
            raise refused[0]

    def _enter_here(self, conversation: Conversation) -> None:
        """This server owns it now."""
        session, turns, said = self._session, self._session.own_turns, self._last_delta
        self.session_id = self.channel = None
        session.enter(conversation, observer=session.observer)
        session.keep_turns(turns)
        running = conversation.queue.running
        if running is None or running.turn_id not in turns or running.output is None:
            return
        known = said.event if said is not None else None
        offset = 0
        if isinstance(known, TextDelta) and (known.turn_id, known.call) == (
            running.turn_id,
            running.call,
        ):
            offset = known.offset + len(known.text)
        text = running.output.text[offset : running.events.offset("text")]
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
        match event.message.type:
            case MessageType.TEXT_DELTA:
                self._last_delta = event
            case MessageType.ENTRY:
                self._last_entry = event
            case MessageType.ERROR:
                return  # why the owner closes the channel
            case MessageType.SESSION_EVENT:
                told = event.event
                if isinstance(told, SessionEvent) and told.event == "shutdown":
                    return  # of the owner, not of this server
            case _:
                pass
        try:
            self._session.deliver_relayed(event)
        except Exception:
            log.exception("a relayed event could not be told")
            self._session.dropped()

    def channel_lost(self, channel: Channel) -> None:
        self._channels = {key: one for key, one in self._channels.items() if one is not channel}
        if channel is not self.channel or self.session_id is None:
            return
        self.channel = None
        if self._session.can_attach:
            self._deliver(
                SessionEvent(
                    session_id=self.session_id,
                    event="lagged",
                    details={"head_seq": self.head_seq},
                )
            )
        elif self._session.own_turns:
            self._session.server.services.spawn(self._resume)

    def resume(self, session_id: str, turns: dict[str, int]) -> None:
        """This server has lost the conversation that the client is in; it can't attach again
        by itself."""
        self.session_id = session_id
        self._session.keep_turns(turns)
        self._session.server.services.spawn(self._resume)

    async def _resume(self) -> None:
        """Finds the owner, attaches again and hears on of the turns the client waits for."""
        session_id = self.session_id
        if session_id is None:
            return

        async def there(channel: Channel) -> None:
            if self.channel is None and self.session_id == session_id:
                await self._attach(channel, lambda attached: None)

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
        turns = self._session.own_turns
        found = await self._session.server.registry.find(session_id, self._session.user)
        if not turns or found is None:
            return
        after = min(turns.values()) - 1
        async for batch in found.profile.store.entries(session_id, after=after):
            for entry in batch:
                if entry.turn_id not in self._session.own_turns or entry.turn_id is None:
                    continue
                if isinstance(entry, ModelOutputEntry):
                    self._tell_rest(session_id, entry)
                    if entry.ends_turn:
                        error = None if entry.error is None else dict(entry.error)
                        self._tell_end(session_id, entry, error)
                elif isinstance(entry, FaultEntry):
                    fault: JsonObject = {"code": entry.code, "message": entry.content}
                    self._tell_end(session_id, entry, fault)

    def _tell_rest(self, session_id: str, entry: ModelOutputEntry) -> None:
        said = self._last_delta.event if self._last_delta is not None else None
        offset = 0
        if isinstance(said, TextDelta) and said.turn_id == entry.turn_id:
            if said.call > entry.call:
                return
            if said.call == entry.call:
                offset = said.offset + len(said.text)
        if text := entry.content[offset:]:
            self._deliver(
                TextDelta(
                    session_id=session_id,
                    turn_id=entry.turn_id or "",
                    call=entry.call,
                    offset=offset,
                    text=text,
                )
            )

    def _tell_end(
        self, session_id: str, entry: ModelOutputEntry | FaultEntry, error: JsonObject | None
    ) -> None:
        self._deliver(
            TurnFinished(
                session_id=session_id,
                turn_id=entry.turn_id or "",
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


def _error_of(report: ErrorReport) -> RequestError:
    try:
        code = ErrorCode(report.code)
    except ValueError:  # of a later version
        code = ErrorCode.INTERNAL
    return RequestError(
        code,
        report.message,
        field=report.field,
        retry_after=report.retry_after,
        details=report.details,
    )


def _unknown_outcome() -> RequestError:
    return RequestError(
        ErrorCode.UNAVAILABLE,
        "the server that has this conversation was lost; whether it did this is not known",
    )


# ------------------------------------------------------------------------------
# The owner


class ChannelTransport(asyncio.Transport):
    """The transport of a channel: what it is given goes over the link. The link counts what
    is not sent yet, and blocks its channels."""

    def __init__(self, link: OwnerLink, number: int) -> None:
        super().__init__()
        self._link = link
        self._number = number
        self.stream: FrameStream[Received] | None = None
        self.may_read = anyio.Event()
        self.may_read.set()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._link.write(self._number, bytes(data))

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def can_write_eof(self) -> bool:
        return False

    def pause_reading(self) -> None:
        if self.may_read.is_set():
            self.may_read = anyio.Event()

    def resume_reading(self) -> None:
        self.may_read.set()

    def close(self) -> None:
        self._link.close_channel(self._number)

    def abort(self) -> None:
        self.close()


class ChannelSession(Session):
    """A client of another server."""

    __slots__ = ("_can_decide",)

    def begin(self, client: ChannelOpen) -> None:
        self._can_decide = client.can_decide
        self.user = client.user
        self.client_name = client.client
        self.is_authenticated = True

    @property
    def can_decide(self) -> bool:
        return self._can_decide

    def greet(self) -> None:
        """The edge has."""

    def enter_fresh(self) -> None:
        """The edge has fresh ones of its own."""
        self.depart()

    def hand_over(self) -> None:
        if (here := self.conversation) is not None:
            details: JsonObject = {"head_seq": here.history.head_seq}
            told = SessionEvent(session_id=here.session_id, event="lagged", details=details)
            self.deliver(BroadcastEvent(told, self.server.services.limits.message_bytes_max))

    async def _ask_owner(
        self,
        request: Request,
        answer: Answer,
        error: ConversationHeld | WrittenElsewhere,
        here: str | None,
    ) -> None:
        """The edge does."""
        self.refuse(answer, error)

    def refuse(self, answer: Answer, error: Exception) -> None:
        told = error_to_tell(error, log, "a relayed request failed")
        is_moved = isinstance(error, ConversationHeld | WrittenElsewhere)
        if is_moved or told.code == ErrorCode.SHUTTING_DOWN:
            told = RequestError(told.code, told.message, details={MOVED: True})
        answer.refuse(told)


async def _take_all(
    batch: list[Frame | ConnectionRefused], take: Callable[[Frame], Awaitable[None]]
) -> None:
    began = monotonic()
    for message in batch:
        if isinstance(message, ConnectionRefused):
            raise ProtocolError(message.reason)
        await take(message)
        if monotonic() - began > _BATCH_SECONDS_MAX:
            await anyio.lowlevel.checkpoint()  # others want to be served too
            began = monotonic()


class OwnerLink:
    """A link from another server to this one."""

    def __init__(self, accepted: Session, stream: FrameStream[Frame], limits: WireLimits) -> None:
        self._server = accepted.server
        self._handlers = accepted.handlers
        self._stream = stream
        self._name = accepted.address
        self._limits = limits
        self._channels: dict[int, ChannelTransport] = {}
        self._due: dict[bytes, list[int]] = {}
        """What is sent at the end of this tick, and over which channels."""
        self._due_numbers: set[int] = set()
        self._is_blocked = False

    async def run(self) -> None:
        pinging = asyncio.create_task(_ping(self._stream))
        try:
            while batch := await self._stream.receive():
                await _take_all(batch, self._take)
        except ProtocolError as error:
            log.warning("the link from %s ended: %s", self._name, error)
        finally:
            pinging.cancel()
            self._stream.abort()
            channels, self._channels = self._channels, {}
            for channel in channels.values():
                _end(channel)

    async def _take(self, message: Frame) -> None:
        match decode_link_message(message):
            case ChannelData(channels=numbers, frames=frames):
                for number in numbers:
                    channel = self._channels.get(number)
                    if channel is not None and channel.stream is not None:
                        channel.stream.data_received(frames)
                        # One that takes no more, because it stores an upload: the link waits.
                        await channel.may_read.wait()
            case ChannelOpen() as client:
                self._open(client)
            case ChannelClose(channel=number):
                if (channel := self._channels.pop(number, None)) is not None:
                    _end(channel)
            case _:
                pass

    def _open(self, client: ChannelOpen) -> None:
        connection = ServerConnection(self._limits)
        connection.skip_handshake()
        stream: FrameStream[Received] = FrameStream(connection, limits=self._limits)
        transport = ChannelTransport(self, client.channel)
        transport.stream = stream
        self._channels[client.channel] = transport
        stream.connection_made(transport)
        if self._is_blocked:
            stream.pause_writing()
        session = ChannelSession(stream, connection, self._server, self._handlers)
        session.begin(client)
        self._server.services.spawn(partial(self._serve, session))

    async def _serve(self, session: ChannelSession) -> None:
        peers = self._server.peers
        assert peers is not None
        peers.sessions.add(session)
        try:
            await session.run()
        except Exception:
            # The edge of a connection: whatever it does, the others live on.
            log.exception("a channel of %s failed", self._name)
        finally:
            peers.sessions.discard(session)
            session.stream.abort()

    def write(self, number: int, data: bytes) -> None:
        """Sent at the end of the tick; once, if many channels are given the same."""
        if number in self._due_numbers:
            self._flush()
        if not self._due:
            asyncio.get_running_loop().call_soon(self._flush)
        self._due.setdefault(data, []).append(number)
        self._due_numbers.add(number)

    def _flush(self) -> None:
        due, self._due = self._due, {}
        self._due_numbers.clear()
        for data, numbers in due.items():
            for start in range(0, len(numbers), CHANNELS_PER_MESSAGE_MAX):
                some = numbers[start : start + CHANNELS_PER_MESSAGE_MAX]
                self._stream.send(encode_channel_data(some, data))
        self._stream.flush()
        if not self._is_blocked and self._stream.unsent_bytes > _LINK_UNSENT_BYTES_MAX:
            self._is_blocked = True
            for channel in self._channels.values():
                if channel.stream is not None:
                    channel.stream.pause_writing()
            self._server.services.spawn(self._unblock)

    async def _unblock(self) -> None:
        await self._stream.drain()
        self._is_blocked = False
        for channel in tuple(self._channels.values()):
            if channel.stream is not None:
                channel.stream.resume_writing()

    def close_channel(self, number: int) -> None:
        """This server ends it."""
        channel = self._channels.pop(number, None)
        if channel is not None:
            self._flush()
            self._stream.send(encode_channel_close(number))
            _end(channel)


def _end(channel: ChannelTransport) -> None:
    channel.may_read.set()
    stream, channel.stream = channel.stream, None
    if stream is not None:
        asyncio.get_running_loop().call_soon(stream.connection_lost, None)


# ------------------------------------------------------------------------------
# All of them


class Peers:
    """The other servers of the cluster: links to them, and theirs to this one."""

    def __init__(
        self, *, secret: bytes, tls: ssl.SSLContext | None, limits: WireLimits, spawn: Spawn
    ) -> None:
        self._secret = secret
        self._tls = tls
        request_bytes_max = limits.message_bytes_max + _ADDED_BYTES_MAX
        self._limits = WireLimits(
            message_bytes_max=request_bytes_max,
            json_depth_max=limits.json_depth_max,
            json_keys_max=limits.json_keys_max + 8,
            message_seconds_max=limits.message_seconds_max,
            event_bytes_max=limits.event_bytes_max,
            write_seconds_max=limits.write_seconds_max,
        )
        self._spawn = spawn
        self._links: dict[str, EdgeLink] = {}
        self._opening: dict[str, asyncio.Future[EdgeLink]] = {}
        self._challenges: WeakKeyDictionary[Session, str] = WeakKeyDictionary()
        self.sessions: set[ChannelSession] = set()
        """Those of clients of other servers."""

    def relay_of(self, session: Session) -> Relay:
        if session.relay is None:
            session.relay = Relay(self, session)
        return session.relay

    def sweep(self, now: float) -> None:
        for session in tuple(self.sessions):
            session.check_timeouts(now)

    async def link_to(self, address: str) -> EdgeLink:
        """Opened if there is none; all who need it wait for one attempt. `LinkLost`: the
        server can't be reached."""
        link = self._links.get(address)
        if link is not None and not link.is_closed:
            return link
        opening = self._opening.get(address)
        if opening is None:
            opening = self._opening[address] = asyncio.ensure_future(self._open(address))
            opening.add_done_callback(lambda done: self._opened(address, done))
        return await asyncio.shield(opening)

    def _opened(self, address: str, done: asyncio.Future[EdgeLink]) -> None:
        del self._opening[address]
        if not done.cancelled() and done.exception() is None:
            link = self._links[address] = done.result()
            self._spawn(link.run)

    async def _open(self, address: str) -> EdgeLink:
        host, _, port = address.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        connection = ClientConnection(limits=self._limits)
        stream: FrameStream[Heard] | None = None
        try:
            async with asyncio.timeout(_CONNECT_SECONDS_MAX):
                stream = await open_stream(
                    host, int(port), connection, limits=self._limits, ssl=self._tls
                )
                await self._introduce(stream, connection)
        except (OSError, ssl.SSLError, ProtocolError, LinkLost) as error:
            if stream is not None:
                stream.abort()
            log.warning("the server at %s can't be reached: %s", address, error or "no answer")
            raise LinkLost(str(error)) from None
        link_stream: FrameStream[Frame] = stream  # type: ignore[assignment]
        return EdgeLink(address, link_stream, self._limits.message_bytes_max)

    async def _introduce(self, stream: FrameStream[Heard], connection: ClientConnection) -> None:
        """Each proves to the other that it knows the secret."""
        nonce = secrets.token_hex(16)
        hello = Hello(client=f"nplt-server/{__version__}", peer=nonce)
        stream.send(connection.send_hello(hello))
        is_proved = False
        while batch := await stream.receive():
            for heard in batch:
                match heard:
                    case ErrorReceived(report=report) if not is_proved:
                        told = report.details or {}
                        challenge, proof = str(told.get("challenge")), str(told.get("proof"))
                        if not secrets.compare_digest(
                            proof, peer_proof(self._secret, "owner", nonce, challenge)
                        ):
                            raise LinkLost(f"it does not know the secret: {report.message}")
                        is_proved = True
                        mine = peer_proof(self._secret, "edge", nonce, challenge)
                        stream.send(connection.send_hello(replace(hello, proof=mine)))
                    case ErrorReceived(report=report):
                        raise LinkLost(report.message)
                    case ReplyReceived(reply=Welcome()) if is_proved:
                        return
                    case ConnectionRefused(reason=reason):
                        raise LinkLost(reason)
                    case _:
                        pass
        raise LinkLost(connection.greeting or "it closed the connection")

    async def accept(self, session: Session, hello: Hello, answer: Answer) -> None:
        """HELLO of another server. Returns when the link ends."""
        assert hello.peer is not None
        challenge = self._challenges.pop(session, None)
        if challenge is None or hello.proof is None:
            challenge = self._challenges[session] = secrets.token_hex(16)
            proof = peer_proof(self._secret, "owner", hello.peer, challenge)
            answer.refuse(
                RequestError(
                    ErrorCode.UNAUTHORIZED,
                    "prove that you know the secret of this cluster",
                    details={"challenge": challenge, "proof": proof},
                )
            )
            return
        if not secrets.compare_digest(
            hello.proof, peer_proof(self._secret, "edge", hello.peer, challenge)
        ):
            admission = session.server.admission
            admission.log_refusal(session.address, "it does not know the cluster's secret")
            await anyio.sleep(admission.penalty_for(session.address))
            answer.refuse(RequestError(ErrorCode.UNAUTHORIZED, "that is not this cluster's secret"))
            session.count_failed_hello()
            return
        session.is_authenticated = True
        session.user, session.client_name = "", hello.client or ""
        welcome = Welcome(
            version=PROTOCOL_VERSION,
            server=f"nplt/{__version__}",
            user="",
            session_id="",
            model=session.server.services.router.default_model,
            models=(),
            limits={},
            features=("link",),
        )
        session.stream.send(session.connection.send_welcome(answer.seq, welcome))
        stream: FrameStream[Frame] = session.stream  # type: ignore[assignment]
        stream.connection = LinkConnection()
        link = OwnerLink(session, stream, self._limits)
        await link.run()
