"""A hundred clients that listen to the same words, and nothing else.

One thread reads all of them as fast as it can, so that nobody lags. What they
hear is judged by a function given at the start: bytes are only counted for a
peer whose output is known, frames are walked for the server.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable
from typing import Protocol

from benchmarks.wire import SECONDS_MAX


class Ear(Protocol):
    """What one client has heard so far."""

    def receive(self, data: bytes) -> bool:
        """True once it has heard everything."""
        ...


def listen(sockets: list[socket.socket], new_ear: Callable[[], Ear]) -> list[Ear]:
    """Until every one of them has heard everything."""
    waiting = select.epoll()
    by_number = {sock.fileno(): (sock, new_ear()) for sock in sockets}
    for number in by_number:
        waiting.register(number, select.EPOLLIN)
    busy = len(sockets)
    while busy:
        ready = waiting.poll(SECONDS_MAX)
        if not ready:
            raise TimeoutError("the words stopped coming")
        for number, _ in ready:
            sock, ear = by_number[number]
            data = sock.recv(1 << 18)
            if not data:
                raise ConnectionError("the server closed a connection")
            if ear.receive(data):
                waiting.unregister(number)
                busy -= 1
    waiting.close()
    return [ear for _, ear in by_number.values()]
