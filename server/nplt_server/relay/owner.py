"""The owner's side of a relay: clients of other servers, over a link that one of them opened.

Each channel of the link is an ordinary session (`ChannelSession`) on a transport that writes
to the link. If the link is too slow, what is sent over it waits in the channels, each with the
limit that a client has.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Final

import anyio
import anyio.lowlevel

from nplt_protocol import (
    ConnectionRefused,
    ErrorCode,
    JsonObject,
    MessageType,
    ProtocolError,
    Received,
    RequestError,
    ServerConnection,
    WireLimits,
)
from nplt_protocol.frames import Frame, encode_frame
from nplt_protocol.link import (
    CHANNELS_PER_MESSAGE_MAX,
    ChannelClose,
    ChannelData,
    ChannelOpen,
    decode_link_message,
    encode_channel_close,
    encode_channel_data,
)
from nplt_protocol.messages import Request, SessionEvent
from nplt_protocol.stream import FrameStream
from nplt_server.connections.session import Session
from nplt_server.conversations.broadcast import BroadcastEvent
from nplt_server.dialects import Answer
from nplt_server.errors import error_to_tell
from nplt_storage.errors import ConversationHeld, WrittenElsewhere

log = logging.getLogger(__name__)

MOVED: Final = "moved"
"""A detail of an error between servers: another server is to be asked."""
_PING_SECONDS: Final = 1.0
_SILENCE_SECONDS_MAX: Final = 5.0
_LINK_UNSENT_BYTES_MAX: Final = 4 * 1024 * 1024
_BATCH_SECONDS_MAX: Final = 0.005


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


class ChannelTransport(asyncio.Transport):
    """The transport of a channel: what it is given goes over the link. The link counts what
    is not sent yet, and blocks its channels."""

    def __init__(self, link: OwnerLink, number: int, stream: FrameStream[Received]) -> None:
        super().__init__()
        self._link = link
        self._number = number
        self.stream = stream
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

    abort = close

    def end(self) -> None:
        """The channel is closed: nothing comes any more."""
        self.may_read.set()
        asyncio.get_running_loop().call_soon(self.stream.connection_lost, None)


@dataclass(slots=True, eq=False, kw_only=True)
class ChannelSession(Session):
    """A client of another server, which vouches for it."""

    may_decide: bool

    @property
    def can_decide(self) -> bool:
        return self.may_decide

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
        pinging = asyncio.create_task(ping(self._stream))
        try:
            while batch := await self._stream.receive():
                began = monotonic()
                for message in batch:
                    if isinstance(message, ConnectionRefused):
                        raise ProtocolError(message.reason)
                    await self._take(message)
                    if monotonic() - began > _BATCH_SECONDS_MAX:
                        await anyio.lowlevel.checkpoint()  # others want to be served too
                        began = monotonic()
        except ProtocolError as error:
            log.warning("the link from %s ended: %s", self._name, error)
        finally:
            pinging.cancel()
            self._stream.abort()
            channels, self._channels = self._channels, {}
            for channel in channels.values():
                channel.end()

    async def _take(self, message: Frame) -> None:
        match decode_link_message(message):
            case ChannelData(channels=numbers, frames=frames):
                for number in numbers:
                    if (channel := self._channels.get(number)) is not None:
                        channel.stream.data_received(frames)
                        # One that takes no more, because it stores an upload: the link waits.
                        await channel.may_read.wait()
            case ChannelOpen() as client:
                self._open(client)
            case ChannelClose(channel=number):
                if (channel := self._channels.pop(number, None)) is not None:
                    channel.end()
            case _:
                pass

    def _open(self, client: ChannelOpen) -> None:
        connection = ServerConnection(self._limits)
        connection.skip_handshake()
        stream: FrameStream[Received] = FrameStream(connection, limits=self._limits)
        transport = self._channels[client.channel] = ChannelTransport(self, client.channel, stream)
        stream.connection_made(transport)
        if self._is_blocked:
            stream.pause_writing()
        session = ChannelSession(
            stream,
            connection,
            self._server,
            self._handlers,
            user=client.user,
            client_name=client.client,
            is_authenticated=True,
            may_decide=client.can_decide,
        )
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
                channel.stream.pause_writing()
            self._server.services.spawn(self._unblock)

    async def _unblock(self) -> None:
        await self._stream.drain()
        self._is_blocked = False
        for channel in tuple(self._channels.values()):
            channel.stream.resume_writing()

    def close_channel(self, number: int) -> None:
        """This server ends it."""
        channel = self._channels.pop(number, None)
        if channel is not None:
            self._flush()
            self._stream.send(encode_channel_close(number))
            channel.end()
