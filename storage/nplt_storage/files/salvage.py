"""Finds the sound lines of a file, whatever state it is in.

Every stretch of bytes after the header is a line that verifies, a closing line, or
unreadable. Nothing here raises for the content of a line, and memory is bounded by the
longest line allowed.

CRC-32 can correct one flipped bit in a line of known length: each bit of a header is tried, and
the one that makes the checksum fit is flipped back. A header that has other bytes before it
(a byte order mark, junk) is found. Any other is made again: the file's name has the id and the
day, the first entry the time; the owner has to be known from elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, date, datetime
from typing import Final, TypeAlias
from zlib import crc32

from msgspec import Struct

from nplt_storage.codec import LINE_BYTES_MAX, BadLine, decode_verified, peek_seq, verify_line
from nplt_storage.entries import Entry
from nplt_storage.file_system import after_hole
from nplt_storage.files.foreign import ForeignConversation
from nplt_storage.files.format import (
    BadHeader,
    Closing,
    Header,
    LaterFormat,
    Line,
    LineTooLong,
    Read,
    Segment,
    decode_closing,
    decode_header,
    encode_header,
    file_name,
    read_header,
    segments_forward,
    verified,
)
from nplt_storage.files.json_document import FileBytes, JsonDocument, NotForeign
from nplt_storage.files.reformatted import ReformattedDocument, read_reformatted

FOREIGN_BYTES_MAX: Final = 256 * 1024 * 1024
"""Larger documents of other programs are not examined."""
STRETCH_BYTES_MAX: Final = 4 * 1024 * 1024 * 1024
"""The number of bytes searched for the next line before the search is given up."""
_CLOSING_BYTES_MAX: Final = 256
_CLOSING_BEGINS: Final = b'],"updated_at":'


class SoundLine(Struct, frozen=True, kw_only=True):
    line: Line
    entry: Entry


class NoLine(Struct, frozen=True, kw_only=True):
    """A closing line, or bytes that can't be read."""

    start: int
    end: int
    reason: str | None = None
    """The reason why it can't be read; `None` if it is exactly one closing line."""
    closing: Closing | None = None
    """The closing line. Unreadable bytes may end in one too, if the newline before it broke."""


Piece: TypeAlias = SoundLine | NoLine


def our_header(read: Read, size: int) -> tuple[Header, int]:
    """The header and its length. Raises `BadHeader`, `LaterFormat` or `LineTooLong`."""
    if read(0, 1) != b"{":
        raise BadHeader("the first line is not one of ours")
    return read_header(read, size)


def pieces(read: Read, *, first: int, size: int) -> Iterator[Piece]:
    """Splits the file into pieces; `first` is the end of the header. Bytes without a newline,
    however many, are one piece."""
    start = first
    while start < size:
        try:
            for segment in segments_forward(read, start, size):
                yield _piece(segment, first)
            return
        except LineTooLong as error:
            begin, reason = error.start, str(error)
        start = _next_line(read, begin, size)
        yield NoLine(start=begin, end=start, reason=reason)


def _piece(segment: Segment, first: int) -> Piece:
    start, end = segment.start, segment.start + len(segment.data)
    if (closing := decode_closing(segment.data)) is not None:
        return NoLine(start=start, end=end, closing=closing)
    try:
        line = verified(segment, first=first)
        return SoundLine(line=line, entry=decode_verified(line.data))
    except BadLine as reason:
        at = segment.data.rfind(_CLOSING_BEGINS, -_CLOSING_BYTES_MAX)
        closing = decode_closing(segment.data[at:]) if at >= 0 else None
        return NoLine(start=start, end=end, reason=str(reason), closing=closing)


def _next_line(read: Read, start: int, size: int) -> int:
    """The offset of the next line, or the end of the file if there is none within reach."""
    left = STRETCH_BYTES_MAX
    while left > 0 and (start := after_hole(read, start)) < size:
        block = read(start, min(WINDOW_BYTES, size - start))
        if not block:
            break
        if (newline := block.find(b"\n")) >= 0:
            return start + newline + 1
        start, left = start + len(block), left - len(block)
    return size


_BEGINNING_BYTES: Final = 16 * 1024
_OPENING: Final = b'"messages":['
_BEGIN_OF_HEADER: Final = re.compile(rb'\{"session_id":')
_END_OF_HEADER: Final = re.compile(rb',"crc":"([0-9a-f]{8})","messages":\[\n')
_END_OF_HEADER_BYTES: Final = len(b',"crc":"00000000","messages":[\n')


