"""Accepts connections and runs a session for each.

The accept loop survives failures of single connections and of the system: when file
descriptors run out it backs off, 10 ms to 1 s, and goes on. Each accepted socket is
admitted or refused with a reason, gets its first line (the banner), and its session.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Sequence
from functools import partial

import anyio
import anyio.abc
import anyio.lowlevel

from nplt_protocol import ProtocolError, Received, ServerConnection, WireLimits
from nplt_protocol.stream import FrameStream
from nplt_server import __version__
from nplt_server.connections.admission import Arrival
from nplt_server.connections.session import ServerState, Session
from nplt_server.logs import transcript_for
from nplt_server.requests import HANDLERS
from nplt_server.settings import AnyProviderSettings, LocalSettings, OfflineSettings

log = logging.getLogger(__name__)

_BACK_OFF_SECONDS = (0.01, 1.0)


class Listener:
    """Turns each accepted socket into a running session, or refuses it with a reason."""

    def __init__(
        self,
        sockets: list[socket.socket],
        server: ServerState,
        wire_limits: WireLimits,
        tls: ssl.SSLContext | None,
    ) -> None:
        self._sockets = sockets
        self._server = server
        self._wire_limits = wire_limits
        self._tls = tls
        self._scope = anyio.CancelScope()

    async def serve(self) -> None:
        """Accepts connections until `stop`. Accepted connections go on after it."""
        try:
            with self._scope:
                async with anyio.create_task_group() as loops:
                    for sock in self._sockets:
                        loops.start_soon(self._accept_from, sock)
        finally:
            for sock in self._sockets:
                sock.close()

    def stop(self) -> None:
        self._scope.cancel()

    async def _accept_from(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        shortest, longest = _BACK_OFF_SECONDS
        pause = shortest
        while True:
            try:
                accepted, _ = await loop.sock_accept(listening)
            except OSError as error:
                if error.errno == errno.ECONNABORTED:
                    continue
                log.warning("can't accept: %s; trying again in %g s", error.strerror, pause)
                await anyio.sleep(pause)
                pause = min(pause * 2, longest)
                continue
            pause = shortest
            self._admit(accepted)
            await anyio.lowlevel.checkpoint()  # those who came first are served first

    def _admit(self, accepted: socket.socket) -> None:
        """Checks the limits and starts the session in a task of its own."""
        admission = self._server.admission
        arrival = Arrival(_peer_of(accepted)[0])
        reason = admission.reason_to_refuse(arrival.address)
        if reason is not None and self._tls is not None:
            # Nothing can be sent before the TLS handshake, which the peer may never finish.
            admission.log_refusal(arrival.address, reason)
            accepted.close()
            return
        # Looked up at once: later its program may have closed it.
        reason = reason or admission.local_users.reason_to_refuse(accepted)
        number = admission.arrive(arrival)
        self._server.services.spawn(partial(self._receive, accepted, arrival, number, reason))

    async def _receive(
        self, accepted: socket.socket, arrival: Arrival, number: int, reason: str | None
    ) -> None:
        admission, address = self._server.admission, arrival.address
        try:
            opened = None
            with arrival.scope:
                opened = await self._open(accepted)
            del arrival  # its scope, which an idle connection would keep
            if opened is None:  # others needed the place
                accepted.close()
                return
            stream, connection = opened
            if reason is not None:
                admission.log_refusal(address, reason)
                stream.send(connection.send_text(reason))
                await stream.close()
                return
            session = Session(stream, connection, self._server, HANDLERS)
            if not admission.sign_in(number, session):
                stream.abort()
                return
            try:
                await session.run()
            except (ProtocolError, OSError) as error:
                log.warning("connection from %s ended: %s", stream.peer, error)
            except Exception:
                # The edge: whatever one connection does, the others live on.
                log.exception("connection from %s failed", stream.peer)
            finally:
                stream.abort()
        except (OSError, ssl.SSLError) as error:
            admission.log_refusal(address, f"the connection failed at its start: {error}")
            accepted.close()
        finally:
            admission.sign_out(number)

    async def _open(
        self, accepted: socket.socket
    ) -> tuple[FrameStream[Received], ServerConnection]:
        accepted.setblocking(False)
        connection = ServerConnection(self._wire_limits)
        connection.fragment_budget = self._server.admission.unfinished
        stream: FrameStream[Received] = FrameStream(
            connection, limits=self._wire_limits, log=transcript_for(_peer_of(accepted)[1])
        )
        loop = asyncio.get_running_loop()
        tls = None if accepted.family == socket.AF_UNIX else self._tls
        await loop.connect_accepted_socket(
            lambda: stream,
            accepted,
            ssl=tls,
            ssl_handshake_timeout=self._server.services.limits.hello_seconds_max if tls else None,
        )
        return stream, connection


def _peer_of(accepted: socket.socket) -> tuple[str, str]:
    """Its address, empty for a Unix socket and for a peer that is gone already; and how the
    log calls it."""
    try:
        name = accepted.getpeername()
    except OSError:
        return "", "?"
    return (str(name[0]), f"{name[0]}:{name[1]}") if isinstance(name, tuple) else ("", str(name))


_HOW_TO_GET_MORE = (
    "set OPENAI_API_KEY or ANTHROPIC_API_KEY where the server starts, "
    "or list providers in its settings"
)


def banner(default_model: str, providers: Sequence[AnyProviderSettings]) -> str:
    """The greeting: the version, the default model and, if no vendor is configured, how to add
    one."""
    who = f"nplt {__version__}: {default_model} answers"
    if not all(isinstance(each, OfflineSettings | LocalSettings) for each in providers):
        return f"{who}."
    what = "it only echoes what you say"
    local = {each.id for each in providers if isinstance(each, LocalSettings)}
    if default_model.partition("/")[0] in local:
        what = "a very small model on this machine"
    return f"{who} ({what}; for others, {_HOW_TO_GET_MORE})."
