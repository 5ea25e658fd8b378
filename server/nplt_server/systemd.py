"""The interface to systemd: sockets that it passes, and states that the server reports.

systemd may pass listening sockets (socket activation, sd_listen_fds(3)), so that a restart
refuses no connection, and may want to know the server's state (sd_notify(3)): READY, STOPPING,
a line of status, and at regular times that the event loop still runs. Without systemd nothing
here does anything. `nplt server install` writes the units.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import MutableMapping
from typing import Final, NamedTuple

from nplt_server.errors import CannotServe
from nplt_server.settings import Settings, is_loopback

log = logging.getLogger(__name__)

_FIRST_DESCRIPTOR: Final = 3
_HTTP_NAME: Final = "http"


class InheritedSockets(NamedTuple):
    nplt: list[socket.socket]
    http: list[socket.socket]
    """The sockets of a unit with `FileDescriptorName=http`."""


def inherited_sockets(
    settings: Settings, environ: MutableMapping[str, str] = os.environ
) -> InheritedSockets:
    """The listening sockets that systemd passed to this process. They are removed from the
    environment, because children must not take them for theirs."""
    pid, count = environ.pop("LISTEN_PID", ""), environ.pop("LISTEN_FDS", "")
    names = environ.pop("LISTEN_FDNAMES", "").split(":")
    inherited = InheritedSockets([], [])
    if pid != str(os.getpid()) or not count.isdecimal():
        return inherited
    for number in range(int(count)):
        descriptor = _FIRST_DESCRIPTOR + number
        os.set_inheritable(descriptor, False)
        sock = socket.socket(fileno=descriptor)
        sock.setblocking(False)
        _check(sock, settings)
        is_http = number < len(names) and names[number] == _HTTP_NAME
        (inherited.http if is_http else inherited.nplt).append(sock)
    return inherited


def _check(sock: socket.socket, settings: Settings) -> None:
    listens = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    if sock.family not in (socket.AF_INET, socket.AF_INET6) or not listens:
        raise CannotServe(
            f"systemd passed descriptor {sock.fileno()}, which is no listening TCP socket: the "
            "socket unit needs ListenStream=HOST:PORT; for a Unix socket set listen.unix instead"
        )
    host = str(sock.getsockname()[0])
    if not (is_loopback(host) or settings.is_authorized or settings.insecure):
        raise CannotServe(
            f"the socket unit listens on {host}, which needs users with tokens and tls in the "
            "settings; or let it listen on 127.0.0.1"
        )


def notify(*lines: str) -> None:
    """Reports states such as READY=1 to the service manager, if there is one."""
    path = os.environ.get("NOTIFY_SOCKET")
    if not path:
        return
    address = f"\0{path[1:]}" if path.startswith("@") else path
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.connect(address)
            sock.sendall("\n".join(lines).encode())
    except OSError as error:
        log.warning("can't notify systemd: %s", error.strerror or error)


def keep_watchdog_quiet(loop: asyncio.AbstractEventLoop) -> None:
    """Reports that the event loop runs, twice as often as the unit's WatchdogSec demands."""
    microseconds = os.environ.get("WATCHDOG_USEC", "")
    if not microseconds.isdecimal() or os.environ.get("WATCHDOG_PID") not in (
        None,
        str(os.getpid()),
    ):
        return
    notify("WATCHDOG=1")
    loop.call_later(int(microseconds) / 2_000_000, keep_watchdog_quiet, loop)
