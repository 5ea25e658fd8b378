"""The bytes of a conversation's file: header, lines, closing line, and file names; and what is
done to a file when it is opened after a crash (`survey`, `make_whole`).

    {"session_id":"…","format":1,"created_at":"…","crc":"9ae0daaf","messages":[
    ],"updated_at":"…","head_seq":2,"message_count":2,"epoch_offset":131}

Between the two is one line per entry. The closing line can be derived from the lines: every
append overwrites it, and recovery rebuilds it.
storage/FORMAT.md is the specification.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple
from zlib import crc32

import orjson
from msgspec import DecodeError, Struct, convert, field

from nplt_storage.codec import (
    LINE_BYTES_MAX,
    BadLine,
    decode_verified,
    encode_line,
    peek_seq,
    time_as_text,
    verify_line,
)
from nplt_storage.entries import Entry, EpochEntry, ModelInputEntry, ModelOutputEntry, Moment
from nplt_storage.file_system import (
    FileOperations,
    read_all,
    read_blocks,
    reader_of,
    write_all,
    write_blocks,
)
from nplt_storage.file_system import Read as Read
from nplt_storage.ids import is_session_id
from nplt_storage.json_values import JsonObject, JsonValue

log = logging.getLogger(__name__)

FORMAT: Final = 1
LOCAL_USER: Final = "local"

_MESSAGES = b',"messages":['
_CRC_KEY = re.compile(rb',"crc":"([0-9a-f]{8})"$')
_CLOSING = re.compile(
    rb'\],"updated_at":"([0-9T:.+-]{32})","head_seq":([0-9]{1,19}),'
    rb'"message_count":([0-9]{1,19}),"epoch_offset":([0-9]{1,19})\}\n'
)
CLOSING_KEYS: Final = ("updated_at", "head_seq", "message_count", "epoch_offset")
_OURS = frozenset(("session_id", "format", "created_at", "user", "crc", "messages", *CLOSING_KEYS))


class BadHeader(Exception):
    """The first line is not one of ours, or has been changed."""


class LaterFormat(Exception):
    """The file was written by a later version: it must not be opened or changed."""


class Header(Struct, frozen=True, kw_only=True):
    session_id: str
    created_at: Moment
    user: str = LOCAL_USER
    extra: Mapping[str, JsonValue] = field(default_factory=dict)
    """The fields an older program stored about the conversation, unchanged."""


class Closing(Struct, frozen=True, kw_only=True):
    updated_at: datetime
    head_seq: int
    message_count: int
    epoch_offset: int


def encode_header(header: Header) -> bytes:
    source: JsonObject = {
        "session_id": header.session_id,
        "format": FORMAT,
        "created_at": time_as_text(header.created_at),
    }
    if header.user != LOCAL_USER:
        source["user"] = header.user
    source |= {name: value for name, value in header.extra.items() if name not in _OURS}
    body = orjson.dumps(source)[:-1]
    return body + b',"crc":"%08x"' % crc32(body) + _MESSAGES + b"\n"


def decode_header(line: bytes) -> Header:
    """Decodes a header with its newline. A header without a checksum is accepted as it is."""
    if not line.endswith(_MESSAGES + b"\n"):
        raise BadHeader("the first line does not open a list of messages")
    body = line[: -len(_MESSAGES) - 1]
    if (crc := _CRC_KEY.search(body)) is not None:
        body = body[: crc.start()]
        if crc[1] != b"%08x" % crc32(body):
            raise BadHeader("the first line's checksum does not fit")
    try:
        source = orjson.loads(body + b"}")
        if (format_ := convert(source["format"], int)) != FORMAT:
            raise LaterFormat(f"format {format_} is not known to this version")
        extra = {name: value for name, value in source.items() if name not in _OURS}
        return convert({**source, "extra": extra}, Header)
    except (orjson.JSONDecodeError, DecodeError, KeyError) as error:
        raise BadHeader(f"the first line can't be read: {error}") from error


def encode_closing(closing: Closing) -> bytes:
    return b'],"updated_at":"%s","head_seq":%d,"message_count":%d,"epoch_offset":%d}\n' % (
        time_as_text(closing.updated_at).encode(),
        closing.head_seq,
        closing.message_count,
        closing.epoch_offset,
    )


def decode_closing(line: bytes) -> Closing | None:
    """`None` if these bytes are not exactly one closing line."""
    parts = _CLOSING.fullmatch(line)
    if parts is None:
        return None
    try:
        updated_at = datetime.fromisoformat(parts[1].decode())
    except ValueError:
        return None
    closing = Closing(
        updated_at=updated_at,
        head_seq=int(parts[2]),
        message_count=int(parts[3]),
        epoch_offset=int(parts[4]),
    )
    return closing if encode_closing(closing) == line else None


def advance(closing: Closing, kind: str, *, at: datetime, offset: int) -> Closing:
    """The closing line after one more line of that kind, which begins at `offset`."""
    is_message = kind in (ModelInputEntry.kind, ModelOutputEntry.kind)
    return Closing(
        updated_at=at,
        head_seq=closing.head_seq + 1,
        message_count=closing.message_count + is_message,
        epoch_offset=offset if kind == EpochEntry.kind else closing.epoch_offset,
    )


# ------------------------------------------------------------------------------
# File names
#
#     session_YYYYMMDD_<id>.json              one conversation
#     session_YYYYMMDD_<id>.json.live         the text of its running answer
#     session_YYYYMMDD_<id>.json.broken-N     the rest of a torn append
#     session_YYYYMMDD_<id>.json.orig         the file of another program
#     session_YYYYMMDD_<id>.blobs/            its blobs
#     .session_YYYYMMDD_<id>.….new            being written; left only by a crash
#     ….~N                                    one of these whose name was taken when it
#                                             was moved to or from the trash
#
# Only ids that were checked become part of a path.

_NAME = re.compile(r"session_([0-9]{8})_(.+)\.json", re.DOTALL)
_COMPANION = re.compile(r"(session_[0-9]{8}_(.+?))(?:\.json\.(.+)|\.blobs)", re.DOTALL)
_COPY = re.compile(
    r"\.(?:broken-[0-9]+|before-repair-[0-9]+|orig(?:-[0-9]+)?)(?:~[0-9]+)?|\.live~[0-9]+"
)


def file_name(session_id: str, created_at: datetime) -> str:
    at = created_at.astimezone(UTC)
    # Not %Y, which writes 999 for the year 999.
    return f"session_{at.year:04}{at:%m%d}_{session_id}.json"


def session_id_of(name: str) -> str | None:
    """`None` if this is not the name of a conversation's file."""
    parts = _NAME.fullmatch(name)
    return parts[2] if parts and is_session_id(parts[2]) else None


