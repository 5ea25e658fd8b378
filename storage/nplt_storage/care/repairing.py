"""Making a damaged file one that can be used again, by cutting and appending only.

What stands before the first bad byte is kept byte for byte; what stands behind
it stays in the original, which is kept aside. Calls that are left without a
result get one that says so, and turns without an end are ended, because nobody
must run an old prompt again by accident. This only reads, and says what is to
be done; `replacing` does it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from nplt_storage.care.findings import plural
from nplt_storage.care.header_rescue import rescue_header
from nplt_storage.care.pairing import Pairing
from nplt_storage.care.pieces import (
    FOREIGN_BYTES_MAX,
    Closed,
    Piece,
    Sound,
    TooLong,
    our_header,
    pieces,
)
from nplt_storage.facts.entries import Entry, FaultEntry, ModelOutputEntry, ToolResultsEntry
from nplt_storage.facts.lines import encode_line
from nplt_storage.facts.tool_calls import ToolCallResult
from nplt_storage.files.foreign import NotForeign, read_foreign
from nplt_storage.files.layout import (
    BadHeader,
    Closing,
    Header,
    LaterFormat,
    advance,
    decode_header,
    empty_closing,
    encode_closing,
)
from nplt_storage.files.reader import Read

FAULT_CODE: Final = "repaired"
_REASON: Final = "the record of this turn was damaged and has been repaired"
_BEGINNING_BYTES: Final = 16 * 1024


class CannotRepair(Exception):
    """Cutting and appending can't help here; the file is as it was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    header: bytes
    first: int
    """The bytes of the original from here up to `through` are kept."""
    through: int
    added: bytes
    """Lines that are appended, and the closing line."""
    says: tuple[str, ...]
    """What is done, one sentence each; none: there is nothing to do."""


def plan_repair(
    read: Read,
    size: int,
    *,
    session_id: str,
    clock: Callable[[], datetime],
    new_id: Callable[[], str],
) -> Repair:
    """Raises `CannotRepair`."""
    header, line, says = _header_of(read, size, session_id)
    first = len(line)
    kept = _Kept(header, first)
    found = pieces(read, first=first, size=size)
    says += kept.take(found, size)
    lines = list(kept.endings(clock, new_id))
    says += kept.said_of_endings()
    added = b"".join(lines) + encode_closing(kept.closing)
    if not says and read(kept.through, size - kept.through) != added:
        says.append("the closing line is written again, as the lines have it")
    return Repair(header=line, first=first, through=kept.through, added=added, says=tuple(says))


def _header_of(read: Read, size: int, session_id: str) -> tuple[Header, bytes, list[str]]:
    says: list[str] = []
    try:
        header, first = our_header(read, size)
        line = read(0, first)
    except LaterFormat as reason:
        raise CannotRepair(f"{reason}; it is left to the version that wrote it") from reason
    except (BadHeader, TooLong) as reason:
        _refuse_older_shape(read, size, session_id)
        rescued = rescue_header(read(0, _BEGINNING_BYTES))
        if rescued is None:
            raise CannotRepair(f"{reason}, and it can't be told what it was") from reason
        header, line = decode_header(rescued), rescued
        says.append("the first line is put right: one bit of it had flipped")
    if header.session_id != session_id:
        raise CannotRepair(
            f"the file says it is conversation {header.session_id!r}: give it the name "
            f"session_{header.created_at:%Y%m%d}_{header.session_id}.json"
        )
    return header, line, says


def _refuse_older_shape(read: Read, size: int, session_id: str) -> None:
    if size <= FOREIGN_BYTES_MAX:
        try:
            read_foreign(read(0, size), session_id, new_id=lambda: "")
        except NotForeign:
            return
        raise CannotRepair(
            "this is another program's file, and nothing is wrong with it; "
            "it is taken in when it is first opened"
        )


class _Kept:
    """The sound part of a file, and what has to be added to it."""

    def __init__(self, header: Header, first: int) -> None:
        self.closing: Closing = empty_closing(header, first)
        self.through = first
        self._pairing = Pairing()
        self._unanswered: list[ModelOutputEntry] = []
        self._unended: list[str] = []

    def take(self, found: Iterator[Piece], size: int) -> list[str]:
        """Keeps what is sound; gives what there is to say about the rest."""
        behind: list[type[Piece]] = []
        counted = 0
        for piece in found:
            if not behind and isinstance(piece, Sound) and self._follows(piece):
                self._keep(piece)
            else:
                behind.append(type(piece))
            if not isinstance(piece, Sound) and piece.closing is not None:
                counted = max(counted, piece.closing.head_seq)
        gone = [] if Sound in behind else self._said_of_gone(counted)
        if behind in ([], [Closed]):
            return gone
        says = [f"it is cut at byte {self.through}, after entry {self.closing.head_seq}"]
        lost = f"{size - self.through} bytes behind that stay in the original"
        if lines := behind.count(Sound):
            lost += f", {plural(lines, 'sound line')} among them"
        return [*says, lost, *gone]

    def _said_of_gone(self, counted: int) -> list[str]:
        """`counted` is how many entries the closing line says there are."""
        first = self.closing.head_seq + 1
        if counted < first:
            return []
        which = f"entry {first} is" if counted == first else f"entries {first} to {counted} are"
        return [f"{which} lost: counted in the closing line, and in no line that can be read"]

    def _follows(self, piece: Sound) -> bool:
        return piece.line.start == self.through and piece.entry.seq == self.closing.head_seq + 1

    def _keep(self, piece: Sound) -> None:
        self._count(piece.entry)
        self.through = piece.line.end

    def _count(self, entry: Entry, offset: int | None = None) -> None:
        at = self.through if offset is None else offset
        self.closing = advance(self.closing, entry.kind, at=entry.timestamp, offset=at)
        self._pairing.add(entry)

    def endings(self, clock: Callable[[], datetime], new_id: Callable[[], str]) -> Iterator[bytes]:
        """The lines that make it a record in which every call has its result and
        every turn its end."""
        self._unanswered = list(self._pairing.waiting.values())
        self._unended = list(self._pairing.unfinished)
        drafts: list[Entry] = [_skipped(asked, clock()) for asked in self._unanswered]
        drafts += [
            FaultEntry(turn_id=turn_id, content=_REASON, code=FAULT_CODE, state="interrupted")
            for turn_id in self._unended
        ]
        offset = self.through
        for draft in drafts:
            seq = self.closing.head_seq + 1
            entry = replace(draft, seq=seq, id=new_id(), timestamp=clock())
            line = b"%b%b\n" % (b"," if seq > 1 else b"", encode_line(entry))
            self._count(entry, offset)
            offset += len(line)
            yield line

    def said_of_endings(self) -> list[str]:
        says: list[str] = []
        if self._unanswered:
            says.append(f"calls of {plural(len(self._unanswered), 'answer')} get a result: skipped")
        if self._unended:
            says.append(f"{plural(len(self._unended), 'turn')} without an end: ended, interrupted")
        return says


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
