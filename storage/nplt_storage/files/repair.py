"""Examines one conversation's file from end to end, and repairs a damaged one.

This is for damage within a file. The torn end that a crash leaves is mended whenever a file is
opened (`format.make_whole`).

Damage does not end the examination: the lines after it are read too, so that the report can
say what is lost and what is not.

In a repair every line whose checksum holds is kept byte for byte, also after a damaged one; in
the place of each other one stands a tombstone, so that numbers stay as they were. The original
file is kept aside. Calls without a result get one that says so, and turns without an end are
ended, so that no old prompt runs again. `plan_repair` only reads; `apply_repair` writes.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Final, TypeAlias
from zlib import crc32

from msgspec import Struct, field
from msgspec.structs import replace

from nplt_storage.codec import (
    LINE_BYTES_MAX,
    BadLine,
    decode_verified,
    encode_line,
    peek_seq,
    verify_line,
)
from nplt_storage.entries import (
    AttachmentEntry,
    BlobReference,
    DebugEntry,
    Entry,
    FaultEntry,
    ForkedEntry,
    ModelInputEntry,
    ModelOutputEntry,
    RollbackEntry,
    ToolCallResult,
    ToolResultsEntry,
    UnknownEntry,
    wrong_reference,
)
from nplt_storage.errors import StorageUnavailable
from nplt_storage.file_system import (
    Disk,
    after_hole,
    give_second_name,
    lock_directory,
    open_lock,
    opened,
    opened_to_read,
    read_blocks,
    reader_of,
    write_blocks,
    write_new_file,
)
from nplt_storage.files.foreign import (
    FileBytes,
    ForeignConversation,
    JsonDocument,
    NotForeign,
    RelaidDocument,
    read_relaid,
)
from nplt_storage.files.format import (
    BadHeader,
    Closing,
    Damage,
    Header,
    LaterFormat,
    Line,
    LineTooLong,
    Read,
    Segment,
    advance,
    day_of,
    decode_closing,
    decode_header,
    empty_tail,
    encode_header,
    file_name,
    numbered,
    read_header,
    segments_forward,
    survey,
    verified,
)
from nplt_storage.history import Ranges, is_in
from nplt_storage.ids import new_entry_id
from nplt_storage.json_values import JsonObject
from nplt_storage.rows import ConversationRow, fold, fold_all, new_row
from nplt_storage.store import Repaired

# ------------------------------------------------------------------------------
# Splitting a file into lines, whatever state it is in
#
# Every stretch of bytes after the header is a line that verifies, a closing line, or
# unreadable. Nothing here raises for the content of a file, and memory is bounded by the
# longest line allowed.

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
        block = read(start, min(_WINDOW_BYTES, size - start))
        if not block:
            break
        if (newline := block.find(b"\n")) >= 0:
            return start + newline + 1
        start, left = start + len(block), left - len(block)
    return size


# ------------------------------------------------------------------------------
# Calls without results, and turns without an end
#
# These are not errors of the file, but a model may fail on the former, and the next start
# would resume the latter.


_NO_RANGES: Final[Ranges] = ()


class TurnPairing(Struct):
    unfinished: dict[str, int] = field(default_factory=dict)
    """Turns that were prompted and have not ended, each with its prompt's number."""
    waiting: dict[tuple[str, int], ModelOutputEntry] = field(default_factory=dict)
    """Outputs whose calls have no results, by turn and call."""
    _latest: dict[str, int] = field(default_factory=dict)
    """The latest output of each turn that has not ended."""

    def add(self, entry: Entry) -> None:
        match entry:
            case ModelInputEntry(turn_id=str(turn_id)):
                self.unfinished[turn_id] = entry.seq
            case ModelOutputEntry(turn_id=str(turn_id)):
                if entry.ends_turn:
                    # Calls of an output that was cut short were never run.
                    self._end(turn_id)
                elif entry.tool_calls:
                    self.waiting[turn_id, entry.call] = entry
                    self._latest[turn_id] = entry.call
            case ToolResultsEntry(turn_id=str(turn_id)):
                asked = self.waiting.get((turn_id, entry.call))
                given = [result.tool_call_id for result in entry.results]
                if asked and given == [call.tool_call_id for call in asked.tool_calls]:
                    del self.waiting[turn_id, entry.call]
            case FaultEntry(turn_id=str(turn_id)):
                self._end(turn_id)
            case ForkedEntry() | RollbackEntry():
                # Turns that had not ended here are not taken up again.
                last, hidden = entry.seq, _NO_RANGES
                if isinstance(entry, RollbackEntry):
                    last, hidden = entry.to_seq, entry.hidden or ()
                self.waiting = {
                    (turn_id, call): asked
                    for (turn_id, call), asked in self.waiting.items()
                    if turn_id not in self._latest
                    and asked.seq <= last
                    and not is_in(hidden, asked.seq)
                }
                self.unfinished.clear()
                self._latest.clear()
            case _:
                pass

    def unpaired(self) -> list[ModelOutputEntry]:
        """The outputs whose calls will get no results: their turn went on, or ended, without."""
        return [
            asked
            for (turn_id, call), asked in self.waiting.items()
            if self._latest.get(turn_id) != call
        ]

    def _end(self, turn_id: str) -> None:
        self.unfinished.pop(turn_id, None)
        self._latest.pop(turn_id, None)


