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

`edge` is the edge's side; here are the links and the owner's side.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import ssl
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Final

import anyio
import anyio.lowlevel
from msgspec.structs import replace

from nplt_protocol import (
    FRAME_PAYLOAD_BYTES_MAX,
    PROTOCOL_VERSION,
    ErrorCode,
    JsonObject,
    ProtocolError,
    Received,
    RequestError,
    ServerConnection,
    WireLimits,
)
from nplt_protocol.client_connection import ClientConnection
from nplt_protocol.connection import ConnectionRefused, ErrorReceived, Heard, ReplyReceived
from nplt_protocol.frames import Frame
from nplt_protocol.link import (
    CHANNELS_PER_MESSAGE_MAX,
    ChannelClose,
    ChannelData,
    ChannelOpen,
    LinkConnection,
    decode_link_message,
    encode_channel_close,
    encode_channel_data,
    peer_proof,
)
from nplt_protocol.messages import Hello, SessionEvent, Welcome
from nplt_protocol.stream import FrameStream, open_stream
from nplt_server import __version__
from nplt_server.connections.session import Session
from nplt_server.conversations.broadcast import BroadcastEvent
from nplt_server.dialects import Answer
from nplt_server.errors import ConfigurationError, error_to_tell
from nplt_server.relay.edge import MOVED, EdgeLink, LinkLost, Relay, ping
from nplt_server.settings import ClusterSettings
from nplt_server.tasks import Spawn
from nplt_storage.errors import ConversationHeld, WrittenElsewhere

__all__ = ["Peers", "Relay"]

log = logging.getLogger(__name__)

_CONNECT_SECONDS_MAX: Final = 3.0
_SECRET_BYTES_MIN: Final = 16
_ADDED_BYTES_MAX: Final = 4_096
"""What the edge adds to a request: ids."""
_LINK_UNSENT_BYTES_MAX: Final = 4 * 1024 * 1024
_BATCH_SECONDS_MAX: Final = 0.005


class Peers:
    """The other servers of the cluster: links to them, and theirs to this one."""

    def __init__(
        self, cluster: ClusterSettings, limits: WireLimits, spawn: Spawn, *, is_tls: bool
    ) -> None:
        assert cluster.secret_file is not None
        try:
            self._secret = cluster.secret_file.read_bytes().strip()
            self._tls = ssl.create_default_context(cafile=cluster.ca_file) if is_tls else None
        except (OSError, ssl.SSLError) as error:
            raise ConfigurationError([f"cluster: can't read a file of it: {error}"]) from None
        if len(self._secret) < _SECRET_BYTES_MIN:
            raise ConfigurationError(
                [f"cluster.secret_file: the secret needs at least {_SECRET_BYTES_MIN} bytes"]
            )
        self._limits = replace(
            limits,
            frame_bytes_max=FRAME_PAYLOAD_BYTES_MAX,
            message_bytes_max=limits.message_bytes_max + _ADDED_BYTES_MAX,
            json_keys_max=limits.json_keys_max + 8,
        )
        self._spawn = spawn
        self._links: dict[str, asyncio.Future[EdgeLink]] = {}
        self.sessions: set[ChannelSession] = set()
        """Those of clients of other servers."""

    def relay_of(self, session: Session) -> Relay:
        if session.relay is None:
            session.relay = Relay(self, session)
        return session.relay

    async def link_to(self, address: str) -> EdgeLink:
        """Opened if there is none; all who need it wait for one attempt. `LinkLost`: the
        server can't be reached."""
        link = self._links.get(address)
        if link is None or (link.done() and (link.exception() or link.result().is_closed)):
            link = self._links[address] = asyncio.ensure_future(self._open(address))
        return await asyncio.shield(link)

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
        link = EdgeLink(address, link_stream, self._limits.message_bytes_max)
        self._spawn(link.run)
        return link

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
        challenge, session.challenge = session.challenge, None
        if challenge is None or hello.proof is None:
            challenge = session.challenge = secrets.token_hex(16)
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
        await OwnerLink(session, stream, self._limits).run()


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


@dataclass(slots=True, eq=False, repr=False, kw_only=True)
class ChannelSession(Session):
    """A client of another server, which vouches for it."""

    asks_owners = False  # the edge does
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
            details: JsonObject = {"head_seq": here.head_seq}
            told = SessionEvent(session_id=here.session_id, event="lagged", details=details)
            self.deliver(BroadcastEvent(told, self.server.services.limits.message_bytes_max))

    def refuse(self, answer: Answer, error: Exception) -> None:
        told = error_to_tell(error, log, "a relayed request failed")
        is_moved = isinstance(error, ConversationHeld | WrittenElsewhere)
        if is_moved or told.code == ErrorCode.SHUTTING_DOWN:
            told = RequestError(told.code, told.message, details={MOVED: True})
        answer.refuse(told)


@dataclass(eq=False, repr=False)
class OwnerLink:
    """A link from another server to this one."""

    _accepted: Session
    _stream: FrameStream[Frame]
    _limits: WireLimits
    _channels: dict[int, ChannelTransport] = field(default_factory=dict)
    _due: dict[bytes, list[int]] = field(default_factory=dict)
    """What is sent at the end of this tick, and over which channels."""
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
                    await self._take(message)
                    if monotonic() - began > _BATCH_SECONDS_MAX:
                        await anyio.lowlevel.checkpoint()  # others want to be served too
                        began = monotonic()
        except ProtocolError as error:
            log.warning("the link from %s ended: %s", self._accepted.address, error)
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
            self._accepted.server,
            self._accepted.handlers,
            user=client.user,
            client_name=client.client,
            is_authenticated=True,
            may_decide=client.can_decide,
        )
        self._accepted.server.services.spawn(partial(self._serve, session))

    async def _serve(self, session: ChannelSession) -> None:
        peers = self._accepted.server.peers
        assert peers is not None
        peers.sessions.add(session)
        try:
            await session.run()
        except Exception:
            # The edge of a connection: whatever it does, the others live on.
            log.exception("a channel of %s failed", self._accepted.address)
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
            self._accepted.server.services.spawn(self._unblock)

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
