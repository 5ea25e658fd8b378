"""An HTTP server that never stops sending, in the way that the path of the request names."""

from __future__ import annotations

import gzip
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import repeat

MIB = 1024 * 1024
SENT_MAX = 192 * MIB
"""Endless enough: whoever reads all of it has no limit."""
_PIECE = b"x" * 65_536
_BOMB = gzip.compress(bytes(SENT_MAX), compresslevel=1)
_JSON = b"Content-Type: application/json\r\n"
_CHUNKED = b"Transfer-Encoding: chunked\r\n"


def _head(status: int, *fields: bytes) -> bytes:
    return b"HTTP/1.1 %d X\r\n%s\r\n" % (status, b"".join(fields))


def _response(way: str) -> tuple[bytes, Iterator[bytes]]:
    status = 500 if "error" in way else 200
    gzipped = b"Content-Encoding: gzip\r\n"
    match way.partition("-")[2]:
        case "body":
            return _head(status, _JSON) + b'{"data":["', repeat(_PIECE)
        case "gzip":
            return _head(status, _JSON, gzipped), iter((_BOMB,))
        case "gzips":
            twice = b"Content-Encoding: gzip, gzip\r\n"
            return _head(status, _JSON, twice), iter((gzip.compress(_BOMB),))
        case "headers":
            return b"HTTP/1.1 200 OK\r\n", repeat(b"X-Y: " + _PIECE[:1000] + b"\r\n")
        case "interim":
            return b"", repeat(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)
        case "trailers":
            whole = b"2\r\n{}\r\n0\r\n"
            return _head(status, _JSON, _CHUNKED) + whole, repeat(b"X-Y: z\r\n" * 1000)
        case "extension":
            return _head(status, _JSON, _CHUNKED) + b"1;", repeat(_PIECE)
        case "extensions":
            return _head(status, _JSON, _CHUNKED), repeat(b"1;" + _PIECE[:60_000] + b"\r\n \r\n")
        case "events":
            kind = b"Content-Type: text/event-stream\r\n"
            return _head(status, kind) + b"data: ", repeat(_PIECE)
        case _:
            raise ValueError(way)


class EndlessServer:
    """`sent`: how many bytes the other end, or its socket, took of each way's response."""

    def __init__(self, listening: socket.socket, way: str | None) -> None:
        """`way`: that of all responses, whatever their requests name."""
        self._way = way
        self._listening = listening
        self.port: int = listening.getsockname()[1]
        self.sent: Counter[str] = Counter()

    def serve(self) -> None:
        with suppress(OSError):
            while True:
                accepted, _ = self._listening.accept()
                threading.Thread(target=self._respond, args=(accepted,), daemon=True).start()

    def _respond(self, accepted: socket.socket) -> None:
        with accepted, suppress(OSError):
            request = b""
            while b"\r\n\r\n" not in request:
                request += accepted.recv(65_536)
            named = request.split()[1].decode().strip("/").partition("/")[0]
            way = self._way or named
            start, pieces = _response(way)
            accepted.sendall(start)
            for piece in pieces:
                accepted.sendall(piece)
                self.sent[way] += len(piece)
                if self.sent[way] > SENT_MAX:
                    break
            accepted.shutdown(socket.SHUT_WR)
            while accepted.recv(65_536):
                pass


@contextmanager
def endless_server(way: str | None = None) -> Iterator[EndlessServer]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = EndlessServer(listening, way)
        threading.Thread(target=server.serve, daemon=True).start()
        yield server
        listening.shutdown(socket.SHUT_RDWR)
