"""Writes a whole file: for imported conversations, and for redaction.

The file is written under a temporary name and renamed at the end; what a crash leaves
is removed at the next start.
"""

from __future__ import annotations

import os
from collections.abc import Set as AbstractSet
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Final

from msgspec import Struct

from nplt_storage.codec import decode_verified, encode_line
from nplt_storage.entries import AttachmentEntry, Entry
from nplt_storage.errors import BadEntry
from nplt_storage.file_system import Disk, write_all
from nplt_storage.files.conversation_file import JsonFile, plain_errors, remove_blobs_except
from nplt_storage.files.format import (
    Tail,
    blobs_of,
    copies,
    empty_tail,
    on_its_way,
    read_header,
)
from nplt_storage.ids import is_file_id
from nplt_storage.redaction import blobs_named_by, redacted, without_words_of
from nplt_storage.rows import ConversationRow, fold, new_row

_BUFFER_BYTES: Final = 1024 * 1024


class NewFile:
    """Blocks. `first` is the header's line; `created_at` what it says there."""

    def __init__(self, disk: Disk, path: Path, first: bytes, *, created_at: datetime) -> None:
        self.beside = on_its_way(path.with_name(f"{path.name}.whole"))
        self._disk = disk
        self._buffer = bytearray(first)
        self._written = 0
        self._tail = empty_tail(created_at, len(first))
        disk.remove(self.beside)  # left by a crash
        self._descriptor: int | None = disk.open(self.beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL)

    @property
    def head_seq(self) -> int:
        return self._tail.closing.head_seq

    def add(self, line: bytes, *, kind: str, at: datetime) -> None:
        """`line` as `encode_line` made it."""
        added, self._tail = self._tail.extended(line, kind=kind, at=at)
        self._buffer += added
        if len(self._buffer) >= _BUFFER_BYTES:
            self._flush()

    def seal(self) -> Tail:
        """All of it is on disk when this returns, under the name it has meanwhile."""
        self._buffer += self._tail.closing_line
        self._flush()
        assert self._descriptor is not None
        self._disk.sync(self._descriptor)
        self._close()
        return self._tail

    def abandon(self) -> None:
        with suppress(OSError):  # the next start sweeps it away
            self._close()
            self._disk.remove(self.beside)

    def _flush(self) -> None:
        assert self._descriptor is not None
        data, self._buffer = bytes(self._buffer), bytearray()
        write_all(self._disk, self._descriptor, data, self._written)
        self._written += len(data)

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            self._disk.close(descriptor)


class Redaction(Struct, frozen=True, kw_only=True):
    erased: Entry
    tombstone: Entry
    row: ConversationRow
    """The conversation's, made anew: a name or a preview may have been among the words."""
    blobs_named: frozenset[str]


def redact_entry(disk: Disk, file: JsonFile, seq: int, *, at: datetime) -> Redaction:
    """Writes a new file with a tombstone in place of the entry and every other line
    unchanged (except a rollback that repeats the erased words), and replaces the old file
    in one step. Then removes whatever else held the words: copies left by a torn append or
    an import, blobs without a reference, an attachment. After a crash in between, asking
    again finishes that. Blocks; the caller lets nobody append meanwhile."""
    with (
        file.not_writing(),
        plain_errors(file.session_id),
        file.reading_lines() as (read, tail),
    ):
        erased = tail.entries(read).at(seq)
        if erased is None:
            raise BadEntry(f"there is no entry {seq}")
        tombstone = redacted(erased, at)
        header, _ = read_header(read, tail.first)
        row = new_row(file.session_id, user=header.user, created_at=header.created_at)
        blobs_named: set[str] = set()
        new = NewFile(disk, file.path, read(0, tail.first), created_at=header.created_at)
        try:
            for line in tail.lines(read).forward(tail.first):
                entry = decode_verified(line.data)
                after = without_words_of(erased, tombstone, entry)
                data = line.data if after == entry else encode_line(after)
                new.add(data, kind=after.kind, at=after.timestamp)
                blobs_named |= blobs_named_by([after])
                row = fold(row, after)
            file.replace(new.beside, new.seal())
        except BaseException:
            new.abandon()
            raise
    return Redaction(
        erased=erased, tombstone=tombstone, row=row, blobs_named=frozenset(blobs_named)
    )


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
