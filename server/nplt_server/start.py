"""Starts a server: settings, data directory, sockets; then everything else.

The server listens before it has loaded what conversations need, which takes longer than
all before it: clients connect meanwhile and wait in the socket's backlog. What can be
wrong with the settings is found before it listens; where they name code or programs of the
operator's, these are loaded first.

SIGTERM and SIGINT stop it: running turns get their time, and a second signal hurries. A
process that does not end all the same is ended by a thread of its own.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import os
import resource
import signal
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio

from nplt_server.errors import CannotServe, ConfigurationError
from nplt_server.histories import check_histories, open_histories, utc_now
from nplt_server.runtime_file import RuntimeFile, state_dir
from nplt_server.settings import ExtensionSettings, PythonSettings, Settings

if TYPE_CHECKING:
    from nplt_server.app import Server

log = logging.getLogger(__name__)

_BACKLOG = 1_024
_LAST_RESORT_SECONDS = 6.5
"""After the time turns are given to end: what still holds the process up (a function
that blocks, a child that won't go) holds nothing that was promised."""

Announce = Callable[[str, int], None]
"""Called with host and port when clients can connect."""


def check_settings(settings: Settings) -> None:
    """Raises `ConfigurationError` for everything a start would fail over."""
    _load_what_they_name(settings)
    check_histories(settings)


def _load_what_they_name(settings: Settings) -> None:
    from nplt_server.app import build_shared_parts
    from nplt_server.providers.build import build_router

    build_shared_parts(settings, build_router(settings), utc_now)


def _names_code(settings: Settings) -> bool:
    """Whether mistakes may turn up only when the parts are built."""
    return bool(
        settings.extensions != ExtensionSettings.model_construct()
        or settings.mcp_servers
        or settings.tools
        or any(isinstance(provider, PythonSettings) for provider in settings.providers)
    )


_SWITCH_SECONDS: Final = 0.001
"""How long a thread that computes may keep the interpreter while the event loop wants it."""


async def serve(
    settings: Settings,
    announce: Announce,
    ready: Callable[[Server], None] = lambda server: None,
    *,
    any_port: bool = False,
) -> None:
    """Runs a server from start to stop. `ready` is called once the server can be stopped."""
    _raise_descriptor_limit()
    sys.setswitchinterval(_SWITCH_SECONDS)
    if not settings.is_private:
        log.warning(
            "listening on %s without tokens and TLS: whoever reaches the port can read and "
            "write every conversation, and spend your keys",
            settings.listen.host,
        )
    tls = _load_tls(settings)
    if _names_code(settings):
        _load_what_they_name(settings)
    histories = await open_histories(settings, utc_now)
    try:
        sockets = await bind(settings.listen.host, settings.listen.port, any_port=any_port)
        left_over = ExitStack()
        try:
            if (path := settings.listen.unix) is not None:
                sockets.append(_bind_unix(path, settings.local_users == "owner"))
                left_over.callback(path.unlink, missing_ok=True)
            host, port = sockets[0].getsockname()[:2]
            announce(str(host), int(port))
            from nplt_server import app

            await app.serve(settings, histories, sockets, tls, ready)
        finally:
            for sock in sockets:
                sock.close()
            left_over.close()
    finally:
        with anyio.CancelScope(shield=True):
            await histories.close()


async def run_until_signalled(
    settings: Settings, announce: Announce, *, any_port: bool = False
) -> None:
    """SIGTERM or SIGINT drains; a second one hurries."""
    runtime_file = RuntimeFile(state_dir())
    loop = asyncio.get_running_loop()
    running: list[Server] = []
    signals: list[int] = []

    def obey(number: int, _: object) -> None:
        # Here and not on the loop, which may be what does not go on.
        if not signals:
            _end_for_certain(settings.limits.drain_seconds_max + _LAST_RESORT_SECONDS)
        signals.append(number)
        loop.call_soon_threadsafe(stop)

    def stop() -> None:
        for server in running:
            server.stop()

    def ready(server: Server) -> None:
        gc.freeze()  # the modules, which are all loaded by now
        gc.enable()
        running.append(server)
        if signals:
            server.stop()

    def listening(host: str, port: int) -> None:
        runtime_file.write(settings, host, port)
        announce(host, port)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, obey)
    try:
        await serve(settings, listening, ready, any_port=any_port)
    finally:
        runtime_file.remove()


def _end_for_certain(seconds: float) -> None:
    def wait_and_end() -> None:
        time.sleep(seconds)
        log.critical("something would not end; what was acknowledged is on disk: leaving it")
        os._exit(1)

    threading.Thread(target=wait_and_end, name="last resort", daemon=True).start()


async def bind(host: str, port: int, *, any_port: bool = False) -> list[socket.socket]:
    """Sockets on every address the name has; with port 0 they share the first one's.
    With `any_port` a port that is taken is replaced by a free one."""
    loop = asyncio.get_running_loop()
    sockets: list[socket.socket] = []
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
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
    except OSError as error:
        for sock in sockets:
            sock.close()
        if any_port and port and error.errno == errno.EADDRINUSE:
            log.warning("port %d is taken; listening on another one", port)
            return await bind(host, 0)
        hint = ""
        if error.errno == errno.EADDRINUSE:
            hint = "; stop what listens there, or choose another port with --port"
        raise CannotServe(f"can't listen on {host}:{port}: {error.strerror}{hint}") from None
    return sockets


def _bind_unix(path: Path, is_private: bool) -> socket.socket:
    """The data directory has one server, so a socket that nobody answers at is left over."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.is_socket() and not _answers(path):
            path.unlink()
        before = os.umask(0o177 if is_private else 0o111)
        try:
            sock.bind(str(path))
        finally:
            os.umask(before)
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        raise CannotServe(f"can't listen on {path}: {error.strerror or error}") from None
    return sock


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(str(path)) == 0


def _load_tls(settings: Settings) -> ssl.SSLContext | None:
    tls = settings.listen.tls
    if tls is None:
        return None
    try:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(str(tls.cert), str(tls.key))
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError([f"listen.tls: can't load the certificate: {error}"]) from None
    return context


def _raise_descriptor_limit() -> None:
    """A thousand connections need more than the usual soft limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
