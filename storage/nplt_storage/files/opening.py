"""What of a conversation's file is read to go on with it, and to walk through it.

A new one is opened by being made. Everything here blocks; called from worker threads.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from nplt_storage.catalogue.freshness import FoundFile
from nplt_storage.conversation.rows import ConversationRow, fold_all, new_row
from nplt_storage.errors import StorageError
from nplt_storage.facts.entries import Entry
from nplt_storage.facts.lines import decode_verified
from nplt_storage.files.access import plain_errors
from nplt_storage.files.disk import Disk
from nplt_storage.files.file import JsonFile
from nplt_storage.files.layout import Header
from nplt_storage.files.live import read_journal, sound_pieces
from nplt_storage.files.names import live_of
from nplt_storage.files.reader import LineReader, Read
from nplt_storage.files.recovery import Damage, Tail
from nplt_storage.files.window import read_end
from nplt_storage.said import joined, not_yet_an_entry
from nplt_storage.store import SaidSoFar

_BATCH_ENTRIES: Final = 500
_BATCH_BYTES: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedFile:
    file: JsonFile
    descriptor: int
    """To append through."""
    found: FoundFile
    row: ConversationRow
    entries: tuple[Entry, ...] = ()
    said: SaidSoFar | None = None


def create_file(disk: Disk, file: JsonFile, header: Header) -> OpenedFile:
    descriptor = file.create(header)
    try:
        with plain_errors(file.session_id):
            found = disk.found(file.path)
    except BaseException:
        disk.close(descriptor)
        with suppress(StorageError):
            file.remove_unused()  # nobody will know that it is there
        raise
    row = new_row(file.session_id, user=header.user, created_at=header.created_at)
    return OpenedFile(file=file, descriptor=descriptor, found=found, row=row)


def open_at_end(disk: Disk, file: JsonFile, row: ConversationRow) -> OpenedFile:
    descriptor = file.open_for_appending()
    try:
        with file.reading_lines() as (read, tail):
            row = _caught_up(read, tail, row)
            entries = read_end(read, tail, row)
        with plain_errors(file.session_id):
            found = disk.found(file.path)
        said = joined(sound_pieces(read_journal(disk, live_of(file.path))))
    except BaseException:
        disk.close(descriptor)
        raise
    return OpenedFile(
        file=file,
        descriptor=descriptor,
        found=found,
        row=row,
        entries=tuple(entries),
        said=not_yet_an_entry(said, row, entries),
    )


def _caught_up(read: Read, tail: Tail, row: ConversationRow) -> ConversationRow:
    """The row as it is after the last line: a catalogue may be behind."""
    head_seq = tail.closing.head_seq
    if row.head_seq > head_seq:
        raise Damage(f"it ends at line {head_seq}, but there were {row.head_seq}")
    if row.head_seq < head_seq:
        lines = LineReader(read, first=tail.first, end=tail.end)
        new = lines.forward(lines.find(row.head_seq + 1))
        return fold_all(row, (decode_verified(line.data) for line in new))
    return row


def batch_of(file: JsonFile, *, after: int, through: int) -> list[Entry]:
    """The entries that follow `after`, as many as are read in one go."""
    batch: list[Entry] = []
    with file.reading_lines() as (read, tail):
        lines = LineReader(read, first=tail.first, end=tail.end)
        size = 0
        for line in lines.forward(lines.find(after + 1)):
            batch.append(decode_verified(line.data))
            size += len(line.data)
            if line.seq == through or len(batch) == _BATCH_ENTRIES or size >= _BATCH_BYTES:
                break
    return batch
