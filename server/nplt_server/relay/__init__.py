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
from typing import Final

import anyio
from msgspec.structs import replace

from nplt_protocol import (
    FRAME_PAYLOAD_BYTES_MAX,
    PROTOCOL_VERSION,
    ErrorCode,
    ProtocolError,
    RequestError,
    WireLimits,
)
from nplt_protocol.client_connection import ClientConnection
from nplt_protocol.connection import ConnectionRefused, ErrorReceived, Heard, ReplyReceived
from nplt_protocol.frames import Frame
from nplt_protocol.link import LinkConnection, peer_proof
from nplt_protocol.messages import Hello, Welcome
from nplt_protocol.stream import FrameStream, open_stream
from nplt_server import __version__
from nplt_server.connections.session import Session
from nplt_server.conversations.services import Spawn
from nplt_server.dialects import Answer
from nplt_server.relay.edge import EdgeLink, LinkLost, Relay, RelayedEvent
from nplt_server.relay.owner import ChannelSession, OwnerLink

__all__ = ["Peers", "Relay", "RelayedEvent"]

log = logging.getLogger(__name__)

_CONNECT_SECONDS_MAX: Final = 3.0
_ADDED_BYTES_MAX: Final = 4_096
"""What the edge adds to a request: ids."""


class Peers:
    """The other servers of the cluster: links to them, and theirs to this one."""

    def __init__(
        self, *, secret: bytes, tls: ssl.SSLContext | None, limits: WireLimits, spawn: Spawn
    ) -> None:
        self._secret = secret
        self._tls = tls
        self._limits = replace(
            limits,
            frame_bytes_max=FRAME_PAYLOAD_BYTES_MAX,
            message_bytes_max=limits.message_bytes_max + _ADDED_BYTES_MAX,
            json_keys_max=limits.json_keys_max + 8,
        )
        self._spawn = spawn
        self._links: dict[str, EdgeLink] = {}
        self._opening: dict[str, asyncio.Future[EdgeLink]] = {}
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
