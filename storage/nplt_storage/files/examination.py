"""Examines one conversation's file from end to end.

Damage does not end the examination: the lines after it are read too, so that the report can
say what is lost and what is not. A finding is *wrong* (something is lost or can't be relied on,
and a person should act) or a *note* (worth knowing; no action is needed).

Calls without results and turns without an end are not errors of the file, but a model may fail
on the former, and the next start would resume the latter.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from nplt_storage.active_entries import is_in
from nplt_storage.entries import (
    AttachmentEntry,
    BlobReference,
    Entry,
    FaultEntry,
    ForkedEntry,
    LaterChangeEntry,
    LaterPromptEntry,
    ModelInputEntry,
    ModelOutputEntry,
    RollbackEntry,
    ToolResultsEntry,
    UnknownEntry,
    wrong_reference,
)
from nplt_storage.files.foreign import ForeignConversation
from nplt_storage.files.format import (
    BadHeader,
    Damage,
    Header,
    LaterFormat,
    LineTooLong,
    Read,
    advance,
    empty_tail,
    survey,
)
from nplt_storage.files.json_document import FileBytes, JsonDocument, NotForeign
from nplt_storage.files.salvage import (
    FOREIGN_BYTES_MAX,
    CannotRepair,
    FoundLines,
    NoLine,
    Piece,
    SoundLine,
    our_header,
    pieces,
)
from nplt_storage.history import Ranges
from nplt_storage.json_values import JsonObject
from nplt_storage.rows import ConversationRow, fold, fold_all, new_row

_NO_RANGES: Final[Ranges] = ()


class TurnPairing(Struct):
    unfinished: dict[str, int] = field(default_factory=dict)
    """Turns that were prompted and have not ended, each with its prompt's number."""
    later: set[str] = field(default_factory=set)
    """Turns whose time has not come, and that are not held."""
    waiting: dict[tuple[str, int], ModelOutputEntry] = field(default_factory=dict)
    """Outputs whose calls have no results, by turn and call."""
    _latest: dict[str, int] = field(default_factory=dict)
    """The latest output of each turn that has not ended."""

    def add(self, entry: Entry) -> None:
        self._add_later(entry)
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
                if entry.awaits_client:
                    self._end(turn_id)
            case FaultEntry(turn_id=str(turn_id)):
                self._end(turn_id)
            case ForkedEntry() | RollbackEntry():
                # Turns that have not ended by now are not resumed.
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

    def _add_later(self, entry: Entry) -> None:
        match entry:
            case LaterPromptEntry(turn_id=str(turn_id)):
                self.later.add(turn_id)
            case LaterChangeEntry(turn_id=str(turn_id), change="released"):
                self.later.add(turn_id)
            case LaterChangeEntry(turn_id=str(turn_id)) | ModelInputEntry(turn_id=str(turn_id)):
                self.later.discard(turn_id)
            case ForkedEntry():
                self.later.clear()
            case _:
                pass

    def unpaired(self) -> list[ModelOutputEntry]:
        """The outputs whose calls will get no results: their turn continued or ended without
        them."""
        return [
            asked
            for (turn_id, call), asked in self.waiting.items()
            if self._latest.get(turn_id) != call
        ]

    def _end(self, turn_id: str) -> None:
        self.unfinished.pop(turn_id, None)
        self._latest.pop(turn_id, None)


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
            sound = len(FoundLines(read, size, session_id).places)
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
            message = f"line {seq} is where line {self._due} should be{_lost(lost)}"
            self._add_damage("gap", message, start, lost)
        self._unread = []

    def finish(self, read: Read, size: int) -> Examination:
        self._found.row = self._row
        self._report_end(read, size)
        for entry in [] if self._is_damaged else self._pairing.unpaired():
            message = f"calls of entry {entry.seq} have no results, and their turn continued"
            seqs = (entry.seq, entry.seq)
            self._add(Finding("unpaired_calls", message, seqs=seqs))
        if not self._is_damaged and (turns := len(self._pairing.unfinished)):
            message = f"{plural(turns, 'turn')} without an end; the next start ends them"
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
                message = "the closing line does not match the lines"
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