def by_session_id(names: Iterable[str]) -> dict[str, list[str]]:
    """The names of conversation files, by id; as a rule there is one for each."""
    by_id: dict[str, list[str]] = {}
    for name in names:
        session_id = session_id_of(name)
        if session_id is not None:
            by_id.setdefault(session_id, []).append(name)
    return by_id


def day_of(name: str) -> datetime:
    try:
        return datetime.strptime(name[8:16], "%Y%m%d").replace(tzinfo=UTC)
    except ValueError:
        return datetime.fromtimestamp(0, UTC)


def companion_of(name: str) -> str | None:
    """The id of the conversation to which this side file or folder belongs, or `None`."""
    parts = _COMPANION.fullmatch(name)
    return parts[2] if parts and is_session_id(parts[2]) else None


def companions(names: Iterable[str], path: Path) -> list[str]:
    """The names of files that belong to that conversation's file."""
    blobs = blobs_of(path).name
    return [name for name in names if name.startswith(f"{path.name}.") or name == blobs]


def copies(names: Iterable[str], path: Path) -> list[str]:
    """The names of files that may hold a second copy of that file's lines."""
    whole = path.name
    return [
        name
        for name in names
        if name.startswith(whole) and _COPY.fullmatch(name.removeprefix(whole))
    ]


def is_unfinished(name: str) -> bool:
    """Whether the name is that of a file a crash left unfinished."""
    return name.startswith(".session_") and name.endswith(".new")


def on_its_way(path: Path) -> Path:
    return path.with_name(f".{path.name}.new")


def blobs_of(path: Path) -> Path:
    return path.with_suffix(".blobs")


def live_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.live")


def numbered(path: Path, what: str) -> Iterator[Path]:
    """The possible names of such a copy of the file: `….what-1`, `….what-2` and so on."""
    return (path.with_name(f"{path.name}.{what}-{number}") for number in count(1))


# ------------------------------------------------------------------------------
# Reading lines
#
# Lines are ordered by sequence number, so a line is found by binary search over the
# bytes, and a page is read by going on from there. Every line that is returned was
# verified: its checksum, the comma before it, and that its number follows its
# neighbour's. Anything else is `BadLine`. Only bytes below a given end are read; these
# never change, so reading needs no lock.