# ------------------------------------------------------------------------------
# Findings
#
# A finding is *wrong* (something is lost or can't be relied on, and a person should act)
# or a *note* (worth knowing; no action is needed).


class Finding(Struct, frozen=True):
    code: str
    """A code for programs; `message` is the sentence for people."""
    message: str
    is_wrong: bool = True
    file: str = ""
    """The path relative to the data directory."""
    offset: int | None = None
    """The first byte it is about."""
    seqs: tuple[int, int] | None = None
    """The first and the last entry it is about."""

    def as_json(self) -> JsonObject:
        source: JsonObject = {
            "file": self.file,
            "level": "wrong" if self.is_wrong else "note",
            "code": self.code,
            "message": self.message,
        }
        if self.offset is not None:
            source["offset"] = self.offset
        if self.seqs is not None:
            source["seqs"] = list(self.seqs)
        return source


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")


def note(code: str, message: str, *, file: str = "", offset: int | None = None) -> Finding:
    return Finding(code, message, is_wrong=False, file=file, offset=offset)


_CHECKED_HEADER: Final = re.compile(rb',"crc":"[0-9a-f]{8}","messages":\[\n\Z')


class Examination(Struct):
    findings: list[Finding] = field(default_factory=list)
    row: ConversationRow | None = None
    """`None` if not even the header can be read."""
    blobs: dict[str, BlobReference] = field(default_factory=dict)
    attachments: dict[str, AttachmentEntry] = field(default_factory=dict)

    @property
    def is_sound(self) -> bool:
        return not any(finding.is_wrong for finding in self.findings)


def examine_file(
    read: Read, size: int, *, session_id: str, new_id: Callable[[], str]
) -> Examination:
    """Examines one file; `session_id` is the id in its name."""
    try:
        header, first = our_header(read, size)
    except LaterFormat as reason:
        return Examination([Finding("later_format", str(reason))])
    except (BadHeader, LineTooLong) as reason:
        return _examine_foreign(read, size, session_id, str(reason), new_id=new_id)
    walk = _LineExamination(header, read(0, first), session_id)
    for piece in pieces(read, first=first, size=size):
        walk.take(piece)
    return walk.finish(read, size)


