"""Repairs a damaged file by cutting and appending only.

The lines before the first bad byte are kept byte for byte; the original file is kept
aside. Calls without a result get one that says so, and turns without an end are ended,
so that no old prompt runs again. `plan_repair` only reads; `apply_repair` writes.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import BinaryIO, Final
from zlib import crc32

from msgspec import Struct
from msgspec.structs import replace

from nplt_storage.codec import encode_line
from nplt_storage.entries import (
    Entry,
    FaultEntry,
    ModelOutputEntry,
    ToolCallResult,
    ToolResultsEntry,
)
from nplt_storage.errors import StorageUnavailable
from nplt_storage.file_system import PRIVATE_FILE, give_second_name, lock_directory, sync_directory
from nplt_storage.files.foreign import NotForeign, read_foreign
from nplt_storage.files.format import (
    BadHeader,
    Header,
    LaterFormat,
    Read,
    decode_header,
    empty_tail,
    file_name,
)
from nplt_storage.maintenance.examine import (
    FOREIGN_BYTES_MAX,
    ClosingFound,
    LineTooLong,
    Piece,
    SoundLine,
    TurnPairing,
    our_header,
    pieces,
    plural,
)

# ------------------------------------------------------------------------------
# Correcting a header
#
# CRC-32 can correct one flipped bit in a line of known length: each bit is tried, and the
# one that makes the checksum fit is flipped back. Nothing is guessed beyond that.

_LOOKED_AT_BYTES_MAX: Final = 16 * 1024
_OPENING: Final = b'"messages":['
_CHECKED: Final = re.compile(rb'(.*),"crc":"([0-9a-f]{8})","messages":\[\n', re.DOTALL)


def rescue_header(beginning: bytes) -> bytes | None:
    """The first line as it was written, newline included; `beginning` is where
    the file begins, and `None` means that no single flipped bit explains it."""
    data = bytearray(beginning[:_LOOKED_AT_BYTES_MAX])
    found: set[bytes] = set()
    for place in range(_end_of_search(data)):
        for bit in range(8):
            data[place] ^= 1 << bit
            line = bytes(data[: data.find(b"\n") + 1])
            if _is_checked_header(line):
                found.add(line)
            data[place] ^= 1 << bit
    return found.pop() if len(found) == 1 else None


def _end_of_search(data: bytearray) -> int:
    """The newline may be what flipped, or a flip may have made one too many."""
    newline = data.find(b"\n")
    opening = data.find(_OPENING)
    ends = [newline, opening + len(_OPENING) if opening >= 0 else -1]
    return min(len(data), max(ends) + 1)


def _is_checked_header(line: bytes) -> bool:
    """A header without a checksum is taken as it is elsewhere; here it proves nothing."""
    parts = _CHECKED.fullmatch(line)
    if parts is None or parts[2] != b"%08x" % crc32(parts[1]):
        return False
    try:
        decode_header(line)
    except (BadHeader, LaterFormat):
        return False
    return True


FAULT_CODE: Final = "repaired"
_REASON: Final = "the record of this turn was damaged and has been repaired"
_BEGINNING_BYTES: Final = 16 * 1024


class CannotRepair(Exception):
    """Cutting and appending can't help here; the file is as it was."""


