"""Repairs a damaged file.

Every line whose checksum holds is kept byte for byte, also after a damaged one; in the place
of each other one stands a tombstone, so that numbers stay as they were. The original file is
kept aside. Calls without a result get one that says so, and turns without an end are ended,
so that no old prompt runs again. `plan_repair` only reads; `apply_repair` writes.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Final, TypeAlias
from zlib import crc32

from msgspec import Struct
from msgspec.structs import replace

from nplt_storage.codec import BadLine, decode_verified, encode_line, peek_seq, verify_line
from nplt_storage.entries import (
    DebugEntry,
    Entry,
    FaultEntry,
    ModelOutputEntry,
    ToolCallResult,
    ToolResultsEntry,
)
from nplt_storage.errors import StorageUnavailable
from nplt_storage.file_system import (
    FileOperations,
    give_second_name,
    lock_directory,
    opened,
    opened_to_read,
    read_blocks,
    reader_of,
    sync_directory,
    write_blocks,
    write_new_file,
)
from nplt_storage.files.examine import (
    FOREIGN_BYTES_MAX,
    LINE_BYTES_MAX,
    LineTooLong,
    NoLine,
    SoundLine,
    TurnPairing,
    our_header,
    pieces,
    plural,
)
from nplt_storage.files.foreign import (
    ForeignConversation,
    JsonDocument,
    NotForeign,
    RelaidDocument,
    read_relaid,
)
from nplt_storage.files.format import (
    BadHeader,
    LaterFormat,
    Read,
    decode_header,
    empty_tail,
    file_name,
    numbered,
)
from nplt_storage.ids import new_entry_id
from nplt_storage.store import Repaired

# ------------------------------------------------------------------------------
# Correcting a header
#
# CRC-32 can correct one flipped bit in a line of known length: each bit is tried, and the
# one that makes the checksum fit is flipped back. Nothing is guessed beyond that.

_BEGINNING_BYTES: Final = 16 * 1024
_OPENING: Final = b'"messages":['
_END_OF_HEADER: Final = re.compile(rb',"crc":"([0-9a-f]{8})","messages":\[\n')
_END_OF_HEADER_BYTES: Final = len(b',"crc":"00000000","messages":[\n')


def rescue_header(beginning: bytes) -> bytes | None:
    """The first line as it was written, newline included; `beginning` is where
    the file begins, and `None` means that no single flipped bit explains it."""
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


def _is_checked_header(line: bytes) -> bool:
    """A header without a checksum is taken as it is elsewhere; here it proves nothing. Its end
    is looked at first: this is asked for every bit of a line that may be long."""
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
"""The category of the entry that stands in the place of one that could not be read."""
_REASON: Final = "the record of this turn was damaged and has been repaired"
_TOMBSTONE: Final = DebugEntry(
    category=LOST, content="this entry could not be read when the record was repaired"
)
_GAP_MAX: Final = 100_000
"""A line that is further away from the one before does not belong here."""
_BEGIN: Final = re.compile(rb'\{"seq":')
_END: Final = re.compile(rb',"crc":"[0-9a-f]{8}"\}')
_ENDS_TRIED: Final = 8


class CannotRepair(Exception):
    """Nothing here tells which conversation this is; the file is as it was."""


Span: TypeAlias = tuple[int, int]
"""Bytes of the original: where they begin and end."""


class Repair(Struct, frozen=True, kw_only=True):
    parts: tuple[bytes | Span, ...]
    """What the repaired file consists of, its header first."""
    says: tuple[str, ...]
    """What is done, one sentence each; none: there is nothing to do."""
    kept: int = 0
    """Entries that are as they were."""
    lost: tuple[Span, ...] = ()
    """Entries (first, last) that have a tombstone instead."""


def plan_repair(
    read: Read,
    size: int,
    *,
    session_id: str,
    clock: Callable[[], datetime],
    new_id: Callable[[], str],
) -> Repair:
    """Raises `CannotRepair`."""
    found = _FoundLines(read, size, session_id)
    return _RepairedLines(found, clock=clock, new_id=new_id).repair(read, size)


def sound_entries(read: Read, size: int, session_id: str) -> Iterator[Entry]:
    """All that can be read of a file, in order; nothing if not even its header can."""
    try:
        found = _FoundLines(read, size, session_id)
    except CannotRepair:
        return
    for seq in sorted(found.places):
        yield decode_verified(found.line(seq))


class _FoundLines:
    """The header, and every line of a file whose checksum holds, wherever it stands."""

    header_line: bytes

    def __init__(self, read: Read, size: int, session_id: str) -> None:
        """Raises `CannotRepair`."""
        self._read = read
        self.says: list[str] = []
        """What is done to the header."""
        self.places: dict[int, Span | bytes] = {}
        """By number: where its object is in the file, or the object. The first one counts."""
        self.counted = 0
        """How many entries the closing line says there are."""
        self.twice = 0
        self.unreadable: list[Span] = []
        """Bytes in which no line was found."""
        relaid = self._find_header(size, session_id)
        self.header = decode_header(self.header_line)
        if self.header.session_id != session_id:
            raise CannotRepair(
                f"the file says it is conversation {self.header.session_id!r}: give it the name "
                f"{file_name(self.header.session_id, self.header.created_at)}"
            )
        if relaid is None:
            self._look(first=len(self.header_line), size=size)
            return
        for line in relaid.lines:
            self._add(peek_seq(line), line)
        counted = relaid.closing["head_seq"]
        self.counted = counted if isinstance(counted, int) else 0

    def _find_header(self, size: int, session_id: str) -> RelaidDocument | None:
        """Gives the whole document if another program has laid it out anew."""
        read = self._read
        try:
            self.header_line = read(0, our_header(read, size)[1])
        except LaterFormat as reason:
            raise CannotRepair(f"{reason}; it is left to the version that wrote it") from reason
        except (BadHeader, LineTooLong) as reason:
            rescued = rescue_header(read(0, _BEGINNING_BYTES))
            if rescued is not None:
                self.header_line = rescued
                self.says.append("the first line is put right: one bit of it had flipped")
                return None
            data = read(0, size) if size <= FOREIGN_BYTES_MAX else b""
            relaid = read_relaid(data)
            if relaid is not None:
                self.header_line = relaid.header
                self.says.append("another program has changed its layout: it is written as it was")
                return relaid
            with suppress(NotForeign):
                ForeignConversation(JsonDocument(data), session_id)
                raise CannotRepair(
                    "this is another program's file, and nothing is wrong with it; "
                    "it is taken in when it is first opened"
                ) from None
            raise CannotRepair(f"{reason}, and it can't be told what it was") from reason
        return None

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
                self.unreadable.append((piece.start, piece.end))

    def _look_within(self, piece: NoLine) -> bool:
        """A line may be whole and only its line end, or the comma before it, be broken."""
        if piece.end - piece.start > LINE_BYTES_MAX:
            return False
        data = self._read(piece.start, piece.end - piece.start)
        place, found = 0, False
        while begin := _BEGIN.search(data, place):
            place = begin.end()
            for end in islice(_END.finditer(data, begin.end()), _ENDS_TRIED):
                line = data[begin.start() : end.end()]
                try:
                    seq = verify_line(line)
                    decode_verified(line)
                except BadLine:
                    continue
                self._add(seq, (piece.start + begin.start(), piece.start + end.end()))
                place, found = end.end(), True
                break
        return found

    def _add(self, seq: int, place: Span | bytes) -> None:
        if seq in self.places:
            self.twice += 1
        else:
            self.places[seq] = place


class _RepairedLines:
    """The lines that were found, in order, and what has to be added to them."""

    def __init__(
        self, found: _FoundLines, *, clock: Callable[[], datetime], new_id: Callable[[], str]
    ) -> None:
        self._tail = empty_tail(found.header.created_at, len(found.header_line))
        self._found = found
        self._clock = clock
        self._new_id = new_id
        self._parts: list[bytes | Span] = [found.header_line]
        self._pairing = TurnPairing()
        self._lost: list[Span] = []
        self._now = found.header.created_at
        """Of the entry before: when one was lost is not known better."""

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
        """Adds what makes it a record in which every call has its result and every turn its
        end."""
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
    """Neighbours are one part."""
    joined: list[bytes | Span] = []
    for part in parts:
        last = joined[-1] if joined else None
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
        if isinstance(part, tuple):
            if part[0] != place:
                return False
            place = part[1]
        else:
            if read(place, len(part)) != part:
                return False
            place += len(part)
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
    dry_run: bool = False,
) -> Repaired:
    """Blocks. Raises `CannotRepair`, or `OSError`."""
    with opened_to_read(FileOperations(), path) as (read, size):
        plan = plan_repair(read, size, session_id=session_id, clock=clock, new_id=new_id)
    aside = apply_repair(path, plan).name if plan.says and not dry_run else None
    return Repaired(says=plan.says, kept=plan.kept, lost=plan.lost, original=aside)


def write_readable_copy(path: Path, copy: Path, session_id: str) -> None:
    """What a repair would make of the file; the file stays as it is."""
    long_ago, files = datetime.fromtimestamp(0, UTC), FileOperations()
    with opened_to_read(files, path) as (read, size):
        plan = plan_repair(
            read, size, session_id=session_id, clock=lambda: long_ago, new_id=new_entry_id
        )
        files.remove(copy)  # left by a crash
        with opened(files, copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as made:
            write_blocks(files, made, _blocks(read, plan))


@contextmanager
def nobody_else_uses(data_dir: Path) -> Iterator[None]:
    """Holds the directory's lock, if it has one, and touches nothing in it. Raises
    `StorageError`."""
    try:
        lock = os.open(data_dir / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield
        return
    except NotADirectoryError as error:
        raise StorageUnavailable(f"{data_dir} is no data directory: it is a file") from error
    except OSError as error:
        raise StorageUnavailable(
            f"it can't be told whether {data_dir} is in use: {error.strerror} (lock)"
        ) from error
    lock_directory(lock, data_dir)
    try:
        yield
    finally:
        os.close(lock)


def apply_repair(path: Path, repair: Repair) -> Path:
    """Gives the name under which the original is kept."""
    files = FileOperations()
    with opened(files, path, os.O_RDONLY) as original:
        files.sync(original)
        aside = next(each for each in numbered(path, "before-repair") if not each.exists())
        give_second_name(path, aside, path.with_name(f".{aside.name}.new"))
        sync_directory(path.parent)
        write_new_file(files, path, _blocks(reader_of(files, original), repair))
    return aside


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
