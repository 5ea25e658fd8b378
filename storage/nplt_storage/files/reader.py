"""Reading a conversation's file from anywhere in it, a few blocks at a time.

Lines are ordered by sequence number, so a line is found by halving the range
of bytes it can be in, and a page is read by walking on from there. Every line
that is given away was verified: its checksum, the comma before it, and that
its number follows its neighbour's. Anything else is `BadLine`. Only bytes
below a given end are read; those never change, so reading needs no lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

from nplt_storage.facts.entries import Entry
from nplt_storage.facts.lines import BadLine, decode_verified, peek_seq, verify_line

Read: TypeAlias = Callable[[int, int], bytes]
"""(offset, length) → the bytes there, fewer only at the end of the file."""

BLOCK_BYTES = 16 * 1024
_PROBE_BYTES = 2 * 1024
_NUMBER_BYTES = 40


class Segment(NamedTuple):
    """Bytes from one newline to the next; only the file's last may lack its own."""

    start: int
    data: bytes


class Line(NamedTuple):
    start: int
    end: int
    seq: int
    data: bytes


def segments_forward(read: Read, start: int, end: int) -> Iterator[Segment]:
    held, held_at = b"", start
    while start < end:
        newline = held.find(b"\n", start - held_at)
        while newline < 0:
            held, held_at = held[start - held_at :], start
            searched = len(held)
            wanted = min(max(BLOCK_BYTES, searched), end - held_at - searched)
            block = read(held_at + searched, wanted) if wanted else b""
            if not block:
                yield Segment(start, held)
                return
            held += block
            newline = held.find(b"\n", searched)
        yield Segment(start, held[start - held_at : newline + 1])
        start = held_at + newline + 1


def segments_backward(read: Read, start: int, end: int) -> Iterator[Segment]:
    held, held_at = b"", end
    while end > start:
        # The newline at the very end is the segment's own.
        newline = held.rfind(b"\n", 0, max(end - held_at - 1, 0))
        while newline < 0 and held_at > start:
            held = held[: end - held_at]
            wanted = min(max(BLOCK_BYTES, len(held)), held_at - start)
            held_at -= wanted
            held = read(held_at, wanted) + held
            newline = held.rfind(b"\n", 0, min(wanted, max(end - held_at - 1, 0)))
        begin = held_at + newline + 1
        yield Segment(begin, held[begin - held_at : end - held_at])
        end = begin


def verified(segment: Segment, *, first: int) -> Line:
    """The line in a segment; `first` is where the file's first line begins."""
    start, data = segment
    if not data.endswith(b"\n"):
        raise BadLine("a line has no end")
    is_first = start == first
    if not data.startswith(b"{" if is_first else b",{"):
        raise BadLine("a line does not begin as it should")
    line = data[:-1] if is_first else data[1:-1]
    seq = verify_line(line)
    if (seq == 1) != is_first:
        raise BadLine(f"line {seq} is not in its place")
    return Line(start, start + len(data), seq, line)


class LineReader:
    """The lines between `first` and `end`."""

    def __init__(self, read: Read, *, first: int, end: int) -> None:
        self._read = read
        self._first = first
        self._end = end

    def forward(self, offset: int) -> Iterator[Line]:
        due: int | None = None
        for segment in segments_forward(self._read, offset, self._end):
            line = verified(segment, first=self._first)
            if due is not None and line.seq != due:
                raise BadLine(f"line {line.seq} stands where {due} should")
            due = line.seq + 1
            yield line

    def backward(self, offset: int) -> Iterator[Line]:
        due: int | None = None
        for segment in segments_backward(self._read, self._first, offset):
            line = verified(segment, first=self._first)
            if due is not None and line.seq != due:
                raise BadLine(f"line {line.seq} stands where {due} should")
            due = line.seq - 1
            yield line

    def find(self, seq: int) -> int:
        """Where the line with that number begins; it must be there."""
        low, high = self._first, self._end
        # The line begins at or after `low`, where a line begins, and before `high`.
        while high - low > BLOCK_BYTES:
            middle = (low + high) // 2
            start = self._next_start(middle, high)
            if start is None or self._number_at(start) > seq:
                high = middle + 1
            else:
                low = start
        for line in self.forward(low):
            if line.seq >= seq:
                if line.seq == seq:
                    return line.start
                break
        raise BadLine(f"line {seq} is not in its place")

    def _next_start(self, offset: int, end: int) -> int | None:
        """The first place after `offset`, below `end`, where a line begins."""
        length = _PROBE_BYTES
        while offset < end:
            block = self._read(offset, min(length, end - offset))
            newline = block.find(b"\n")
            if newline >= 0:
                start = offset + newline + 1
                return start if start < end else None
            if not block:
                return None
            offset += len(block)
            length *= 2
        return None

    def _number_at(self, start: int) -> int:
        head = self._read(start, _NUMBER_BYTES)
        return peek_seq(head.removeprefix(b","))


class FileEntries:
    """A file as a source of entries for pages."""

    def __init__(self, read: Read, *, first: int, end: int, head_seq: int) -> None:
        self.head_seq = head_seq
        self._first = first
        self._end = end
        self._reader = LineReader(read, first=first, end=end)

    def before(self, seq: int) -> Iterator[Entry]:
        if seq > 1 and self.head_seq:
            end = self._end if seq > self.head_seq else self._reader.find(seq)
            yield from map(_entry, self._reader.backward(end))

    def after(self, seq: int) -> Iterator[Entry]:
        if seq < self.head_seq:
            start = self._first if seq < 1 else self._reader.find(seq + 1)
            yield from map(_entry, self._reader.forward(start))


def _entry(line: Line) -> Entry:
    return decode_verified(line.data)
