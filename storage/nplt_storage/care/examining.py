"""One conversation's file, read from end to end: what is in it, what is wrong with it.

Pure, but for the `read` it is given. Damage in one place does not end the
examination: the lines behind it are looked at too, so that the report can say
what is lost and what is not. The same `fold` as everywhere makes the row a
list should show.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from nplt_storage.care.findings import Finding, note, plural
from nplt_storage.care.pairing import Pairing
from nplt_storage.care.pieces import (
    FOREIGN_BYTES_MAX,
    Closed,
    Sound,
    TooLong,
    Unreadable,
    bounded,
    our_header,
    pieces,
)
from nplt_storage.conversation.rows import ConversationRow, fold, fold_all, new_row
from nplt_storage.facts.entries import AttachmentEntry, Entry, ToolResultsEntry, UnknownEntry
from nplt_storage.facts.references import wrong_reference
from nplt_storage.facts.tool_calls import BlobReference
from nplt_storage.files.foreign import NotForeign, read_foreign
from nplt_storage.files.layout import (
    BadHeader,
    Closing,
    Header,
    LaterFormat,
    advance,
    empty_closing,
)
from nplt_storage.files.reader import Read
from nplt_storage.files.recovery import Damage, survey

_CHECKED_HEADER: Final = re.compile(rb',"crc":"[0-9a-f]{8}","messages":\[\n\Z')


@dataclass(slots=True)
class Examination:
    findings: list[Finding] = field(default_factory=list)
    row: ConversationRow | None = None
    """`None` if not even the header can be read."""
    blobs: dict[str, BlobReference] = field(default_factory=dict)
    attachments: dict[str, AttachmentEntry] = field(default_factory=dict)

    @property
    def is_sound(self) -> bool:
        return not any(finding.is_wrong for finding in self.findings)

    def take_in(self, entry: Entry) -> None:
        """What the entry says stands beside the file."""
        if isinstance(entry, AttachmentEntry):
            self.attachments[entry.file_id] = entry
        elif isinstance(entry, ToolResultsEntry):
            for result in entry.results:
                if result.blob is not None:
                    self.blobs[result.blob.blob_id] = result.blob


def examine_file(
    read: Read, size: int, *, session_id: str, new_id: Callable[[], str]
) -> Examination:
    """`session_id` is what the file's name says."""
    found = Examination()
    try:
        header, first = our_header(read, size)
    except LaterFormat as reason:
        found.findings.append(Finding(code="later_format", message=str(reason)))
    except (BadHeader, TooLong) as reason:
        _examine_foreign(read, size, session_id, found, str(reason), new_id=new_id)
    else:
        _examine_ours(read, size, header, first, session_id, found)
    return found


def _examine_foreign(
    read: Read,
    size: int,
    session_id: str,
    found: Examination,
    reason: str,
    *,
    new_id: Callable[[], str],
) -> None:
    if size == 0:
        found.findings.append(Finding(code="empty", message="the file is empty"))
        return
    if size > FOREIGN_BYTES_MAX:
        found.findings.append(Finding(code="bad_header", message=reason, offset=0))
        return
    try:
        header, entries = read_foreign(read(0, size), session_id, new_id=new_id)
    except NotForeign as no:
        message = f"{reason}, and as another program's document: {no}"
        found.findings.append(Finding(code="bad_header", message=message, offset=0))
        return
    found.row = fold_all(
        new_row(session_id, user=header.user, created_at=header.created_at), entries
    )
    found.findings.append(
        note("older_shape", "another program's file; it is taken in when it is first opened")
    )


def _examine_ours(
    read: Read, size: int, header: Header, first: int, session_id: str, found: Examination
) -> None:
    if header.session_id != session_id:
        message = f"the file says it is conversation {header.session_id!r}"
        found.findings.append(Finding(code="other_id", message=message, offset=0))
    if _CHECKED_HEADER.search(read(0, first)) is None:
        found.findings.append(
            note("unchecked_header", "the first line has no checksum, so it is taken as it is")
        )
    walk = _Walk(found, header, first)
    for piece in pieces(read, first=first, size=size):
        match piece:
            case Sound():
                walk.take_line(piece)
            case Closed():
                walk.take_closing(piece)
            case Unreadable():
                walk.take_unreadable(piece)
    walk.finish(read, size)