BLOCK_BYTES = 16 * 1024
_LARGE_BLOCK_BYTES = 1024 * 1024
"""Blocks grow up to this size while more is read. A thread that reads a little every millisecond
releases the interpreter so briefly and so often that no other thread gets it: the event loop waited
for 50 to 250 ms."""
_PROBE_BYTES = 2 * 1024
_COMMA_AND_NEWLINE: Final = 2
_NUMBER_BYTES = 40


class LineTooLong(BadLine):
    """There is no newline within the length of the longest line."""

    def __init__(self, start: int, bytes_max: int) -> None:
        super().__init__(f"more than {bytes_max >> 20} MiB without the end of a line")
        self.start = start
        """The offset of that line, if it is known."""


class Segment(NamedTuple):
    """The bytes from one newline to the next; only the last one of a file may lack its newline."""

    start: int
    data: bytes


class Line(NamedTuple):
    start: int
    end: int
    seq: int
    data: bytes


def segments_forward(
    read: Read, start: int, end: int, *, bytes_max: int = LINE_BYTES_MAX
) -> Iterator[Segment]:
    """Raises `LineTooLong`."""
    held, held_at, block_bytes = b"", start, BLOCK_BYTES
    held_max = bytes_max + _COMMA_AND_NEWLINE
    while start < end:
        newline = held.find(b"\n", start - held_at)
        while newline < 0:
            held, held_at = held[start - held_at :], start
            searched = len(held)
            if searched >= held_max:
                held = b""  # the traceback of the error would keep these bytes
                raise LineTooLong(start, bytes_max)
            wanted = min(max(block_bytes, searched), held_max - searched, end - held_at - searched)
            block_bytes = min(2 * block_bytes, _LARGE_BLOCK_BYTES)
            block = read(held_at + searched, wanted) if wanted else b""
            if not block:
                yield Segment(start, held)
                return
            held += block
            newline = held.find(b"\n", searched)
        yield Segment(start, held[start - held_at : newline + 1])
        start = held_at + newline + 1


def segments_backward(read: Read, start: int, end: int) -> Iterator[Segment]:
    """Raises `LineTooLong`."""
    held, held_at, block_bytes = b"", end, BLOCK_BYTES
    held_max = LINE_BYTES_MAX + _COMMA_AND_NEWLINE
    while end > start:
        # The newline at the very end is the segment's own.
        newline = held.rfind(b"\n", 0, max(end - held_at - 1, 0))
        while newline < 0 and held_at > start:
            held = held[: end - held_at]
            if len(held) >= held_max:
                held = b""
                raise LineTooLong(start, LINE_BYTES_MAX)
            wanted = min(max(block_bytes, len(held)), held_max - len(held), held_at - start)
            block_bytes = min(2 * block_bytes, _LARGE_BLOCK_BYTES)
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


class FileEntries:
    """The lines between `first` and `end`; a source of entries for pages."""

    def __init__(self, read: Read, *, first: int, end: int, head_seq: int = 0) -> None:
        self.head_seq = head_seq
        self.bytes_read = 0
        """The size of the lines decoded so far."""
        self._read = read
        self._first = first
        self._end = end

    def before(self, seq: int) -> Iterator[Entry]:
        if seq > 1 and self.head_seq:
            end = self._end if seq > self.head_seq else self.find(seq)
            segments = segments_backward(self._read, self._first, end)
            yield from map(self._entry, self._verified(segments, step=-1))

    def after(self, seq: int) -> Iterator[Entry]:
        if seq < self.head_seq:
            start = self._first if seq < 1 else self.find(seq + 1)
            yield from map(self._entry, self.lines(start))

    def at(self, seq: int) -> Entry | None:
        return next(self.after(seq - 1), None) if seq >= 1 else None

    def lines(self, start: int | None = None) -> Iterator[Line]:
        start = self._first if start is None else start
        return self._verified(segments_forward(self._read, start, self._end), step=1)

    def _entry(self, line: Line) -> Entry:
        self.bytes_read += len(line.data)
        return decode_verified(line.data)

    def _verified(self, segments: Iterator[Segment], *, step: int) -> Iterator[Line]:
        due: int | None = None
        for segment in segments:
            line = verified(segment, first=self._first)
            if due is not None and line.seq != due:
                raise BadLine(f"line {line.seq} is where line {due} should be")
            due = line.seq + step
            yield line

    def find(self, seq: int) -> int:
        """The offset of the line with that number, which must exist."""
        low, high = self._first, self._end
        # The line begins at or after `low`, where a line begins, and before `high`.
        while high - low > BLOCK_BYTES:
            middle = (low + high) // 2
            start = self._next_start(middle, high)
            head = b"" if start is None else self._read(start, _NUMBER_BYTES)
            if start is None or peek_seq(head.removeprefix(b",")) > seq:
                high = middle + 1
            else:
                low = start
        for line in self.lines(low):
            if line.seq >= seq:
                if line.seq == seq:
                    return line.start
                break
        raise BadLine(f"line {seq} is not in its place")

    def _next_start(self, offset: int, end: int) -> int | None:
        """The offset of the first line that begins after `offset` and before `end`."""
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
            length = min(2 * length, _LARGE_BLOCK_BYTES)
        return None