def _examine_foreign(
    read: Read, size: int, session_id: str, reason: str, *, new_id: Callable[[], str]
) -> Examination:
    if size == 0:
        return Examination([Finding("empty", "the file is empty")])
    try:
        if size > FOREIGN_BYTES_MAX:
            raise NotForeign(f"it has more than {FOREIGN_BYTES_MAX >> 20} MiB")
        found = ForeignConversation(JsonDocument(FileBytes(read, size)), session_id)
    except NotForeign as no:
        try:
            sound = len(_FoundLines(read, size, session_id).places)
            below = "1 entry" if sound == 1 else f"{sound} entries"
            message = f"{reason}; {below} below it can be read, and a repair keeps them"
        except CannotRepair:
            message = f"{reason}, and as another program's document: {no}"
        return Examination([Finding("bad_header", message, offset=0)])
    row = new_row(session_id, user=found.header.user, created_at=found.header.created_at)
    message = "another program's file; it is taken in when it is first opened"
    entries = found.entries(new_id=new_id)
    return Examination([note("older_shape", message)], row=fold_all(row, entries))


class _LineExamination:
    """Goes through the pieces of a file of ours, and tracks which line comes next."""

    def __init__(self, header: Header, first: bytes, session_id: str) -> None:
        self._found = Examination()
        self._due = 1
        self._counted = empty_tail(header.created_at, len(first)).closing
        self._row = new_row(header.session_id, user=header.user, created_at=header.created_at)
        self._pairing = TurnPairing()
        self._unread: list[NoLine] = []
        """The pieces after the last sound line."""
        self._unknown: dict[str, int] = {}
        self._is_damaged = False
        if header.session_id != session_id:
            message = f"the file says it is conversation {header.session_id!r}"
            self._add(Finding("other_id", message, offset=0))
        if _CHECKED_HEADER.search(first) is None:
            message = "the first line has no checksum, so it is taken as it is"
            self._add(note("unchecked_header", message))

    def take(self, piece: Piece) -> None:
        if not isinstance(piece, SoundLine):
            self._pass_over(piece)
            return
        entry, start = piece.entry, piece.line.start
        self._report_before(start, entry.seq)
        self._due = entry.seq + 1
        self._counted = advance(self._counted, entry.kind, at=entry.timestamp, offset=start)
        self._row = fold(self._row, entry)
        self._pairing.add(entry)
        if isinstance(entry, AttachmentEntry):
            self._found.attachments[entry.file_id] = entry
        elif isinstance(entry, ToolResultsEntry):
            named = [result.blob for result in entry.results if result.blob is not None]
            self._found.blobs |= {blob.blob_id: blob for blob in named}
        if isinstance(entry, UnknownEntry):
            self._unknown[entry.kind] = self._unknown.get(entry.kind, 0) + 1
        elif wrong := wrong_reference(entry):
            self._add(Finding("bad_reference", f"entry {entry.seq}: {wrong}", offset=start))

    def _pass_over(self, piece: NoLine) -> None:
        """Adds an unreadable piece, joined with the one before it, because damage is often many
        short stretches."""
        last = self._unread[-1] if self._unread else None
        if last is None or None in (last.reason, piece.reason) or last.closing or piece.closing:
            self._unread.append(piece)
        else:
            self._unread[-1] = replace(last, end=piece.end)

    def _report_before(self, start: int, seq: int) -> None:
        """Reports the bytes and line numbers between the last sound line and this one."""
        lost = (self._due, seq - 1) if seq > self._due else None
        if self._unread:
            offset, reason = self._unread[0].start, self._unread[0].reason
            reason = "a closing line in the middle" if reason is None else reason
            message = f"{start - offset} bytes can't be read: {reason}{_lost(lost)}"
            self._add_damage("damaged", message, offset, lost)
        elif seq != self._due:
            message = f"line {seq} stands where {self._due} should{_lost(lost)}"
            self._add_damage("gap", message, start, lost)
        self._unread = []

    def finish(self, read: Read, size: int) -> Examination:
        self._found.row = self._row
        self._report_end(read, size)
        for entry in [] if self._is_damaged else self._pairing.unpaired():
            message = f"calls of entry {entry.seq} have no results, and their turn went on"
            seqs = (entry.seq, entry.seq)
            self._add(Finding("unpaired_calls", message, seqs=seqs))
        if not self._is_damaged and (turns := len(self._pairing.unfinished)):
            message = f"{plural(turns, 'turn')} without an end, left to the next start"
            self._add(note("unfinished_turn", message))
        for kind, lines in sorted(self._unknown.items()):
            message = f"{plural(lines, 'line')} of kind {kind!r}, which this version can't read"
            self._add(note("unknown_kind", message))
        return self._found

    def _report_end(self, read: Read, size: int) -> None:
        offset = self._unread[0].start if self._unread else size
        counted = max((each.closing.head_seq for each in self._unread if each.closing), default=0)
        if counted >= self._due:
            lost = (self._due, counted)
            message = f"the closing line counts entries up to {counted}{_lost(lost)}"
            self._add_damage("damaged", message, offset, lost)
        elif [piece.reason for piece in self._unread] == [None]:
            if self._unread[0].closing != self._counted and not self._is_damaged:
                message = "the closing line does not say what the lines say"
                self._add(Finding("bad_closing", message, offset=offset))
        elif (damage := _damage_at_end(read, size, offset)) is not None:
            self._add_damage("damaged", damage, offset, None)
        else:
            message = f"a torn append, {size - offset} bytes; it is set aside when it is opened"
            self._add(note("torn_tail", message, offset=offset))

    def _add_damage(
        self, code: str, message: str, offset: int, seqs: tuple[int, int] | None
    ) -> None:
        self._is_damaged = True
        self._add(Finding(code, message, offset=offset, seqs=seqs))

    def _add(self, finding: Finding) -> None:
        self._found.findings.append(finding)