def rescue_header(beginning: bytes) -> bytes | None:
    """The first line as it was written, with its newline; `beginning` is the start of the file.
    `None` if flipping a single bit does not restore it."""
    data = bytearray(beginning)
    # The flipped bit may be in the newline, or may have made another byte a newline.
    opening = data.find(_OPENING)
    ends = (data.find(b"\n"), opening + len(_OPENING) if opening >= 0 else -1)
    found: set[bytes] = set()
    for place in range(min(len(data), max(ends) + 1)):
        for bit in range(8):
            data[place] ^= 1 << bit
            line = bytes(data[: data.find(b"\n") + 1])
            if _is_checked_header(line):
                found.add(line)
            data[place] ^= 1 << bit
    return found.pop() if len(found) == 1 else None


def header_within(beginning: bytes) -> tuple[int, bytes] | None:
    """The offset of a header that has other bytes before it, and the header. Raises
    `LaterFormat`."""
    for begin in _BEGIN_OF_HEADER.finditer(beginning):
        line = beginning[begin.start() : beginning.find(b"\n", begin.start()) + 1]
        end = _END_OF_HEADER.fullmatch(line[-_END_OF_HEADER_BYTES:])
        if end is not None and end[1] == b"%08x" % crc32(line[:-_END_OF_HEADER_BYTES]):
            with suppress(BadHeader):
                decode_header(line)
                return begin.start(), line
    return None


def _is_checked_header(line: bytes) -> bool:
    """Whether the line is a header with a valid checksum; one without a checksum proves nothing
    here. Its end is checked first, because this is called for every bit of a possibly long line."""
    end = _END_OF_HEADER.fullmatch(line[-_END_OF_HEADER_BYTES:])
    if end is None or end[1] != b"%08x" % crc32(line[:-_END_OF_HEADER_BYTES]):
        return False
    try:
        decode_header(line)
    except (BadHeader, LaterFormat):
        return False
    return True


_BEGIN: Final = b'{"seq":'
_END: Final = re.compile(rb',"crc":"[0-9a-f]{8}"\}')
_END_BYTES: Final = len(b',"crc":"00000000"}')
_ENDS_TRIED: Final = 8
WINDOW_BYTES: Final = 1024 * 1024


class CannotRepair(Exception):
    """The file does not say which conversation it is; it was left unchanged."""


Span: TypeAlias = tuple[int, int]
"""The start and end of bytes in the original."""


class KnownElsewhere(Struct, frozen=True, kw_only=True):
    """The facts known about a conversation from outside its file, in case the header is lost."""

    user: str | None = None
    created_at: datetime | None = None
    day: date | None = None
    """The day in the file's name."""


def salvaged(read: Read, size: int, session_id: str) -> tuple[Header | None, Iterator[Entry]]:
    """The header, if it can be found, and all entries that can be read, in order."""
    try:
        found = FoundLines(read, size, session_id)
    except CannotRepair:
        return None, iter(())
    return found.header, (decode_verified(found.line(seq)) for seq in sorted(found.places))