# ------------------------------------------------------------------------------
# Recovery
#
# A crash can only tear what an append was writing: from the start of the closing line
# to the end of the file. The last line with a valid checksum is searched from the end. Bytes
# after it that are not exactly one closing line are the rest of a torn append, and are set
# aside. A torn append has at most one line: if more than one line can't be read there, or if
# there is no sound line at all, the file is damaged and nothing is changed. It is also damaged
# if more bytes follow than an append can have written: file systems may leave any number of
# zeros after a crash.
# `survey` only reads; `make_whole` writes.


_CLOSING_BYTES_MAX = 256
_TORN_BYTES_MAX: Final = LINE_BYTES_MAX + 64 * 1024
_TORN_SEGMENTS_MAX: Final = 100_000
_BEGINS: Final = b'{"seq":'
_ENDS: Final = b',"crc":"'
_ENDS_BYTES: Final = len(b',"crc":"00000000"}')
_JOINT = re.compile(rb'"crc":"[0-9a-f]{8}"\}.,\{"seq":', re.DOTALL)


class Damage(Exception):
    """Damage that no crash can cause: the file is left as it is, for a person to look at."""


class Tail(Struct, frozen=True, kw_only=True, dict=True):
    """The position and the closing line of the sound part of a file."""

    first: int
    """The offset of the first line, or where it would be."""
    last: int
    """The offset of the last line; equal to `end` while there are no lines."""
    end: int
    """The offset of the closing line."""
    closing: Closing

    @cached_property
    def closing_line(self) -> bytes:
        return encode_closing(self.closing)

    @property
    def size(self) -> int:
        """The size of the whole file."""
        return self.end + len(self.closing_line)

    def extended(self, entry: Entry, line: bytes | None = None) -> tuple[bytes, Tail]:
        """The bytes of one more line, and the tail after it. `line` is the result of `encode_line`,
        if the caller has it."""
        comma = b"" if self.end == self.first else b","
        added = b"%b%b\n" % (comma, encode_line(entry) if line is None else line)
        closing = advance(self.closing, entry.kind, at=entry.timestamp, offset=self.end)
        end = self.end + len(added)
        return added, Tail(first=self.first, last=self.end, end=end, closing=closing)

    def entries(self, read: Read) -> FileEntries:
        return FileEntries(read, first=self.first, end=self.end, head_seq=self.closing.head_seq)


def empty_tail(created_at: datetime, first: int) -> Tail:
    """The tail of a file without lines; `first` is the length of its header."""
    closing = Closing(updated_at=created_at, head_seq=0, message_count=0, epoch_offset=first)
    return Tail(first=first, last=first, end=first, closing=closing)


class Survey(Struct, frozen=True, kw_only=True):
    header: Header
    first: int
    last: int
    end: int
    head_seq: int
    closing: Closing | None
    """`None` if the last line is not followed by exactly one closing line."""
    counted: int
    """The number of lines counted by a closing line after unreadable bytes; 0 if there is none."""


def read_header(read: Read, size: int) -> tuple[Header, int]:
    """The header and its length. Raises `BadHeader` if the file may be another program's."""
    first, newline, _ = read(0, min(BLOCK_BYTES, size)).partition(b"\n")
    line = first + newline
    if not newline:
        if not _opens_messages(read, size):
            raise BadHeader("the first line does not open a list of messages")
        line = next((segment.data for segment in segments_forward(read, 0, size)), b"")
    return decode_header(line), len(line)


_SEARCHED_BYTES: Final = 1024 * 1024


