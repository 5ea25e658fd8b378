"""Erasing what one entry said from a conversation's file: the one rewrite there is.

A new file is written beside, with a tombstone where the entry stood and every
other line as it was, byte for byte (but a rollback that quotes the erased
words). It takes the old one's place in one step: a crash leaves the old file
or the new one. Then goes what else held the words: copies that a torn append or
an import left, blobs nobody names any more, an attachment. If a crash comes in
between, asking again finishes that.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from nplt_storage.conversation.rows import ConversationRow, fold, new_row
from nplt_storage.erasing import blobs_named_by, without_words_of
from nplt_storage.errors import BadEntry
from nplt_storage.facts.entries import AttachmentEntry, Entry
from nplt_storage.facts.lines import decode_verified, encode_line
from nplt_storage.facts.redaction import redacted
from nplt_storage.files.access import plain_errors
from nplt_storage.files.blobs import remove_blobs_except
from nplt_storage.files.disk import Disk
from nplt_storage.files.file import JsonFile
from nplt_storage.files.names import blobs_of, copies
from nplt_storage.files.reader import LineReader, Read
from nplt_storage.files.recovery import Tail, read_header
from nplt_storage.files.writing import NewFile
from nplt_storage.ids import is_file_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Redaction:
    erased: Entry
    tombstone: Entry
    row: ConversationRow
    """The conversation's, made anew: a name or a preview may have been among the words."""
    blobs_named: frozenset[str]


def redact_entry(disk: Disk, file: JsonFile, seq: int, *, at: datetime) -> Redaction:
    """Blocks. Nobody appends meanwhile, and who appended before has let go of the file."""
    with (
        file.not_writing(),
        plain_errors(file.session_id),
        file.reading_lines() as (read, tail),
    ):
        erased = _entry(read, tail, seq)
        tombstone = redacted(erased, at)
        header, _ = read_header(read, tail.first)
        row = new_row(file.session_id, user=header.user, created_at=header.created_at)
        new = NewFile(disk, file.path, read(0, tail.first), created_at=header.created_at)
        try:
            redaction = _copy(read, tail, new, row, erased=erased, tombstone=tombstone)
            file.replace(new.beside, new.seal())
        except BaseException:
            new.abandon()
            raise
    return redaction


def _entry(read: Read, tail: Tail, seq: int) -> Entry:
    if not 1 <= seq <= tail.closing.head_seq:
        raise BadEntry(f"there is no entry {seq}")
    lines = LineReader(read, first=tail.first, end=tail.end)
    return decode_verified(next(lines.forward(lines.find(seq))).data)


def _copy(
    read: Read,
    tail: Tail,
    new: NewFile,
    row: ConversationRow,
    *,
    erased: Entry,
    tombstone: Entry,
) -> Redaction:
    named: set[str] = set()
    for line in LineReader(read, first=tail.first, end=tail.end).forward(tail.first):
        entry = decode_verified(line.data)
        after = without_words_of(erased, tombstone, entry)
        data = line.data if after == entry else encode_line(after)
        new.add(data, kind=after.kind, at=after.timestamp)
        named |= blobs_named_by([after])
        row = fold(row, after)
    return Redaction(erased=erased, tombstone=tombstone, row=row, blobs_named=frozenset(named))


def remove_traces(
    disk: Disk,
    path: Path,
    redaction: Redaction,
    *,
    attachments: Path,
    blobs_kept: AbstractSet[str] = frozenset(),
) -> None:
    """Blocks. `blobs_kept` were kept just now, for an entry that is yet to come."""
    erased = redaction.erased
    for name in copies(disk.names_in(path.parent), path):
        disk.remove(path.with_name(name))
    disk.sync_directory(path.parent)
    spared = blobs_kept - blobs_named_by([erased])
    remove_blobs_except(disk, blobs_of(path), redaction.blobs_named | spared)
    if isinstance(erased, AttachmentEntry) and is_file_id(erased.file_id):
        disk.remove(attachments / erased.file_id)
        if disk.names_in(attachments):
            disk.sync_directory(attachments)
