"""Stands between a client and a Unix socket, and cuts the line at a chosen moment.

`lose_reply_to(word)`: the next command that holds the word is handed on; when its
answer comes back, the client's connection is closed instead.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from pathlib import Path


class CuttingProxy:
    def __init__(self, path: Path, *, target: Path) -> None:
        self.path = path
        self._target = target
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._wanted: bytes | None = None
        self._open: list[socket.socket] = []
        self.replies_lost = 0
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"unix://{self.path}"

    def lose_reply_to(self, word: bytes) -> None:
        self._wanted = word

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for end in self._open:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._open.append(client)
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as server, suppress(OSError):
            server.connect(str(self._target))
            while command := client.recv(1 << 20):
                server.sendall(command)
                reply = server.recv(1 << 20)
                if self._wanted is not None and self._wanted in command:
                    self._wanted = None
                    self.replies_lost += 1
                    return
                client.sendall(reply)
