"""A first line whose checksum does not fit, and what it must have been.

CRC-32 tells more than "wrong": a line of this length in which one bit flipped
can be put right in exactly one way. Tried bit by bit, the one flip that makes
the checksum fit is undone. More than one flipped bit is beyond it, and nothing
is guessed.
"""

from __future__ import annotations

import re
from typing import Final
from zlib import crc32

from nplt_storage.files.layout import BadHeader, LaterFormat, decode_header

_LOOKED_AT_BYTES_MAX: Final = 16 * 1024
_OPENING: Final = b'"messages":['
_CHECKED: Final = re.compile(rb'(.*),"crc":"([0-9a-f]{8})","messages":\[\n', re.DOTALL)


def rescue_header(beginning: bytes) -> bytes | None:
    """The first line as it was written, newline included; `beginning` is where
    the file begins, and `None` means that no single flipped bit explains it."""
    data = bytearray(beginning[:_LOOKED_AT_BYTES_MAX])
    found: set[bytes] = set()
    for place in range(_end_of_search(data)):
        for bit in range(8):
            data[place] ^= 1 << bit
            line = bytes(data[: data.find(b"\n") + 1])
            if _is_checked_header(line):
                found.add(line)
            data[place] ^= 1 << bit
    return found.pop() if len(found) == 1 else None


def _end_of_search(data: bytearray) -> int:
    """The newline may be what flipped, or a flip may have made one too many."""
    newline = data.find(b"\n")
    opening = data.find(_OPENING)
    ends = [newline, opening + len(_OPENING) if opening >= 0 else -1]
    return min(len(data), max(ends) + 1)


def _is_checked_header(line: bytes) -> bool:
    """A header without a checksum is taken as it is elsewhere; here it proves nothing."""
    parts = _CHECKED.fullmatch(line)
    if parts is None or parts[2] != b"%08x" % crc32(parts[1]):
        return False
    try:
        decode_header(line)
    except (BadHeader, LaterFormat):
        return False
    return True
