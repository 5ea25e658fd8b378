"""Links from this server to others, and the channels on them.

There is one link for each other server, opened on first use. A channel carries the requests of
one client of this server. Its replies and events are passed to its user in the order in which they
arrive; events are not decoded.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import ssl
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Final, Protocol, TypeAlias

import anyio
from msgspec.structs import replace

from nplt_protocol import ErrorCode, MessageType, ProtocolError, RequestError, WireLimits, messages
from nplt_protocol.client_connection import ClientConnection
from nplt_protocol.codec import REQUEST_CODES, decode_event, decode_reply, encode_request
from nplt_protocol.connection import (
    ConnectionRefused,
    ErrorReceived,
    ReceivedByClient,
    ReplyReceived,
)
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
    peer_proof,
    split_messages,
)
from nplt_protocol.stream import FrameStream, open_stream
from nplt_server import __version__
from nplt_server.conversations.broadcast import BroadcastEvent
from nplt_server.logs import RepeatedWarnings
from nplt_server.tasks import Spawn
from nplt_storage.errors import BadEntry

log = logging.getLogger(__name__)

_CONNECT_SECONDS_MAX: Final = 3.0
_PING_SECONDS: Final = 1.0
_SILENCE_SECONDS_MAX: Final = 5.0
MOVED: Final = "moved"
"""A detail of an error between servers: the edge must ask another server."""


class LinkLost(Exception):
    """The other server can't be reached, or the link to it has ended."""


class Moved(Exception):
    """The server that was asked does not have the conversation, and did nothing."""


ReplyOrRefusal: TypeAlias = messages.Reply | RequestError
Outcome: TypeAlias = ReplyOrRefusal | LinkLost | Moved
"""The result of a request to another server."""


class RelayedEvent(BroadcastEvent):
    """An event of another server. Its frames are sent to clients unchanged; it is decoded only if a
    client needs that, once for all clients of this server."""

    __slots__ = ("message",)

    def __init__(self, message: Enclosed) -> None:
        self.message = message
        self.frames = message.frames

    def __getattr__(self, name: str) -> messages.Event:
        if name != "event":
            raise AttributeError(name)
        known = decode_event(self.message.type, self.message.payload)
        self.event: messages.Event = known or messages.Event()
        return self.event


class ChannelUser(Protocol):
    """Receives the events of a channel."""

    def receive_event(self, channel: Channel, event: RelayedEvent) -> None: ...

    def channel_lost(self, channel: Channel) -> None: ...