def _damage_at_end(read: Read, size: int, offset: int) -> str | None:
    """The damage at the end of a file whose last sound line is not followed by one closing line;
    `None` if a crash can have caused it."""
    try:
        found = survey(read, size)
    except Damage as reason:
        return str(reason)
    return None if found.end == offset else "a line can't be read, though its checksum fits"


def _lost(seqs: tuple[int, int] | None) -> str:
    match seqs:
        case None:
            return ""
        case (first, last) if first == last:
            return f"; entry {first} is lost"
        case (first, last):
            return f"; entries {first} to {last} are lost"


# ------------------------------------------------------------------------------
# Correcting a header
#
# CRC-32 can correct one flipped bit in a line of known length: each bit is tried, and the
# one that makes the checksum fit is flipped back. A header that stands behind something else
# (a byte order mark, junk) is found. Any other is made anew: the file's name has the id and the
# day, the first entry the time; whose it is has to be known from elsewhere.

_BEGINNING_BYTES: Final = 16 * 1024
_OPENING: Final = b'"messages":['
_BEGIN_OF_HEADER: Final = re.compile(rb'\{"session_id":')
_END_OF_HEADER: Final = re.compile(rb',"crc":"([0-9a-f]{8})","messages":\[\n')
_END_OF_HEADER_BYTES: Final = len(b',"crc":"00000000","messages":[\n')


def rescue_header(beginning: bytes) -> bytes | None:
    """The first line as it was written, with its newline; `beginning` is the start of the file.
    `None` if flipping a single bit does not restore it."""
    data = bytearray(beginning)
    # The newline may be what flipped, or a flip may have made one too many.
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


FAULT_CODE: Final = "repaired"
LOST: Final = "lost"
"""The category of the entry that replaces one that could not be read."""
_REASON: Final = "the record of this turn was damaged and has been repaired"
_TOMBSTONE: Final = DebugEntry(
    category=LOST, content="this entry could not be read when the record was repaired"
)
_GAP_MAX: Final = 100_000
"""A line that is further away from the one before it does not belong to this file."""
_BEGIN: Final = b'{"seq":'
_END: Final = re.compile(rb',"crc":"[0-9a-f]{8}"\}')
_END_BYTES: Final = len(b',"crc":"00000000"}')
_ENDS_TRIED: Final = 8
_WINDOW_BYTES: Final = 1024 * 1024


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