class _Walk:
    """Goes through the pieces of a file of ours, and knows what should come next."""

    def __init__(self, found: Examination, header: Header, first: int) -> None:
        self._found = found
        self._due = 1
        self._counted = empty_closing(header, first)
        self._row = new_row(header.session_id, user=header.user, created_at=header.created_at)
        self._pairing = Pairing()
        self._unread: list[Unreadable | Closed] = []
        """What came after the last sound line."""
        self._unknown: dict[str, int] = {}
        self._is_damaged = False

    def take_line(self, piece: Sound) -> None:
        entry, start = piece.entry, piece.line.start
        self._report_before(start, entry.seq)
        self._due = entry.seq + 1
        self._counted = advance(self._counted, entry.kind, at=entry.timestamp, offset=start)
        if self._counted.head_seq != entry.seq:
            self._counted = replace(self._counted, head_seq=entry.seq)
        self._row = fold(self._row, entry)
        self._pairing.add(entry)
        self._found.take_in(entry)
        if isinstance(entry, UnknownEntry):
            self._unknown[entry.kind] = self._unknown.get(entry.kind, 0) + 1
        elif wrong := wrong_reference(entry):
            message = f"entry {entry.seq}: {wrong}"
            self._add(Finding(code="bad_reference", message=message, offset=start))

    def take_closing(self, piece: Closed) -> None:
        self._unread.append(piece)

    def take_unreadable(self, piece: Unreadable) -> None:
        self._unread.append(piece)

    def _report_before(self, start: int, seq: int) -> None:
        """What stands between this line and the sound one before it."""
        offset = self._unread[0].start if self._unread else start
        lost = (self._due, seq - 1) if seq > self._due else None
        if self._unread:
            bad = self._unread[0]
            reason = bad.reason if isinstance(bad, Unreadable) else "a closing line in the middle"
            size = start - offset
            message = f"{size} bytes can't be read: {reason}{_lost(lost)}"
            self._add(Finding(code="damaged", message=message, offset=offset, seqs=lost))
        elif seq != self._due:
            message = f"line {seq} stands where {self._due} should{_lost(lost)}"
            self._add(Finding(code="gap", message=message, offset=offset, seqs=lost))
        self._is_damaged |= bool(self._unread) or seq != self._due
        self._unread = []

    def finish(self, read: Read, size: int) -> None:
        self._found.row = self._row
        self._report_end(read, size)
        if not self._is_damaged:
            self._report_turns()
        for kind, lines in sorted(self._unknown.items()):
            message = f"{plural(lines, 'line')} of kind {kind!r}, which this version can't read"
            self._add(note("unknown_kind", message))

    def _report_turns(self) -> None:
        for entry in self._pairing.unpaired():
            message = f"calls of entry {entry.seq} have no results, and their turn went on"
            seqs = (entry.seq, entry.seq)
            self._add(Finding(code="unpaired_calls", message=message, seqs=seqs))
        if turns := len(self._pairing.unfinished):
            message = f"{plural(turns, 'turn')} without an end, left to the next start"
            self._add(note("unfinished_turn", message))

    def _report_end(self, read: Read, size: int) -> None:
        offset = self._unread[0].start if self._unread else size
        lost = self._lost_at_end()
        if lost is not None:
            message = f"the closing line counts entries up to {lost[1]}{_lost(lost)}"
            self._is_damaged = True
            self._add(Finding(code="damaged", message=message, offset=offset, seqs=lost))
        elif (closing := self._only_closing()) is not None:
            if closing != self._counted and not self._is_damaged:
                message = "the closing line does not say what the lines say"
                self._add(Finding(code="bad_closing", message=message, offset=offset))
        elif (damage := _damage_at_end(read, size)) is not None:
            self._is_damaged = True
            self._add(Finding(code="damaged", message=damage, offset=offset))
        else:
            message = f"a torn append, {size - offset} bytes; it is set aside when it is opened"
            self._add(note("torn_tail", message, offset=offset))

    def _lost_at_end(self) -> tuple[int, int] | None:
        counted = [piece.closing.head_seq for piece in self._unread if piece.closing is not None]
        head_seq = max(counted, default=0)
        return (self._due, head_seq) if head_seq >= self._due else None

    def _only_closing(self) -> Closing | None:
        match self._unread:
            case [Closed() as piece]:
                return piece.closing
            case _:
                return None

    def _add(self, finding: Finding) -> None:
        self._found.findings.append(finding)


def _damage_at_end(read: Read, size: int) -> str | None:
    """What follows the last sound line is not one closing line. The opening rule
    says whether a crash can have left that."""
    try:
        survey(bounded(read), size)
    except (Damage, TooLong) as reason:
        return str(reason)
    return None


def _lost(seqs: tuple[int, int] | None) -> str:
    match seqs:
        case None:
            return ""
        case (first, last) if first == last:
            return f"; entry {first} is lost"
        case (first, last):
            return f"; entries {first} to {last} are lost"
