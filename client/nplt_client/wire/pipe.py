"""`nplt pipe`: carries frames between stdin and stdout and the server of this user.

It runs at the other end of `ssh://` connections. It finds that server, or starts it, and copies
bytes in both directions until one side closes.
"""

from __future__ import annotations

import os
import socket
from threading import Thread

from nplt_client.errors import CannotConnect
from nplt_client.settings import Address, default_address, find_server
from nplt_client.wire.blocking import with_server
from nplt_client.wire.wire_session import connect_error

_PIECE_BYTES = 64 * 1024
_CONNECT_SECONDS_MAX = 10.0


def carry_frames() -> None:
    with with_server(default_address(), _connected) as server:
        Thread(target=_send_input, args=(server,), daemon=True).start()
        while data := server.recv(_PIECE_BYTES):
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(1, rest) :]


def _send_input(server: socket.socket) -> None:
    try:
        while data := os.read(0, _PIECE_BYTES):
            server.sendall(data)
        server.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # the server closed the connection, which ends the other direction too


def _connected(address: Address) -> socket.socket:
    running = find_server()
    try:
        if running is not None and running.unix is not None:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            sock.connect(running.unix)
            return sock
        if address.tls:
            raise CannotConnect(
                f"the server of this user listens with TLS only ({address}): set listen.unix in "
                "its server.yaml, so that nplt pipe reaches it without"
            )
        sock = socket.create_connection((address.host, address.port), _CONNECT_SECONDS_MAX)
    except OSError as error:
        raise connect_error(address, error) from None
    sock.settimeout(None)
    return sock
