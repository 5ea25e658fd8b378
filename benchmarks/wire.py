"""The least of the protocol that a load generator must speak.

Written from protocol/SPEC.md with `struct` and sockets, sharing nothing with
the server: what the generator spends must not change when the server's own
packages do. Blocking; for set-up and for single requests.
"""

from __future__ import annotations

import json
import select
import socket
import struct
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Any, NamedTuple

HEADER = struct.Struct(">BHH")
MORE = 0x80
PAYLOAD_BYTES_MAX = 65_535
HELLO, ERROR, PING, PONG, PROMPT, ATTACH = 0x02, 0x03, 0x04, 0x05, 0x07, 0x08
FILE_DATA, FILE_METADATA, HISTORY_REQUEST, SESSION_LIST, STATUS = 0x0D, 0x0E, 0x10, 0x14, 0x1E
SEARCH, CONTEXT_REQUEST, SESSION_NEW, WATCH = 0x1B, 0x1C, 0x16, 0x38
COMPACT, USAGE, IMPORT, ROLLBACK, REDACT = 0x30, 0x32, 0x34, 0x35, 0x36
TEXT_DELTA, TURN_FINISHED, SESSION_EVENT = 0x21, 0x25, 0x26
SECONDS_MAX = 60.0


class Frame(NamedTuple):
    type: int
    seq: int
    payload: bytes


class Refused(Exception):
    """The server answered with an error, or not at all."""


def encode(type_: int, seq: int, payload: bytes | str | dict[str, Any] = b"") -> bytes:
    if isinstance(payload, dict):
        payload = json.dumps(payload)
    if isinstance(payload, str):
        payload = payload.encode()
    frames = b""
    while len(payload) > PAYLOAD_BYTES_MAX:
        frames += HEADER.pack(type_ | MORE, seq, PAYLOAD_BYTES_MAX) + payload[:PAYLOAD_BYTES_MAX]
        payload = payload[PAYLOAD_BYTES_MAX:]
    return frames + HEADER.pack(type_, seq, len(payload)) + payload


def split(data: bytes) -> tuple[list[Frame], bytes]:
    """The whole frames in it, and what is left."""
    frames: list[Frame] = []
    offset = 0
    while len(data) - offset >= HEADER.size:
        type_, seq, length = HEADER.unpack_from(data, offset)
        stop = offset + HEADER.size + length
        if stop > len(data):
            break
        frames.append(Frame(type_, seq, data[offset + HEADER.size : stop]))
        offset = stop
    return frames, data[offset:]


class Caller:
    """One connection, one request at a time; events are passed over."""

    def __init__(
        self, port: int, sock: socket.socket | None = None, *, patience: float = SECONDS_MAX
    ) -> None:
        self.sock = sock or socket.create_connection(("127.0.0.1", port), timeout=patience)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._rest = b""
        self._frames: list[Frame] = []
        self._seq = 0
        self.welcome = self.request(HELLO)

    def __enter__(self) -> Caller:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.sock.close()

    def request(
        self,
        type_: int,
        payload: bytes | str | dict[str, Any] = b"",
        *,
        then: Iterable[tuple[int, bytes]] = (),
    ) -> Any:
        """`then`: what is sent after it, under the same number."""
        self._seq = self._seq % 0xFFFF + 1
        self.sock.sendall(encode(type_, self._seq, payload))
        for following, data in then:
            self.sock.sendall(encode(following, self._seq, data))
        parts: list[bytes] = []
        while True:
            frame = self.receive()
            # The greeting comes first and is numbered as plain clients want it.
            if frame.seq != self._seq or frame.type == 0x01:
                continue
            parts.append(frame.payload)
            if frame.type == ERROR:
                raise Refused(frame.payload.decode())
            if not frame.type & MORE:
                return json.loads(b"".join(parts))

    def take(self, data: bytes) -> list[Frame]:
        """What the frames are after data that somebody else has read from the socket."""
        frames, self._rest = split(self._rest + data)
        return frames

    def drain(self) -> None:
        """Passes over what is there by now."""
        self._frames = []
        there = select.poll()  # `select` knows a thousand descriptors only
        there.register(self.sock, select.POLLIN)
        while there.poll(0):
            self.take(self.sock.recv(1 << 20))

    def until(self, type_: int) -> Frame:
        while (frame := self.receive()).type != type_:
            pass
        return frame

    def receive(self) -> Frame:
        while not self._frames:
            data = self.sock.recv(1 << 20)
            if not data:
                raise Refused("the server closed the connection")
            self._frames = self.take(data)[::-1]
        return self._frames.pop()


def wait_until_known(caller: Caller) -> None:
    """The server reads files that it does not know while it serves."""
    while caller.request(SESSION_LIST).get("incomplete"):
        time.sleep(0.1)
