"""Frames: the five-byte header, and bytes back into frames.

A frame is the unit of the wire: a type, a number, and up to 65,535 bytes of
payload. The decoder walks its input by offset and copies each payload once;
an unfinished frame waits in a growing buffer, so that bytes that trickle in
one by one cost the same as bytes that come at once. It never holds more than
one unfinished frame. What a payload means is not known here.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from nplt_protocol.errors import LocalProtocolError, RemoteProtocolError
from nplt_protocol.limits import FRAME_PAYLOAD_BYTES_MAX
from nplt_protocol.transcript import describe_frame

HEADER = struct.Struct(">BHH")
"""type, seq, length of the payload; big-endian."""

HEADER_BYTES = HEADER.size


class Frame(NamedTuple):
    """A named tuple, not a dataclass: a busy connection makes millions of them."""

    type: int
    seq: int
    payload: bytes

    def __str__(self) -> str:
        return describe_frame(self.type, self.seq, self.payload)


def encode_frame(type: int, seq: int, payload: bytes = b"") -> bytes:  # noqa: A002
    if len(payload) > FRAME_PAYLOAD_BYTES_MAX:
        raise LocalProtocolError(
            f"a frame holds at most {FRAME_PAYLOAD_BYTES_MAX:,} bytes, not {len(payload):,}"
        )
    return HEADER.pack(type, seq, len(payload)) + payload


class FrameDecoder:
    """Bytes in, frames out.

    A header that announces more than `frame_bytes_max` sets `error`: the
    frames before it are still returned, everything after it is dropped, for
    nobody can tell where the next frame begins.
    """

    __slots__ = ("_buffer", "_needed", "error", "frame_bytes_max", "has_partial")

    def __init__(self, frame_bytes_max: int = FRAME_PAYLOAD_BYTES_MAX) -> None:
        self.frame_bytes_max = frame_bytes_max
        self.error: RemoteProtocolError | None = None
        self.has_partial = False
        """A frame was begun and not finished. Asked per read: no property."""
        self._buffer = bytearray()
        self._needed = 0

    @property
    def pending_bytes(self) -> int:
        return len(self._buffer)

    def receive_data(self, data: bytes) -> list[Frame]:
        if self.error is not None:
            return []
        if self.has_partial:
            self._buffer += data
            if len(self._buffer) < self._needed:
                return []
            data = bytes(self._buffer)
            self._buffer = bytearray()
        return self._walk(data)

    def _walk(self, data: bytes) -> list[Frame]:
        # The hot loop of the whole server: locals only, and `tuple.__new__`
        # because calling `Frame` costs half as much again.
        frames: list[Frame] = []
        append, unpack, new = frames.append, HEADER.unpack_from, tuple.__new__
        offset, end, limit = 0, len(data), self.frame_bytes_max
        needed, self.has_partial = HEADER_BYTES, False
        while end - offset >= HEADER_BYTES:
            type_, seq, length = unpack(data, offset)
            if length > limit:
                self.error = RemoteProtocolError(
                    f"a frame of {length:,} bytes was announced, at most {limit:,} are taken here"
                )
                return frames
            stop = offset + HEADER_BYTES + length
            if stop > end:
                needed = HEADER_BYTES + length
                break
            append(new(Frame, (type_, seq, data[offset + HEADER_BYTES : stop])))
            offset = stop
        if offset < end:
            self._buffer += data[offset:]
            self._needed, self.has_partial = needed, True
        return frames
