"""A conversation's file taken apart from front to back, whatever state it is in.

Opening stops at the first thing that is wrong; whoever examines or repairs a
file wants to know what stands behind it too. So every stretch of bytes after
the header comes out as one of three: a line that verifies and can be read, a
closing line, or something that can't be read. Nothing here raises for what is
in the file, and memory stays bounded by the longest line allowed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from nplt_storage.facts.entries import Entry
from nplt_storage.facts.lines import BadLine, decode_verified
from nplt_storage.files.layout import BadHeader, Closing, Header, decode_closing
from nplt_storage.files.reader import Line, Read, Segment, segments_forward, verified
from nplt_storage.files.recovery import read_header

LINE_BYTES_MAX: Final = 256 * 1024 * 1024
FOREIGN_BYTES_MAX: Final = 256 * 1024 * 1024
"""Another program's document is read in one go; a larger one is not looked into."""
_CLOSING_BYTES_MAX: Final = 256
_CLOSING_BEGINS: Final = b'],"updated_at":'


class TooLong(Exception):
    """No newline for so long that this can't be one of our files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sound:
    line: Line
    entry: Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    start: int
    end: int
    closing: Closing


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    start: int
    end: int
    reason: str
    closing: Closing | None = None
    """If it ends like a closing line: the newline before that one may be what broke."""


Piece: TypeAlias = Sound | Closed | Unreadable


def bounded(read: Read, bytes_max: int = LINE_BYTES_MAX) -> Read:
    """Refuses to hold more of a line than any line has."""

    def read_some(offset: int, length: int) -> bytes:
        if length > bytes_max:
            raise TooLong(f"more than {bytes_max >> 20} MiB without the end of a line")
        return read(offset, length)

    return read_some


def our_header(read: Read, size: int) -> tuple[Header, int]:
    """The header and its length. Raises `BadHeader`, `LaterFormat` or `TooLong`."""
    if read(0, 1) != b"{":
        raise BadHeader("the first line is not one of ours")
    return read_header(bounded(read), size)


def pieces(read: Read, *, first: int, size: int) -> Iterator[Piece]:
    """`first` is where the header ends. The last piece may be a stretch too long to look into."""
    reached = first
    try:
        for segment in segments_forward(bounded(read), first, size):
            piece = _piece(segment, first)
            reached = segment.start + len(segment.data)
            yield piece
    except TooLong as reason:
        yield Unreadable(start=reached, end=size, reason=str(reason))


def _piece(segment: Segment, first: int) -> Piece:
    end = segment.start + len(segment.data)
    if len(segment.data) <= _CLOSING_BYTES_MAX:
        closing = decode_closing(segment.data)
        if closing is not None:
            return Closed(start=segment.start, end=end, closing=closing)
    try:
        line = verified(segment, first=first)
        return Sound(line=line, entry=decode_verified(line.data))
    except BadLine as reason:
        return Unreadable(
            start=segment.start,
            end=end,
            reason=str(reason),
            closing=_closing_at_end(segment.data[-_CLOSING_BYTES_MAX:]),
        )


def _closing_at_end(data: bytes) -> Closing | None:
    start = data.rfind(_CLOSING_BEGINS)
    return decode_closing(data[start:]) if start >= 0 else None
