"""From an accepted socket to a running session, or to a polite no."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from dataclasses import dataclass, field

from nplt_protocol.connection import Received
from nplt_protocol.errors import ProtocolError
from nplt_protocol.limits import WireLimits
from nplt_protocol.requests import Request
from nplt_protocol.server_connection import ServerConnection
from nplt_protocol.stream import FrameStream
from nplt_server.answers import answer_request
from nplt_server.connections.premises import Premises
from nplt_server.connections.session import Session
from nplt_server.connections.uploads import UploadLimits, Uploads
from nplt_server.conversations.activity import Spawn
from nplt_server.logs import transcript_for
from nplt_server.presenters.base import Answer

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reception:
    premises: Premises
    wire_limits: WireLimits
    upload_limits: UploadLimits
    tls: ssl.SSLContext | None
    handshake_seconds_max: float
    spawn: Spawn
    arriving: set[socket.socket] = field(default_factory=set)
    """Accepted, and still shaking hands."""

    async def welcome(self, accepted: socket.socket) -> None:
        """Quick: the accept loop waits for it. The rest happens beside it."""
        crowd = len(self.premises.front_desk) + len(self.arriving)
        if self.tls is not None and crowd >= self.premises.front_desk.limits.connections_max:
            # No word can be said to it before its handshake, which it may never finish.
            accepted.close()
            return
        self.arriving.add(accepted)
        self.spawn(lambda: self._receive(accepted))

    async def _receive(self, accepted: socket.socket) -> None:
        desk = self.premises.front_desk
        try:
            stream, connection = await self._open(accepted)
        except (OSError, ssl.SSLError) as error:
            log.info("a connection failed before it began: %s", error)
            accepted.close()
            return
        finally:
            self.arriving.discard(accepted)
        reason = desk.reason_to_refuse(stream.peer[0] if stream.peer else "")
        if reason is not None:
            stream.send(connection.send_text(reason))
            await stream.close()
            return
        session = Session(
            stream,
            connection,
            registry=self.premises.registry,
            front_desk=desk,
            answering=self._answer,
            uploads=Uploads(
                self.premises.household.files, self.upload_limits, self.premises.registry
            ),
        )
        desk.sign_in(session)
        try:
            await session.run()
        except (ProtocolError, OSError) as error:
            log.warning("connection from %s ended: %s", stream.peer, error)
        except Exception:
            # The edge: whatever one connection does, the others live on.
            log.exception("connection from %s failed", stream.peer)
        finally:
            desk.sign_out(session)
            stream.abort()

    async def _open(
        self, accepted: socket.socket
    ) -> tuple[FrameStream[Received], ServerConnection]:
        accepted.setblocking(False)
        connection = ServerConnection(self.wire_limits)
        peer = _name_of(accepted)
        stream: FrameStream[Received] = FrameStream(
            connection, limits=self.wire_limits, log=transcript_for(peer)
        )
        loop = asyncio.get_running_loop()
        await loop.connect_accepted_socket(
            lambda: stream,
            accepted,
            ssl=self.tls,
            ssl_handshake_timeout=self.handshake_seconds_max if self.tls else None,
        )
        return stream, connection

    async def _answer(self, session: Session, request: Request, answer: Answer) -> None:
        await answer_request(self.premises, session, request, answer)


def _name_of(accepted: socket.socket) -> str:
    try:
        name = accepted.getpeername()
    except OSError:
        return "?"
    return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else str(name)