class Repair(Struct, frozen=True, kw_only=True):
    parts: tuple[bytes | Span, ...]
    """The contents of the repaired file, header first."""
    says: tuple[str, ...]
    """The changes, one sentence each; empty if there is nothing to repair."""
    kept: int = 0
    """The number of unchanged entries."""
    lost: tuple[Span, ...] = ()
    """The entries (first, last) that were replaced by tombstones."""


def plan_repair(
    read: Read,
    size: int,
    *,
    session_id: str,
    clock: Callable[[], datetime],
    new_id: Callable[[], str],
    known: KnownElsewhere | None = None,
) -> Repair:
    """Raises `CannotRepair`."""
    found = _FoundLines(read, size, session_id)
    header = found.header or found.new_header(known or KnownElsewhere())
    return _RepairedLines(found, header, clock=clock, new_id=new_id).repair(read, size)


def sound_entries(read: Read, size: int, session_id: str) -> Iterator[Entry]:
    """All entries that can be read, in order."""
    try:
        found = _FoundLines(read, size, session_id)
    except CannotRepair:
        return
    for seq in sorted(found.places):
        yield decode_verified(found.line(seq))


class _FoundLines:
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
        relaid, first, reason = self._find_header(size)
        if self.header_line:
            self.header = decode_header(self.header_line)
            if self.header.session_id != session_id:
                raise CannotRepair(
                    f"the file says it is conversation {self.header.session_id!r}: give it the "
                    f"name {file_name(self.header.session_id, self.header.created_at)}"
                )
        if relaid is None:
            self._look(first=first, size=size)
            if not (self.header or self.places or self.counted):
                raise CannotRepair(f"{reason}, and it can't be told what it was")
            return
        for line in relaid.lines:
            self._add(peek_seq(line), line)
        counted = relaid.closing["head_seq"]
        self.counted = counted if isinstance(counted, int) else 0

    def _find_header(self, size: int) -> tuple[RelaidDocument | None, int, str]:
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
                self.says.append("the first line is put right: one bit of it had flipped")
                return None, len(rescued), reason
            if (within := header_within(beginning)) is not None:
                begin, self.header_line = within
                self.says.append("what stood before the first line stays in the original only")
                return None, begin + len(self.header_line), reason
        except LaterFormat as error:
            raise CannotRepair(f"{error}; it is left to the version that wrote it") from error
        if size > FOREIGN_BYTES_MAX:
            return None, 0, reason
        if (relaid := read_relaid(data)) is not None:
            self.header_line = relaid.header
            self.says.append("another program has changed its layout: it is written as it was")
            return relaid, 0, reason
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
            raise CannotRepair("its first line is lost, and with it whose it is: give --user NAME")
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
        self.says.append(f"the first line is lost: it is made anew, for user {known.user!r}")
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
            is_hole = after_hole(self._read, place) > place  # in which no line goes on
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
        wanted = min(max(held, _WINDOW_BYTES), self._stop - begin, self._left)
        block = self._read(begin, wanted) if wanted > 0 else b""
        self._data += block
        self._left -= len(block)
        return bool(block)