class Repair(Struct, frozen=True, kw_only=True):
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
    kept = _KeptLines(header, first)
    found = pieces(read, first=first, size=size)
    says += kept.take(found, size)
    lines = list(kept.endings(clock, new_id))
    says += kept.said_of_endings()
    added = b"".join(lines) + kept.tail.closing_line
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
    except (BadHeader, LineTooLong) as reason:
        _refuse_older_shape(read, size, session_id)
        rescued = rescue_header(read(0, _BEGINNING_BYTES))
        if rescued is None:
            raise CannotRepair(f"{reason}, and it can't be told what it was") from reason
        header, line = decode_header(rescued), rescued
        says.append("the first line is put right: one bit of it had flipped")
    if header.session_id != session_id:
        raise CannotRepair(
            f"the file says it is conversation {header.session_id!r}: give it the name "
            f"{file_name(header.session_id, header.created_at)}"
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


class _KeptLines:
    """The sound part of a file, and what has to be added to it."""

    def __init__(self, header: Header, first: int) -> None:
        self.tail = empty_tail(header.created_at, first)
        """Of the lines that are kept and those that are added."""
        self.through = first
        self._pairing = TurnPairing()
        self._unanswered: list[ModelOutputEntry] = []
        self._unended: list[str] = []

    def take(self, found: Iterator[Piece], size: int) -> list[str]:
        """Keeps what is sound; gives what there is to say about the rest."""
        behind: list[type[Piece]] = []
        counted = 0
        for piece in found:
            if not behind and isinstance(piece, SoundLine) and self._follows(piece):
                self._added(piece.entry, piece.line.data)
                self.through = self.tail.end
            else:
                behind.append(type(piece))
            if not isinstance(piece, SoundLine) and piece.closing is not None:
                counted = max(counted, piece.closing.head_seq)
        gone = [] if SoundLine in behind else self._said_of_gone(counted)
        if behind in ([], [ClosingFound]):
            return gone
        says = [f"it is cut at byte {self.through}, after entry {self._head_seq}"]
        lost = f"{size - self.through} bytes behind that stay in the original"
        if lines := behind.count(SoundLine):
            lost += f", {plural(lines, 'sound line')} among them"
        return [*says, lost, *gone]

    def _said_of_gone(self, counted: int) -> list[str]:
        """`counted` is how many entries the closing line says there are."""
        first = self._head_seq + 1
        if counted < first:
            return []
        which = f"entry {first} is" if counted == first else f"entries {first} to {counted} are"
        return [f"{which} lost: counted in the closing line, and in no line that can be read"]

    def _follows(self, piece: SoundLine) -> bool:
        return piece.line.start == self.through and piece.entry.seq == self._head_seq + 1

    def _added(self, entry: Entry, line: bytes) -> bytes:
        added, self.tail = self.tail.extended(line, kind=entry.kind, at=entry.timestamp)
        self._pairing.add(entry)
        return added

    @property
    def _head_seq(self) -> int:
        return self.tail.closing.head_seq

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
        for draft in drafts:
            entry = replace(draft, seq=self._head_seq + 1, id=new_id(), timestamp=clock())
            yield self._added(entry, encode_line(entry))

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


# ------------------------------------------------------------------------------
# Replacing the file
#
# The original gets a second name, synced, before anything else. Then the repaired file is
# written beside it, synced, and renamed. A crash at any moment loses no byte.

_COPY_BYTES: Final = 1024 * 1024


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
    with path.open("rb") as original:
        os.fsync(original.fileno())
        aside = _keep_aside(path)
        beside = path.with_name(f".{path.name}.new")
        beside.unlink(missing_ok=True)  # left by a crash
        try:
            descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE)
            with os.fdopen(descriptor, "wb") as made:
                made.write(repair.header)
                _copy(original, made, repair.first, repair.through)
                made.write(repair.added)
                made.flush()
                os.fsync(made.fileno())
            beside.rename(path)
        except OSError:
            beside.unlink(missing_ok=True)
            raise
    sync_directory(path.parent)
    return aside


def _keep_aside(path: Path) -> Path:
    for number in count(1):
        aside = path.with_name(f"{path.name}.before-repair-{number}")
        if not aside.exists():
            give_second_name(path, aside, path.with_name(f".{aside.name}.new"))
            sync_directory(path.parent)
            return aside
    raise AssertionError


def _copy(source: BinaryIO, target: BinaryIO, start: int, end: int) -> None:
    source.seek(start)
    while start < end:
        block = source.read(min(_COPY_BYTES, end - start))
        if not block:
            raise OSError(errno.EIO, "the file became shorter while it was read")
        target.write(block)
        start += len(block)
