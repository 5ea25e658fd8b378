"""The owner's side of a relay: clients of other servers in conversations of this one.

A link that another server has opened (`OwnerLink`) has a channel for each of that server's
clients. A channel is an ordinary session (`ChannelSession`) whose user the other server has
authenticated.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Final

import anyio
import anyio.lowlevel

from nplt_protocol import (
    ErrorCode,
    JsonObject,
    ProtocolError,
    Received,
    RequestError,
    ServerConnection,
    WireLimits,
)
from nplt_protocol.connection import ConnectionRefused
from nplt_protocol.frames import Frame
from nplt_protocol.link import (
    CHANNELS_PER_MESSAGE_MAX,
    ChannelClose,
    ChannelData,
    ChannelOpen,
    decode_link_message,
    encode_channel_close,
    encode_channel_data,
)
from nplt_protocol.messages import Prompt, SessionEvent
from nplt_protocol.stream import FrameStream
from nplt_server.connections.session import NO_RELAY, Relay, Session
from nplt_server.conversations.broadcast import BroadcastEvent
from nplt_server.dialects import PendingReply
from nplt_server.errors import error_to_tell
from nplt_server.relay.link import MOVED, ping
from nplt_storage.errors import ConversationHeld, WrittenElsewhere

log = logging.getLogger(__name__)

_LINK_UNSENT_BYTES_MAX: Final = 4 * 1024 * 1024
_BATCH_SECONDS_MAX: Final = 0.005


class ChannelTransport(asyncio.Transport):
    """The transport of a channel, which writes to the link. The link counts unsent bytes and blocks
    its channels."""

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
        """Closes the stream: the channel receives nothing more."""
        self.may_read.set()
        asyncio.get_running_loop().call_soon(self.stream.connection_lost, None)


@dataclass(slots=True, eq=False, repr=False, kw_only=True)
class ChannelSession(Session):
    """The session of a client of another server, which has authenticated it."""

    may_decide: bool

    @property
    def can_decide(self) -> bool:
        return self.may_decide

    def signed(self, prompt: Prompt) -> Prompt:
        """The prompt as it is: the edge has signed it."""
        return prompt

    def greet(self) -> None:
        """Does nothing: the edge has greeted its client."""

    def use_relay(self) -> Relay:
        """Returns no relay: the edge finds the owner."""
        return NO_RELAY

    def enter_fresh(self) -> None:
        """Leaves the conversation; the edge creates the fresh one itself."""
        self.depart()

    def reattach_elsewhere(self) -> None:
        """Sends `lagged`, at which the client, or the edge on its behalf, attaches again."""
        if (here := self.conversation) is not None:
            details: JsonObject = {"head_seq": here.head_seq}
            lagged = SessionEvent(session_id=here.session_id, event="lagged", details=details)
            self.deliver(BroadcastEvent(lagged, self.server.services.limits.message_bytes_max))

    def refuse(self, pending: PendingReply, error: Exception) -> None:
        refusal = error_to_tell(error, log, "a relayed request failed")
        is_moved = isinstance(error, ConversationHeld | WrittenElsewhere)
        if is_moved or refusal.code == ErrorCode.SHUTTING_DOWN:
            refusal = RequestError(refusal.code, refusal.message, details={MOVED: True})
        pending.refuse(refusal)


@dataclass(eq=False, repr=False)
class OwnerLink:
    """A link from another server to this one."""

    _accepted: Session
    _stream: FrameStream[Frame]
    _limits: WireLimits
    _sessions: set[ChannelSession]
    """All sessions of clients of other servers."""
    _channels: dict[int, ChannelTransport] = field(default_factory=dict)
    _due: dict[bytes, list[int]] = field(default_factory=dict)
    """The data to send at the end of this tick, and the channels it is for."""
    _due_numbers: set[int] = field(default_factory=set)
    _is_blocked: bool = False

    async def run(self) -> None:
        pinging = asyncio.create_task(ping(self._stream))
        try:
            while batch := await self._stream.receive():
                began = monotonic()
                for message in batch:
                    if isinstance(message, ConnectionRefused):
                        raise ProtocolError(message.reason)
                    await self._receive(message)
                    if monotonic() - began > _BATCH_SECONDS_MAX:
                        await anyio.lowlevel.checkpoint()  # lets other connections run
                        began = monotonic()
        except ProtocolError as error:
            log.warning("the link from %s ended: %s", self._accepted.address, error)
        finally:
            pinging.cancel()
            self._stream.abort()
            channels, self._channels = self._channels, {}
            for channel in channels.values():
                channel.end()

    async def _receive(self, message: Frame) -> None:
        match decode_link_message(message):
            case ChannelData(channels=numbers, frames=frames):
                for number in numbers:
                    if (channel := self._channels.get(number)) is not None:
                        channel.stream.data_received(frames)
                        # While the channel pauses reading, to store an upload, the whole link
                        # waits.
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
            self._accepted.server,
            self._accepted.handlers,
            user=client.user,
            client_name=client.client,
            is_authenticated=True,
            may_decide=client.can_decide,
        )
        self._accepted.server.services.spawn(partial(self._serve, session))

    async def _serve(self, session: ChannelSession) -> None:
        self._sessions.add(session)
        try:
            await session.run()
        except Exception:
            # A failure of one channel must not affect the others.
            log.exception("a channel of %s failed", self._accepted.address)
        finally:
            self._sessions.discard(session)
            session.stream.abort()

    def write(self, number: int, data: bytes) -> None:
        """Queues data for the end of the tick; data that is the same for many channels is sent
        once."""
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
            self._accepted.server.services.spawn(self._unblock)

    async def _unblock(self) -> None:
        await self._stream.drain()
        self._is_blocked = False
        for channel in tuple(self._channels.values()):
            channel.stream.resume_writing()

    def close_channel(self, number: int) -> None:
        """Closes the channel from this side."""
        channel = self._channels.pop(number, None)
        if channel is not None:
            self._flush()
            self._stream.send(encode_channel_close(number))
            channel.end()
