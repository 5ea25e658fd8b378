"""The accept loop: it outlives whatever its connections or the system do.

One connection's failure is logged and is that connection's alone. Running out
of file descriptors (or memory for sockets) backs off, 10 ms to 1 s, and goes
on accepting when there are some again.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable

import anyio
import anyio.abc
import anyio.lowlevel

log = logging.getLogger(__name__)

_BACKLOG = 1_024
_BACK_OFF_SECONDS = (0.01, 1.0)

Welcoming = Callable[[socket.socket], Awaitable[None]]


class Listener:
    def __init__(self, sockets: list[socket.socket], welcome: Welcoming) -> None:
        self._sockets = sockets
        self._welcome = welcome
        self._scope = anyio.CancelScope()

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._sockets[0].getsockname()[:2]
        return str(host), int(port)

    async def serve(self) -> None:
        """Until `stop`; connections it took in live on."""
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
            await self._welcome(accepted)
            await anyio.lowlevel.checkpoint()  # those who came first are served first


async def bind(host: str, port: int) -> list[socket.socket]:
    """Sockets on every address the name has; with port 0 they share the first one's."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    try:
        for family, _, _, _, address in dict.fromkeys(found):
            sock = socket.socket(family, socket.SOCK_STREAM)
            sockets.append(sock)
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            chosen = port or (sockets[0].getsockname()[1] if len(sockets) > 1 else 0)
            sock.bind((address[0], chosen, *address[2:]))
            sock.listen(_BACKLOG)
    except OSError:
        for sock in sockets:
            sock.close()
        raise
    return sockets


def server_tls(cert: str, key: str) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(cert, key)
    return context
