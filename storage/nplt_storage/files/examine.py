"""Examines one conversation's file from end to end.

Pure functions, except for the `read` that is passed in. Damage does not end the
examination: the lines after it are read too, so that the report can say what is lost
and what is not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeAlias

from msgspec import Struct, field

from nplt_storage.codec import BadLine, decode_verified
from nplt_storage.entries import (
    AttachmentEntry,
    BlobReference,
    Entry,
    FaultEntry,
    ForkedEntry,
    ModelInputEntry,
    ModelOutputEntry,
    RollbackEntry,
    ToolResultsEntry,
    UnknownEntry,
    wrong_reference,
)
from nplt_storage.file_system import FileOperations, opened_to_read
from nplt_storage.files.foreign import ForeignConversation, JsonDocument, NotForeign
from nplt_storage.files.format import (
    BadHeader,
    Closing,
    Damage,
    Header,
    LaterFormat,
    Line,
    Read,
    advance,
    decode_closing,
    empty_tail,
    read_header,
    segments_forward,
    survey,
    verified,
)
from nplt_storage.history import Ranges, is_in
from nplt_storage.json_values import JsonObject
from nplt_storage.rows import ConversationRow, fold, fold_all, new_row

# ------------------------------------------------------------------------------
# Splitting a file into lines, whatever state it is in
#
# Every stretch of bytes after the header is a line that verifies, a closing line, or
# unreadable. Nothing here raises for the content of a file, and memory is bounded by the
# longest line allowed.

LINE_BYTES_MAX: Final = 256 * 1024 * 1024
FOREIGN_BYTES_MAX: Final = 256 * 1024 * 1024
"""Another program's document is read in one go; a larger one is not looked into."""
_CLOSING_BYTES_MAX: Final = 256
_CLOSING_BEGINS: Final = b'],"updated_at":'


class LineTooLong(Exception):
    """No newline for so long that this can't be one of our files."""


class SoundLine(Struct, frozen=True, kw_only=True):
    line: Line
    entry: Entry


class NoLine(Struct, frozen=True, kw_only=True):
    """A closing line, or bytes that can't be read."""

    start: int
    end: int
    reason: str | None = None
    """Why it can't be read; `None`: it is exactly one closing line."""
    closing: Closing | None = None
    """Also of what can't be read, if it ends like one: the newline before it may be what
    broke."""


Piece: TypeAlias = SoundLine | NoLine


def bounded(read: Read, bytes_max: int = LINE_BYTES_MAX) -> Read:
    """Refuses to hold more of a line than any line has."""

    def read_some(offset: int, length: int) -> bytes:
        if length > bytes_max:
            raise LineTooLong(f"more than {bytes_max >> 20} MiB without the end of a line")
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
            start, reached = segment.start, segment.start + len(segment.data)
            if (closing := decode_closing(segment.data)) is not None:
                yield NoLine(start=start, end=reached, closing=closing)
                continue
            try:
                line = verified(segment, first=first)
                piece: Piece = SoundLine(line=line, entry=decode_verified(line.data))
            except BadLine as reason:
                at = segment.data.rfind(_CLOSING_BEGINS, -_CLOSING_BYTES_MAX)
                closing = decode_closing(segment.data[at:]) if at >= 0 else None
                piece = NoLine(start=start, end=reached, reason=str(reason), closing=closing)
            yield piece
    except LineTooLong as reason:
        yield NoLine(start=reached, end=size, reason=str(reason))


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


class Finding(Struct, frozen=True, kw_only=True):
    code: str
    """A word for a program; `message` is the sentence for a person."""
    message: str
    is_wrong: bool = True
    file: str = ""
    """Relative to the data directory."""
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
    return Finding(code=code, message=message, is_wrong=False, file=file, offset=offset)


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
    """`session_id` is what the file's name says."""
    try:
        header, first = our_header(read, size)
    except LaterFormat as reason:
        return Examination([Finding(code="later_format", message=str(reason))])
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
        return Examination([Finding(code="empty", message="the file is empty")])
    if size > FOREIGN_BYTES_MAX:
        return Examination([Finding(code="bad_header", message=reason, offset=0)])
    try:
        found = ForeignConversation(JsonDocument(read(0, size)), session_id)
    except NotForeign as no:
        message = f"{reason}, and as another program's document: {no}"
        return Examination([Finding(code="bad_header", message=message, offset=0)])
    row = new_row(session_id, user=found.header.user, created_at=found.header.created_at)
    message = "another program's file; it is taken in when it is first opened"
    entries = found.entries(new_id=new_id)
    return Examination([note("older_shape", message)], row=fold_all(row, entries))


class _LineExamination:
    """Goes through the pieces of a file of ours, and knows what should come next."""

    def __init__(self, header: Header, first: bytes, session_id: str) -> None:
        self._found = Examination()
        self._due = 1
        self._counted = empty_tail(header.created_at, len(first)).closing
        self._row = new_row(header.session_id, user=header.user, created_at=header.created_at)
        self._pairing = TurnPairing()
        self._unread: list[NoLine] = []
        """What came after the last sound line."""
        self._unknown: dict[str, int] = {}
        self._is_damaged = False
        if header.session_id != session_id:
            message = f"the file says it is conversation {header.session_id!r}"
            self._add(Finding(code="other_id", message=message, offset=0))
        if _CHECKED_HEADER.search(first) is None:
            message = "the first line has no checksum, so it is taken as it is"
            self._add(note("unchecked_header", message))

    def take(self, piece: Piece) -> None:
        if not isinstance(piece, SoundLine):
            self._unread.append(piece)
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
            message = f"entry {entry.seq}: {wrong}"
            self._add(Finding(code="bad_reference", message=message, offset=start))

    def _report_before(self, start: int, seq: int) -> None:
        """What stands between this line and the sound one before it."""
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
            self._add(Finding(code="unpaired_calls", message=message, seqs=seqs))
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
                self._add(Finding(code="bad_closing", message=message, offset=offset))
        elif (damage := _damage_at_end(read, size, offset)) is not None:
            self._add_damage("damaged", damage, offset, None)
        else:
            message = f"a torn append, {size - offset} bytes; it is set aside when it is opened"
            self._add(note("torn_tail", message, offset=offset))

    def _add_damage(
        self, code: str, message: str, offset: int, seqs: tuple[int, int] | None
    ) -> None:
        self._is_damaged = True
        self._add(Finding(code=code, message=message, offset=offset, seqs=seqs))

    def _add(self, finding: Finding) -> None:
        self._found.findings.append(finding)


def _damage_at_end(read: Read, size: int, offset: int) -> str | None:
    """What follows the last sound line, from `offset` on, is not one closing line. The
    opening rule says whether a crash can have left that."""
    try:
        found = survey(bounded(read), size)
    except (Damage, LineTooLong) as reason:
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


def read_beginning(path: Path, length: int) -> bytes:
    """Of a regular file, never more than it holds. Raises `OSError`."""
    with opened_to_read(FileOperations(), path) as (read, size):
        return read(0, min(length, size))