class FoundLines:
    """The header, and every line whose checksum holds, wherever it is in the file."""

    def __init__(self, read: Read, size: int, session_id: str) -> None:
        """Raises `CannotRepair`."""
        self._read = read
        self._session_id = session_id
        self.header: Header | None = None
        """`None` if it is lost."""
        self.header_line = b""
        self.says: list[str] = []
        """The changes to the header."""
        self.places: dict[int, Span | bytes] = {}
        """The location of each object in the file, or the object itself, by number. The first of
        several counts."""
        self.counted = 0
        """The number of entries according to the closing line."""
        self.twice = 0
        self.unreadable: list[Span] = []
        """Bytes without any line."""
        reformatted, first, reason = self._find_header(size)
        if self.header_line:
            self.header = decode_header(self.header_line)
            if self.header.session_id != session_id:
                raise CannotRepair(
                    f"the file says it is conversation {self.header.session_id!r}: give it the "
                    f"name {file_name(self.header.session_id, self.header.created_at)}"
                )
        if reformatted is None:
            self._look(first=first, size=size)
            if not (self.header or self.places or self.counted):
                raise CannotRepair(f"{reason}, and it can't be told what it was")
            return
        for line in reformatted.lines:
            self._add(peek_seq(line), line)
        counted = reformatted.closing["head_seq"]
        self.counted = counted if isinstance(counted, int) else 0

    def _find_header(self, size: int) -> tuple[ReformattedDocument | None, int, str]:
        """The whole document if another program has reformatted it, the offset of the first line,
        and what is wrong with the header."""
        read, data = self._read, FileBytes(self._read, size)
        try:
            try:
                self.header_line = read(0, our_header(read, size)[1])
                return None, len(self.header_line), ""
            except (BadHeader, LineTooLong) as error:
                reason = str(error)
            beginning = read(0, _BEGINNING_BYTES)
            if (rescued := rescue_header(beginning)) is not None:
                self.header_line = rescued
                self.says.append("the first line is corrected: one bit of it had flipped")
                return None, len(rescued), reason
            if (within := header_within(beginning)) is not None:
                begin, self.header_line = within
                self.says.append("the bytes before the first line stay in the original only")
                return None, begin + len(self.header_line), reason
        except LaterFormat as error:
            raise CannotRepair(f"{error}; it is left to the version that wrote it") from error
        if size > FOREIGN_BYTES_MAX:
            return None, 0, reason
        if (reformatted := read_reformatted(data)) is not None:
            self.header_line = reformatted.header
            self.says.append("another program has changed its layout: it is written as it was")
            return reformatted, 0, reason
        with suppress(NotForeign):
            ForeignConversation(JsonDocument(data), self._session_id)
            raise CannotRepair(
                "this is another program's file, and nothing is wrong with it; "
                "it is taken in when it is first opened"
            )
        return None, 0, reason

    def new_header(self, known: KnownElsewhere) -> Header:
        """A header in place of one that is lost. Raises `CannotRepair`."""
        if known.user is None:
            raise CannotRepair("its first line is lost, and with it its owner: give --user NAME")
        created_at = known.created_at
        if created_at is None and self.places:
            first = decode_verified(self.line(min(self.places))).timestamp
            created_at = first if known.day in (None, first.date()) else None
        if created_at is None:
            midnight = datetime.min.time()
            day = known.day or datetime.fromtimestamp(0, UTC).date()
            created_at = datetime.combine(day, midnight, UTC)
        header = Header(session_id=self._session_id, created_at=created_at, user=known.user)
        self.header_line = encode_header(header)
        self.says.append(f"the first line is lost: a new one is written, for user {known.user!r}")
        return header

    def line(self, seq: int) -> bytes:
        place = self.places[seq]
        return place if isinstance(place, bytes) else self._read(place[0], place[1] - place[0])

    def _look(self, *, first: int, size: int) -> None:
        for piece in pieces(self._read, first=first, size=size):
            if isinstance(piece, SoundLine):
                begin = piece.line.start + (piece.line.start != first)
                self._add(piece.entry.seq, (begin, piece.line.end - 1))
                continue
            if piece.closing is not None:
                self.counted = max(self.counted, piece.closing.head_seq)
            if piece.reason is not None and not self._look_within(piece):
                self._pass_over(piece.start, piece.end)

    def _pass_over(self, start: int, end: int) -> None:
        if self.unreadable and self.unreadable[-1][1] == start:
            start = self.unreadable.pop()[0]
        self.unreadable.append((start, end))

    def _look_within(self, piece: NoLine) -> bool:
        """Looks for an intact line whose newline, or the comma before it, is broken."""
        window = _Window(self._read, piece.start, piece.end)
        found = False
        while (begin := window.find_begin()) is not None:
            for line in window.candidates():
                try:
                    seq = verify_line(line)
                    decode_verified(line)
                except BadLine:
                    continue
                self._add(seq, (begin, begin + len(line)))
                window.skip(len(line))
                found = True
                break
            else:
                window.skip(len(_BEGIN))
        return found

    def _add(self, seq: int, place: Span | bytes) -> None:
        if seq in self.places:
            self.twice += 1
        else:
            self.places[seq] = place


class _Window:
    """A window that moves through bytes in search of lines. It grows while the end of a line is
    searched, up to the length of the longest line."""

    def __init__(self, read: Read, start: int, stop: int) -> None:
        self._read = read
        self._start = start
        self._stop = stop
        self._left = STRETCH_BYTES_MAX
        self._data = b""
        self._at = 0

    def skip(self, length: int) -> None:
        self._at += length

    def find_begin(self) -> int | None:
        """Moves to the next place where a line may begin, or returns `None`."""
        while (begin := self._data.find(_BEGIN, self._at)) < 0:
            self._at = max(self._at, len(self._data) - len(_BEGIN))
            if not self._more():
                return None
        self._at = begin
        return self._start + begin

    def candidates(self) -> Iterator[bytes]:
        """The bytes from here to each place where the line may end, within reason."""
        tried, place = 0, self._at
        while tried < _ENDS_TRIED:
            if (end := _END.search(self._data, place)) is not None:
                tried, place = tried + 1, end.end()
                yield self._data[self._at : place]
                continue
            before = len(self._data) - self._at
            place = self._start + len(self._data)
            is_hole = after_hole(self._read, place) > place  # a line never continues in a hole
            if before > LINE_BYTES_MAX or is_hole or not self._more():
                return
            place = self._at + max(before - _END_BYTES, 0)

    def _more(self) -> bool:
        """Drops the bytes already searched and reads more; false at the end."""
        self._start += self._at
        self._data, self._at = self._data[self._at :], 0
        held = len(self._data)
        begin = self._start + held
        if (written := after_hole(self._read, begin)) > begin:
            self._start, self._data, held, begin = written, b"", 0, written
        wanted = min(max(held, WINDOW_BYTES), self._stop - begin, self._left)
        block = self._read(begin, wanted) if wanted > 0 else b""
        self._data += block
        self._left -= len(block)
        return bool(block)
