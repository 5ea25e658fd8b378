"""Relays between servers: a client connects to any of them, a conversation has one owner.

A server that does not own a conversation (the edge) forwards requests to the owner, over one link
for each pair of servers (`nplt_protocol.link`), opened on first use. Each client of the edge has a
channel of its own on the link. At the owner a channel is an ordinary session, so that attaching,
approvals, presence, cancelling, uploads and limits are the same code for all clients.

The edge stores nothing of the record. It forwards a request about another server's conversation,
and sends the reply in the client's own dialect. If the owner or the link is lost, the edge asks the
store again: it becomes the owner itself or learns the next one. An owner that can't be reached but
still holds the conversation is asked, through the store, to hand it over. A request without a reply
is sent again if repeating it is harmless; prompts have a `message_id` for that, which the edge adds
if the client gave none. Clients that can attach again are sent `lagged`; for the others (plain
ones, and those that have closed their side) the edge resumes as a client would
(`nplt_protocol.resume`).

A client that reads too slowly lags at the edge and affects no other. If the link itself is too
slow, data waits in the channels, each with the same limit as a client.

`link` has the links to other servers and the channels on them, `edge` the side of a client's own
server, `owner` the other side. This module implements the interface that `connections` uses.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import ssl
from collections.abc import AsyncIterator, Collection
from typing import Final

import anyio
from msgspec.structs import replace

from nplt_protocol import (
    FRAME_PAYLOAD_BYTES_MAX,
    PROTOCOL_VERSION,
    ErrorCode,
    RequestError,
    WireLimits,
)
from nplt_protocol.frames import Frame
from nplt_protocol.link import LinkConnection, peer_proof
from nplt_protocol.messages import Hello, Welcome
from nplt_protocol.stream import FrameStream
from nplt_server import __version__
from nplt_server.connections.session import Session
from nplt_server.dialects import PendingReply
from nplt_server.errors import ConfigurationError
from nplt_server.relay.edge import EdgeRelay
from nplt_server.relay.link import LinkLost, Links, Moved
from nplt_server.relay.owner import ChannelSession, OwnerLink
from nplt_server.settings import ClusterSettings
from nplt_server.tasks import Spawn
from nplt_storage.errors import StorageUnavailable

__all__ = ["ClusterPeers", "fingerprint_of", "read_secret"]

_SECRET_BYTES_MIN: Final = 16
_ADDED_BYTES_MAX: Final = 4_096
"""The size of the ids that the edge adds to a request."""


def read_secret(cluster: ClusterSettings) -> bytes:
    assert cluster.secret_file is not None
    try:
        secret = cluster.secret_file.read_bytes().strip()
    except OSError as error:
        raise ConfigurationError([f"cluster.secret_file: can't be read: {error}"]) from None
    if len(secret) < _SECRET_BYTES_MIN:
        raise ConfigurationError(
            [f"cluster.secret_file: the secret needs at least {_SECRET_BYTES_MIN} bytes"]
        )
    return secret


def fingerprint_of(secret: bytes) -> str:
    return hmac.new(secret, b"nplt fingerprint", hashlib.sha256).hexdigest()[:16]


class ClusterPeers:
    """The other servers of the cluster, and the links in both directions."""

    can_take_over = True

    def __init__(
        self, cluster: ClusterSettings, limits: WireLimits, spawn: Spawn, *, is_tls: bool
    ) -> None:
        self._secret = read_secret(cluster)
        try:
            tls = ssl.create_default_context(cafile=cluster.ca_file) if is_tls else None
        except (OSError, ssl.SSLError) as error:
            raise ConfigurationError([f"cluster.ca_file: can't be read: {error}"]) from None
        self._limits = replace(
            limits,
            frame_bytes_max=FRAME_PAYLOAD_BYTES_MAX,
            message_bytes_max=limits.message_bytes_max + _ADDED_BYTES_MAX,
            json_keys_max=limits.json_keys_max + 8,
        )
        self._links = Links(self._secret, tls, self._limits, spawn)
        self.sessions: set[ChannelSession] = set()

    @property
    def secret_fingerprint(self) -> str:
        return fingerprint_of(self._secret)

    @property
    def problems(self) -> tuple[str, ...]:
        return tuple(
            f"the server at {address} can't be reached: {reason}"
            for address, reason in self._links.failures.items()
        )

    @property
    def relays_failed(self) -> int:
        return self._links.relays_failed

    async def meet(self, addresses: Collection[str]) -> None:
        """Tries the links to the servers with these addresses, and forgets other failures."""
        self._links.forget_others(addresses)
        async with anyio.create_task_group() as tasks:
            for address in addresses:
                tasks.start_soon(self._links.try_link_to, address)

    async def file_pieces(
        self, address: str, user: str, session_id: str, file_id: str
    ) -> AsyncIterator[bytes]:
        try:
            async for piece in self._links.file_pieces(address, user, session_id, file_id):
                yield piece
        except (LinkLost, Moved) as error:
            reason = f"the server at {address}, which has it, can't be reached"
            raise StorageUnavailable(reason) from error

    def relay_for(self, session: Session) -> EdgeRelay:
        return EdgeRelay(self._links, session)

    async def accept(self, session: Session, hello: Hello, pending: PendingReply) -> None:
        assert hello.peer is not None
        if self._links.is_opening(hello.peer):
            why = "that address leads to this server itself; another cluster.advertise is needed"
            pending.refuse(RequestError(ErrorCode.CONFLICT, why))
            return
        challenge, session.challenge = session.challenge, None
        if challenge is None or hello.proof is None:
            challenge = session.challenge = secrets.token_hex(16)
            proof = peer_proof(self._secret, "owner", hello.peer, challenge)
            pending.refuse(
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
            pending.refuse(
                RequestError(ErrorCode.UNAUTHORIZED, "that is not this cluster's secret")
            )
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
        session.stream.send(session.connection.send_welcome(pending.seq, welcome))
        stream: FrameStream[Frame] = session.stream  # type: ignore[assignment]
        stream.connection = LinkConnection()
        await OwnerLink(session, stream, self._limits, self.sessions).run()