@dataclass(slots=True, eq=False, repr=False)
class Channel:
    link: EdgeLink
    _number: int
    _user: ChannelUser
    _seq: int = 0
    _waiting: dict[int, tuple[MessageType, Callable[[Outcome], None]]] = field(default_factory=dict)

    def send(self, request: messages.Request, receive: Callable[[Outcome], None]) -> int:
        """Sends a request, and returns its seq. `receive` is called once with the outcome, in order
        with the events of the channel."""
        if self.link.is_closed:
            raise LinkLost
        self._seq = self._seq % 0xFFFF + 1
        while self._seq in self._waiting:
            self._seq = self._seq % 0xFFFF + 1
        frames = encode_request(request, self._seq, message_bytes_max=self.link.request_bytes_max)
        self._waiting[self._seq] = (REQUEST_CODES[type(request)], receive)
        self.link.stream.send(encode_channel_data((self._number,), frames))
        return self._seq

    async def ask(
        self, request: messages.Request, receive: Callable[[ReplyOrRefusal], None]
    ) -> ReplyOrRefusal:
        """Sends a request and waits for the reply. `receive` gets it first, before any later event.
        Raises `LinkLost` and `Moved`."""
        done: asyncio.Future[Outcome] = asyncio.Future()

        def receive_outcome(outcome: Outcome) -> None:
            if not isinstance(outcome, LinkLost | Moved):
                receive(outcome)
            if not done.done():
                done.set_result(outcome)

        self.send(request, receive_outcome)
        outcome = await done
        if isinstance(outcome, LinkLost | Moved):
            raise outcome
        return outcome

    async def send_data(self, seq: int, data: bytes) -> None:
        """Sends a piece of the file that was announced under that seq."""
        frames = encode_frame(MessageType.FILE_DATA, seq, data)
        self.link.stream.send(encode_channel_data((self._number,), frames))
        await self.link.stream.drain()

    def receive(self, items: list[RelayedEvent | Enclosed]) -> None:
        for item in items:
            if isinstance(item, RelayedEvent):
                self._user.receive_event(self, item)
            elif (waiting := self._waiting.pop(item.seq, None)) is not None:
                code, receive = waiting
                receive(_outcome_of(code, item))

    def lost(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for _, receive in waiting.values():
            receive(LinkLost())
        self._user.channel_lost(self)

    def close(self) -> None:
        self.link.close_channel(self._number)


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
    except ValueError:  # a code of a later version
        error_code = ErrorCode.INTERNAL
    return RequestError(
        error_code,
        reply.message,
        field=reply.field,
        retry_after=reply.retry_after,
        details=reply.details,
    )


async def ping(stream: FrameStream[Frame]) -> None:
    """Sends pings, and ends a link on which nothing arrives: the other server may be stopped or
    unreachable."""
    loop = asyncio.get_running_loop()
    while not stream.closed:
        stream.send(encode_frame(MessageType.PING, 0))
        began = loop.time()
        await anyio.sleep(_PING_SECONDS)
        was_stopped = loop.time() - began > _SILENCE_SECONDS_MAX / 2  # this process was suspended
        if not was_stopped and loop.time() - stream.last_received > _SILENCE_SECONDS_MAX:
            stream.abort("the other server is silent")


class EdgeLink:
    """A link from this server to an owner."""

    def __init__(self, address: str, stream: FrameStream[Frame], request_bytes_max: int) -> None:
        self.address = address
        self.request_bytes_max = request_bytes_max
        self.is_closed = False
        stream.connection = LinkConnection(self._receive)
        self.stream = stream
        self._channels: dict[int, Channel] = {}
        self._numbers = count(1)

    def open_channel(
        self, channel_user: ChannelUser, *, user: str, client: str, can_decide: bool
    ) -> Channel:
        """`user`, `client` and `can_decide` describe the client, as in `ChannelOpen`."""
        if self.is_closed:
            raise LinkLost
        number = next(self._numbers)
        channel = self._channels[number] = Channel(self, number, channel_user)
        opened = ChannelOpen(channel=number, user=user, client=client, can_decide=can_decide)
        self.stream.send(encode_channel_open(opened))
        return channel

    def close_channel(self, number: int) -> None:
        if self._channels.pop(number, None) is not None and not self.is_closed:
            self.stream.send(encode_channel_close(number))

    async def run(self) -> None:
        """Runs the link; returns when it is lost."""
        pinging = asyncio.create_task(ping(self.stream))
        try:
            if batch := await self.stream.receive():  # messages are given to `_receive`
                log.warning("the link to %s ended: %s", self.address, batch)
        finally:
            pinging.cancel()
            self.is_closed = True
            self.stream.abort()
            channels, self._channels = self._channels, {}
            for channel in channels.values():
                channel.lost()

    def _receive(self, message: Frame) -> None:
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
        except Exception as error:  # a failure of one link must not affect others
            log.exception("the link to %s is closed", self.address)
            self.stream.abort(str(error))


class _NoEvents:
    """Uses a channel for requests alone."""

    def receive_event(self, channel: Channel, event: RelayedEvent) -> None:
        pass

    def channel_lost(self, channel: Channel) -> None:
        pass


class Links:
    """The links from this server to others, by address."""

    def __init__(
        self, secret: bytes, tls: ssl.SSLContext | None, limits: WireLimits, spawn: Spawn
    ) -> None:
        self._secret = secret
        self._tls = tls
        self._limits = limits
        self._spawn = spawn
        self._links: dict[str, asyncio.Future[EdgeLink]] = {}
        self._nonces: set[str] = set()
        """The nonces of the links that are being opened."""
        self._warnings = RepeatedWarnings(log)
        self.failures: dict[str, str] = {}
        """The reasons why servers can't be reached, by address."""
        self.relays_failed = 0
        """The number of requests that failed because their owner could not be reached."""

    def is_opening(self, nonce: str) -> bool:
        """Whether this server has sent that nonce to open a link."""
        return nonce in self._nonces

    def forget_others(self, addresses: Collection[str]) -> None:
        """Forgets the failures of servers that are not there any more."""
        for address in self.failures.keys() - set(addresses):
            del self.failures[address]

    async def try_link_to(self, address: str) -> None:
        with suppress(LinkLost):  # `failures` has the reason
            await self.link_to(address)

    async def link_to(self, address: str) -> EdgeLink:
        """Returns the link to a server, and opens it if there is none; concurrent callers share one
        attempt. Raises `LinkLost` if the server can't be reached."""
        link = self._links.get(address)
        if link is None or (link.done() and (link.exception() or link.result().is_closed)):
            link = self._links[address] = asyncio.ensure_future(self._open(address))
        return await asyncio.shield(link)

    async def file_pieces(
        self, address: str, user: str, session_id: str, file_id: str
    ) -> AsyncIterator[bytes]:
        """Reads a file that another server has, as a client of it. Raises `LinkLost`, `Moved`, and
        `BadEntry` if the file is not there either."""
        link = await self.link_to(address)
        channel = link.open_channel(_NoEvents(), user=user, client="files", can_decide=False)
        try:
            offset = 0
            while True:
                wanted = messages.FileGet(file_id=file_id, session_id=session_id, offset=offset)
                reply = await channel.ask(wanted, lambda reply: None)
                if not isinstance(reply, messages.FilePiece):
                    raise BadEntry(f"there is no file {file_id!r}")
                if not reply.data:
                    return
                yield reply.data
                offset += len(reply.data)
        finally:
            channel.close()

    async def _open(self, address: str) -> EdgeLink:
        host, _, port = address.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        connection = ClientConnection(limits=self._limits)
        stream: FrameStream[ReceivedByClient] | None = None
        try:
            async with asyncio.timeout(_CONNECT_SECONDS_MAX):
                stream = await open_stream(
                    host, int(port), connection, limits=self._limits, ssl=self._tls
                )
                await self._introduce(stream, connection)
        except (OSError, ssl.SSLError, ProtocolError, LinkLost) as error:
            if stream is not None:
                stream.abort()
            reason = self.failures[address] = str(error) or "no reply"
            self._warnings.warn(address, f"the server at {address} can't be reached: {reason}")
            raise LinkLost(reason) from None
        if self.failures.pop(address, None) is not None:
            self._warnings.forget(address)
            log.info("the server at %s can be reached again", address)
        link_stream: FrameStream[Frame] = stream  # type: ignore[assignment]
        link = EdgeLink(address, link_stream, self._limits.message_bytes_max)
        self._spawn(link.run)
        return link

    async def _introduce(
        self, stream: FrameStream[ReceivedByClient], connection: ClientConnection
    ) -> None:
        """Authenticates both servers: each proves that it knows the secret."""
        nonce = secrets.token_hex(16)
        self._nonces.add(nonce)
        try:
            await self._prove(stream, connection, nonce)
        finally:
            self._nonces.discard(nonce)

    async def _prove(
        self, stream: FrameStream[ReceivedByClient], connection: ClientConnection, nonce: str
    ) -> None:
        hello = messages.Hello(client=f"nplt-server/{__version__}", peer=nonce)
        stream.send(connection.send_hello(hello))
        is_proved = False
        while batch := await stream.receive():
            for received in batch:
                match received:
                    case ErrorReceived(report=report) if not is_proved:
                        details = report.details or {}
                        if "proof" not in details:
                            raise LinkLost(report.message)
                        challenge = str(details.get("challenge"))
                        if not secrets.compare_digest(
                            str(details.get("proof")),
                            peer_proof(self._secret, "owner", nonce, challenge),
                        ):
                            raise LinkLost(f"it does not know the secret: {report.message}")
                        is_proved = True
                        mine = peer_proof(self._secret, "edge", nonce, challenge)
                        stream.send(connection.send_hello(replace(hello, proof=mine)))
                    case ErrorReceived(report=report):
                        raise LinkLost(report.message)
                    case ReplyReceived(reply=messages.Welcome()) if is_proved:
                        return
                    case ConnectionRefused(reason=reason):
                        raise LinkLost(reason)
                    case _:
                        pass
        raise LinkLost(connection.greeting or "it closed the connection")