def _opens_messages(read: Read, size: int) -> bool:
    """Looks for the end of the first line only, block by block: another program's file may be
    one line of any length."""
    begin, end, size = 0, b"", min(size, LINE_BYTES_MAX)
    while begin < size and (block := read(begin, _SEARCHED_BYTES)):
        end += block
        if (newline := end.find(b"\n")) >= 0:
            return end[:newline].endswith(_MESSAGES)
        begin, end = begin + len(block), end[-len(_MESSAGES) :]
    return False


def survey(read: Read, size: int) -> Survey:
    """Raises `BadHeader` or `Damage`."""
    header, first = read_header(read, size)
    last, counted = _last_sound_line(read, first, size)
    end, head_seq = (last.end, last.seq) if last else (first, 0)
    rest = read(end, size - end) if size - end <= _CLOSING_BYTES_MAX else b""
    closing = decode_closing(rest)
    if closing is not None and closing.head_seq != head_seq:
        closing = None
    if closing is not None and not first <= closing.epoch_offset <= end:
        closing = None
    return Survey(
        header=header,
        first=first,
        last=last.start if last else first,
        end=end,
        head_seq=head_seq,
        closing=closing,
        counted=counted,
    )


def _last_sound_line(read: Read, first: int, size: int) -> tuple[Line | None, int]:
    """The last sound line, and the number of lines counted by a closing line after it."""
    unreadable, closed_at = 0, 0
    for number, segment in enumerate(_torn_segments(read, first, size)):
        try:
            return verified(segment, first=first), closed_at
        except BadLine as reason:
            if size - segment.start > _TORN_BYTES_MAX or number > _TORN_SEGMENTS_MAX:
                raise Damage(_NO_APPEND) from reason
            if _holds_a_line(segment.data):
                raise Damage(
                    f"a line is intact, but the bytes around it are not: {reason}"
                ) from reason
            closing = decode_closing(segment.data[:_CLOSING_BYTES_MAX])
            closed_at = max(closed_at, closing.head_seq if closing else 0)
            # A segment may hold two lines: the newline between them may be what is broken.
            unreadable += segment.data.startswith((b'{"seq":', b',{"seq":'))
            unreadable += len(_JOINT.findall(segment.data))
            if unreadable > 1:
                raise Damage(f"more than one line at the end can't be read: {reason}") from reason
    if closed_at:
        raise Damage(f"no line can be read, but the closing line counts {closed_at}")
    return None, closed_at


_NO_APPEND: Final = (
    f"no line can be read in the last {LINE_BYTES_MAX >> 20} MiB: no append can have left that"
)


def _holds_a_line(data: bytes) -> bool:
    """Whether the data contains an intact line between broken bytes. A torn append leaves no line
    that has its newline."""
    if not data.endswith(b"\n"):
        return False
    begin, end = data.find(_BEGINS), data.rfind(_ENDS) + _ENDS_BYTES
    try:
        return 0 <= begin < end and bool(verify_line(data[begin:end]))
    except BadLine:
        return False


def _torn_segments(read: Read, first: int, size: int) -> Iterator[Segment]:
    try:
        yield from segments_backward(read, first, size)
    except LineTooLong as reason:
        raise Damage(_NO_APPEND) from reason


def make_whole(files: FileOperations, descriptor: int, path: Path, *, tail: Tail) -> None:
    """Sets aside the bytes after the last sound line, unless they are a closing line, and writes
    that line and the closing line again. So data that a failed sync or a crash left only in the
    system's memory is on disk before any reader gets it."""
    rest = read_all(files, descriptor, _CLOSING_BYTES_MAX, tail.end)
    if rest and decode_closing(rest) is None:
        _set_aside(files, descriptor, path, start=tail.end)
    line = read_all(files, descriptor, tail.end - tail.last, tail.last)
    write_all(files, descriptor, line + tail.closing_line, tail.last)
    files.truncate(descriptor, tail.size)
    files.sync_data(descriptor)
    files.sync_directory(path.parent)


def _set_aside(files: FileOperations, descriptor: int, path: Path, *, start: int) -> None:
    for broken in numbered(path, "broken"):
        try:
            copy = files.open(broken, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            continue
        try:
            try:
                read = reader_of(files, descriptor)
                write_blocks(files, copy, read_blocks(read, start, files.size(descriptor)))
                files.sync(copy)
            finally:
                files.close(copy)
        except OSError:
            files.remove(broken)
            raise
        files.sync_directory(path.parent)
        log.warning("%s: a torn append was set aside as %s", path.name, broken.name)
        return