class _RepairedLines:
    """The lines that were found, in order, with the lines that have to be added."""

    def __init__(
        self,
        found: _FoundLines,
        header: Header,
        *,
        clock: Callable[[], datetime],
        new_id: Callable[[], str],
    ) -> None:
        self._tail = empty_tail(header.created_at, len(found.header_line))
        self._found = found
        self._clock = clock
        self._new_id = new_id
        self._parts: list[bytes | Span] = [found.header_line]
        self._pairing = TurnPairing()
        self._lost: list[Span] = []
        self._now = header.created_at
        """The time of the preceding entry, which is the best estimate for a lost one."""

    def repair(self, read: Read, size: int) -> Repair:
        found, says, kept = self._found, [*self._found.says], 0
        for seq in sorted(found.places):
            if seq - self._head_seq > _GAP_MAX:
                says.append(f"entry {seq} stays in the original: it does not belong here")
                continue
            self._bury_before(seq)
            self._keep(seq, read)
            kept += 1
        if 0 < found.counted - self._head_seq <= _GAP_MAX:
            self._bury_before(found.counted + 1)
        for first, last in self._lost:
            named = f"entry {first}" if first == last else f"entries {first} to {last}"
            place = "its place" if first == last else "their place"
            says.append(f"{named} can't be read: a tombstone stands in {place}")
        if dropped := sum(end - start for start, end in found.unreadable):
            start = found.unreadable[0][0]
            says.append(f"{dropped} bytes, from byte {start} on, stay in the original only")
        if found.twice:
            says.append(f"{plural(found.twice, 'line')} stood there twice: the first counts")
        says += self._endings()
        self._parts.append(self._tail.closing_line)
        parts = _joined(self._parts)
        if not says and not _is_as_it_was(parts, read, size):
            says.append(
                "the lines stay as they are, and what stands between and after them is put right"
            )
        return Repair(parts=parts, says=tuple(says), kept=kept, lost=tuple(self._lost))

    def _keep(self, seq: int, read: Read) -> None:
        place, line = self._found.places[seq], self._found.line(seq)
        added = self._added(decode_verified(line), line)
        if isinstance(place, bytes):
            self._parts.append(added)
            return
        # Its comma and its line end, where they are as they should be, are kept with it.
        whole = (place[0] - added.startswith(b","), place[1] + 1)
        is_whole = read(whole[0], whole[1] - whole[0]) == added
        self._parts.append(whole if is_whole else added)

    def _bury_before(self, seq: int) -> None:
        first = self._head_seq + 1
        if seq > first:
            self._lost.append((first, seq - 1))
        while self._head_seq + 1 < seq:
            self._append(_TOMBSTONE, at=self._now)

    def _append(self, draft: Entry, *, at: datetime) -> None:
        entry = replace(draft, seq=self._head_seq + 1, id=self._new_id(), timestamp=at)
        self._parts.append(self._added(entry, encode_line(entry)))

    def _added(self, entry: Entry, line: bytes) -> bytes:
        added, self._tail = self._tail.extended(entry, line)
        self._pairing.add(entry)
        self._now = entry.timestamp
        return added

    @property
    def _head_seq(self) -> int:
        return self._tail.closing.head_seq

    def _endings(self) -> list[str]:
        """Adds a result for every call and an end for every turn that lacks one."""
        says: list[str] = []
        unanswered, unended = list(self._pairing.waiting.values()), list(self._pairing.unfinished)
        for asked in unanswered:
            self._append(_skipped(asked, self._clock()), at=self._clock())
        for turn_id in unended:
            fault = FaultEntry(
                turn_id=turn_id, content=_REASON, code=FAULT_CODE, state="interrupted"
            )
            self._append(fault, at=self._clock())
        if unanswered:
            says.append(f"calls of {plural(len(unanswered), 'answer')} get a result: skipped")
        if unended:
            says.append(f"{plural(len(unended), 'turn')} without an end: ended, interrupted")
        return says


def _joined(parts: Iterable[bytes | Span]) -> tuple[bytes | Span, ...]:
    """Joins adjacent parts."""
    joined: list[bytes | Span] = [b""]
    for part in parts:
        last = joined[-1]
        if isinstance(part, tuple) and isinstance(last, tuple) and last[1] == part[0]:
            joined[-1] = (last[0], part[1])
        elif isinstance(part, bytes) and isinstance(last, bytes):
            joined[-1] = last + part
        else:
            joined.append(part)
    return tuple(joined)


