"""From a conversation's file to what the catalogue knows of it.

Read-only, piece by piece, with little memory; the same `fold` as everywhere
makes the row. So lists and search may show a last line that the opening rule
has not made whole yet; nothing else is answered from such a file.

Never an exception: a damaged file is a row that says so, for lists show all
there is, and its stamp fits no file, so that it is looked at again at the next
start. A file that can't be read just now (too many are open, the disk is not
well) is no damage: it is read again when somebody asks for it.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from nplt_storage.catalogue.freshness import FileStamp, FoundFile
from nplt_storage.catalogue.learned import Learned
from nplt_storage.conversation.rows import ConversationRow, fold_all, new_row
from nplt_storage.errors import ConversationDamaged, StorageError, StorageUnavailable
from nplt_storage.facts.entries import Entry
from nplt_storage.facts.lines import decode_verified
from nplt_storage.files.access import (
    opened,
    plain_errors,
    read_older_shape,
    reader_of,
    survey_file,
)
from nplt_storage.files.disk import Disk
from nplt_storage.files.layout import LOCAL_USER, BadHeader
from nplt_storage.files.names import day_of
from nplt_storage.files.reader import LineReader
from nplt_storage.files.recovery import Survey, read_header

log = logging.getLogger(__name__)

_PIECE_ENTRIES: Final = 1_000
_PIECE_BYTES: Final = 4 * 1024 * 1024


def part_of(found: FoundFile, end: int) -> FoundFile:
    """As if the file ended there: what follows is read when it is next looked at."""
    return replace(found, size=end, mtime_ns=0)


def void_stamp(name: str, known: FileStamp | None) -> FileStamp:
    """Fits no file; what is known to have been there stays known."""
    nothing = FoundFile(name=name, size=-1, mtime_ns=0, inode=0)
    if known is None:
        return FileStamp(file=nothing, end_offset=0, head_seq=0, synced=False)
    return replace(known, file=nothing, end_offset=0)


def _may_pass(error: StorageError) -> bool:
    cause = error.__cause__
    is_no_file = isinstance(cause, OSError) and cause.errno == errno.EINVAL  # a pipe, a directory
    return isinstance(error, StorageUnavailable) and not is_no_file


class DoesNotFollow(Exception):
    """What is in the file is not what was known of it, and then some."""


class FileReading:
    """One file on its way into the catalogue."""

    def __init__(
        self,
        disk: Disk,
        path: Path,
        session_id: str,
        *,
        new_id: Callable[[], str],
        damaged: Callable[[str, str], None],
        known: FileStamp | None = None,
    ) -> None:
        """`damaged` is told the id and the reason, if something is wrong."""
        self._disk = disk
        self._path = path
        self._session_id = session_id
        self._new_id = new_id
        self._damaged = damaged
        self.is_unread = False
        """Whether it can't be read just now, though nothing may be wrong with it."""
        self._known = known
        self._row = new_row(session_id, user=LOCAL_USER, created_at=day_of(path.name))
        self._is_first = True

    def whole(self) -> Iterator[Learned]:
        try:
            with (
                plain_errors(self._session_id),
                opened(self._disk, self._path, os.O_RDONLY) as descriptor,
            ):
                try:
                    yield from self._ours(descriptor)
                except BadHeader:
                    yield self._older_shape(descriptor)
        except StorageError as error:
            if _may_pass(error):
                log.warning("%s can't be read now: %s", self._path.name, error)
                self.is_unread = True
                yield from self._not_read()
                return
            if self._path.name not in self._disk.names_in(self._path.parent):
                return  # deleted since it was listed
            log.warning("%s: %s", self._path.name, error)
            reason = error.reason if isinstance(error, ConversationDamaged) else str(error)
            self._damaged(self._session_id, reason)
            row = replace(self._row, damaged=True)
            stamp = void_stamp(self._path.name, self._known)
            yield Learned(row=row, stamp=stamp, anew=self._is_first)

    def _not_read(self) -> Iterator[Learned]:
        """What is known, or was read so far, stays known."""
        if self._known is None and self._is_first:
            yield Learned(row=self._row, stamp=void_stamp(self._path.name, None), anew=True)

    def onward(self, row: ConversationRow) -> Iterator[Learned]:
        """What was written since `known`, when the row was like that; `DoesNotFollow`
        if there is anything odd about it: then it is better read whole."""
        known = self._known
        if known is None or row.damaged or row.head_seq != known.head_seq:
            raise DoesNotFollow
        try:
            with (
                plain_errors(self._session_id),
                opened(self._disk, self._path, os.O_RDONLY) as descriptor,
            ):
                found = survey_file(self._disk, descriptor, self._session_id)
                if found.end < known.end_offset:
                    raise DoesNotFollow
                if found.end == known.end_offset and found.head_seq != known.head_seq:
                    raise DoesNotFollow
                self._row, self._is_first = row, False
                yield from self._lines(descriptor, found, start=known.end_offset)
        except (StorageError, BadHeader) as error:
            raise DoesNotFollow from error

    def _ours(self, descriptor: int) -> Iterator[Learned]:
        header, _ = read_header(reader_of(self._disk, descriptor), self._disk.size(descriptor))
        self._row = new_row(self._session_id, user=header.user, created_at=header.created_at)
        expected = self._known.head_seq if self._known and self._known.synced else 0
        found = survey_file(self._disk, descriptor, self._session_id, head_seq_min=expected)
        yield from self._lines(descriptor, found, start=found.first)

    def _lines(self, descriptor: int, found: Survey, *, start: int) -> Iterator[Learned]:
        read, here = reader_of(self._disk, descriptor), self._disk.found(self._path)
        lines = LineReader(read, first=found.first, end=found.end)
        piece: list[Entry] = []
        begin, due = start, self._row.head_seq + 1
        try:
            for line in lines.forward(start) if start < found.end else ():
                if line.seq != due:
                    raise ConversationDamaged(self._session_id, f"line {due} is not in its place")
                piece.append(decode_verified(line.data))
                due += 1
                if len(piece) >= _PIECE_ENTRIES or line.end - begin >= _PIECE_BYTES:
                    done, piece, begin = piece, [], line.end
                    yield self._piece(done, part_of(here, line.end), line.end)
        except BaseException:
            # If it breaks off, that much can be shown.
            self._row = fold_all(self._row, piece)
            raise
        yield self._piece(piece, here, found.end)

    def _piece(self, entries: list[Entry], found: FoundFile, end: int) -> Learned:
        is_first, self._is_first = self._is_first, False
        self._row = fold_all(self._row, entries)
        stamp = FileStamp(
            file=found,
            end_offset=end,
            head_seq=self._row.head_seq,
            synced=self._is_synced(self._row.head_seq),
        )
        return Learned(row=self._row, stamp=stamp, entries=entries, anew=is_first)

    def _is_synced(self, head_seq: int) -> bool:
        """What was merely read may be in the system's memory only."""
        known = self._known
        return known is not None and known.synced and known.head_seq == head_seq

    def _older_shape(self, descriptor: int) -> Learned:
        header, entries, data = read_older_shape(
            self._disk, descriptor, self._session_id, new_id=self._new_id
        )
        row = new_row(self._session_id, user=header.user, created_at=header.created_at)
        self._row = row
        return self._piece(entries, self._disk.found(self._path), len(data))
