"""Repairs a damaged file of a conversation.

This is for damage within a file. The torn end that a crash leaves is mended whenever a file is
opened (`format.make_whole`).

Every line whose checksum holds is kept byte for byte, also after a damaged one; a tombstone
replaces each other one, so that numbers stay as they were. Calls without a result get one that
says so, and turns without an end are ended, so that no old prompt runs again. `plan_repair` only
reads; `apply_repair` writes.

The original gets a second name, synced, before anything else. Then the repaired file is
written beside it, synced, and renamed. A crash at any moment loses no byte.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from nplt_storage.codec import decode_verified, encode_line
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
    Disk,
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
from nplt_storage.files.examination import TurnPairing, plural
from nplt_storage.files.format import Header, Read, day_of, empty_tail, numbered
from nplt_storage.files.salvage import FoundLines, KnownElsewhere, Span
from nplt_storage.ids import new_entry_id
from nplt_storage.store import Repaired

FAULT_CODE: Final = "repaired"
LOST: Final = "lost"
"""The category of the entry that replaces one that could not be read."""
_REASON: Final = "the record of this turn was damaged and has been repaired"
_TOMBSTONE: Final = DebugEntry(
    category=LOST, content="this entry could not be read when the record was repaired"
)
_GAP_MAX: Final = 100_000
"""A line that is further away from the one before it does not belong to this file."""


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
    found = FoundLines(read, size, session_id)
    header = found.header or found.new_header(known or KnownElsewhere())
    return _RepairedLines(found, header, clock=clock, new_id=new_id).repair(read, size)


class _RepairedLines:
    """The lines that were found, in order, with the lines that have to be added."""

    def __init__(
        self,
        found: FoundLines,
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
            says.append(f"{plural(found.twice, 'line')} was found twice: the first one is kept")
        says += self._endings()
        self._parts.append(self._tail.closing_line)
        parts = _joined(self._parts)
        if not says and not _is_as_it_was(parts, read, size):
            says.append(
                "the lines stay as they are; the bytes between and after them are corrected"
            )
        return Repair(parts=parts, says=tuple(says), kept=kept, lost=tuple(self._lost))

    def _keep(self, seq: int, read: Read) -> None:
        place, line = self._found.places[seq], self._found.line(seq)
        added = self._added(decode_verified(line), line)
        if isinstance(place, bytes):
            self._parts.append(added)
            return
        # The line's comma and newline are kept with it if they are intact.
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
        without_results, unended = (
            list(self._pairing.waiting.values()),
            list(self._pairing.unfinished),
        )
        for asked in without_results:
            self._append(_skipped(asked, self._clock()), at=self._clock())
        for turn_id in unended:
            fault = FaultEntry(
                turn_id=turn_id, content=_REASON, code=FAULT_CODE, state="interrupted"
            )
            self._append(fault, at=self._clock())
        if without_results:
            says.append(f"calls of {plural(len(without_results), 'answer')} get a result: skipped")
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
def exclusive_use(data_dir: Path) -> Iterator[None]:
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
        taken = disk.names_in(path.parent, with_part=path.name)
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