def _is_as_it_was(parts: Iterable[bytes | Span], read: Read, size: int) -> bool:
    place = 0
    for part in parts:
        start, end = part if isinstance(part, tuple) else (place, place + len(part))
        if start != place or (isinstance(part, bytes) and read(start, len(part)) != part):
            return False
        place = end
    return place == size


def _skipped(asked: ModelOutputEntry, at: datetime) -> ToolResultsEntry:
    results = tuple(
        ToolCallResult(
            tool_call_id=call.tool_call_id,
            tool_name=call.tool_name,
            status="skipped",
            result=_REASON,
            duration=0.0,
            timestamp=at,
        )
        for call in asked.tool_calls
    )
    return ToolResultsEntry(turn_id=asked.turn_id, results=results, call=asked.call)


# ------------------------------------------------------------------------------
# Replacing the file
#
# The original gets a second name, synced, before anything else. Then the repaired file is
# written beside it, synced, and renamed. A crash at any moment loses no byte.


def repair_file(
    path: Path,
    session_id: str,
    *,
    clock: Callable[[], datetime],
    new_id: Callable[[], str],
    known: KnownElsewhere | None = None,
    dry_run: bool = False,
) -> Repaired:
    """Blocks. Raises `CannotRepair`, or `OSError`."""
    known = replace(known or KnownElsewhere(), day=day_of(path.name).date())
    with opened_to_read(_disk_of(path), path) as (read, size):
        plan = plan_repair(
            read, size, session_id=session_id, clock=clock, new_id=new_id, known=known
        )
    aside = apply_repair(path, plan).name if plan.says and not dry_run else None
    return Repaired(says=plan.says, kept=plan.kept, lost=plan.lost, original=aside)


def write_readable_copy(path: Path, copy: Path, session_id: str, *, known: KnownElsewhere) -> None:
    """Writes a repaired copy of the file, which itself stays unchanged."""
    long_ago, files = datetime.fromtimestamp(0, UTC), _disk_of(path)
    with opened_to_read(files, path) as (read, size):
        plan = plan_repair(
            read,
            size,
            session_id=session_id,
            clock=lambda: long_ago,
            new_id=new_entry_id,
            known=known,
        )
        files.remove(copy)  # left by a crash
        with opened(files, copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as made:
            write_blocks(files, made, _blocks(read, plan))


@contextmanager
def nobody_else_uses(data_dir: Path) -> Iterator[None]:
    """Holds the directory's lock, if there is one, and changes nothing in it. Raises
    `StorageError`."""
    try:
        lock = open_lock(data_dir, os.O_RDONLY)
    except FileNotFoundError:
        yield
        return
    except NotADirectoryError as error:
        raise StorageUnavailable(f"{data_dir} is no data directory: it is a file") from error
    except OSError as error:
        raise StorageUnavailable(
            f"it can't be told whether {data_dir} is in use: {error.strerror}"
        ) from error
    lock_directory(lock, data_dir)
    try:
        yield
    finally:
        os.close(lock)


def apply_repair(path: Path, repair: Repair) -> Path:
    """Replaces the file, and returns the name under which the original is kept."""
    disk = _disk_of(path)
    with opened(disk, path, os.O_RDONLY) as original:
        disk.sync(original)
        taken = disk.names_in(path.parent)
        aside = next(each for each in numbered(path, "before-repair") if each.name not in taken)
        give_second_name(disk, path, aside, path.with_name(f".{aside.name}.new"))
        disk.sync_directory(path.parent)
        write_new_file(disk, path, _blocks(reader_of(disk, original), repair))
    return aside


def _disk_of(path: Path) -> Disk:
    """The data directory in which this conversation's file is."""
    return Disk(path.parent.parent)


def _blocks(read: Read, repair: Repair) -> Iterator[bytes]:
    for part in repair.parts:
        if isinstance(part, bytes):
            yield part
            continue
        start, end = part
        for block in read_blocks(read, start, end):
            yield block
            start += len(block)
        if start < end:
            raise OSError(errno.EIO, "the file became shorter while it was read")
