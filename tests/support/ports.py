"""Ports for servers that have to be told theirs before they start."""

from __future__ import annotations

import os
import random
import socket
from contextlib import suppress

_ALL = range(12_000, 22_000)
_WORKER = os.environ.get("PYTEST_XDIST_WORKER")  # "gw0", "gw1" …
_MINE = _ALL if _WORKER is None else _ALL[int(_WORKER[2:]) % 10 :: 10]
_ports = iter(random.sample(_MINE, len(_MINE)))


def free_port() -> int:
    """One that is free together with that of a Redis cluster's bus, 10000 above, and below
    those that the system gives to clients. No other test gets the same one, also if nobody
    listens there yet: each worker has ports of its own, and gives each away once."""
    for port in _ports:
        with socket.socket() as one, socket.socket() as other, suppress(OSError):
            one.bind(("127.0.0.1", port))
            other.bind(("127.0.0.1", port + 10_000))
            return port
    raise AssertionError("no port is free")
