"""PINGs answered without being looked at.

A PONG is its PING with another type. Signs of life and measurements come in
long runs, so a run is copied once and one byte of each frame is changed.
"""

from __future__ import annotations

from nplt_protocol.codes import MessageType
from nplt_protocol.frames import HEADER, HEADER_BYTES

PING, PONG = int(MessageType.PING), int(MessageType.PONG)


def pongs_for(data: bytes, frame_bytes_max: int) -> bytes:
    """For the whole PINGs that `data` begins with; as many bytes as those have."""
    pongs, offset, end = bytearray(data), 0, len(data)
    unpack = HEADER.unpack_from
    while end - offset >= HEADER_BYTES:
        type_, _, length = unpack(data, offset)
        stop = offset + HEADER_BYTES + length
        if type_ != PING or stop > end or length > frame_bytes_max:
            break
        pongs[offset] = PONG
        offset = stop
    return bytes(pongs[:offset])
