"""The writer of one conversation's file.

Entries are written through the committer, and the text of a running answer to the live journal.
Blobs are written before the lines that refer to them. Every append updates the conversation's
row, passes it to the index and returns it. If the first append to a new file fails, the file is
removed; the next append creates it again.

Only a redaction changes lines that have been written. It replaces the whole file.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from collections.abc import Set as AbstractSet
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import anyio
from msgspec import Struct
from msgspec.structs import replace

from nplt_storage.changes import change_by
from nplt_storage.codec import decode_verified, encode_line
from nplt_storage.entries import AttachmentEntry, BlobReference, Entry
from nplt_storage.errors import BadEntry, ConversationReadOnly, StorageError, StorageUnavailable
from nplt_storage.file_system import Disk, FoundFile
from nplt_storage.files.append import COMMIT_SECONDS_MAX, Appender, Committer
from nplt_storage.files.conversation_file import (
    JsonFile,
    NewFile,
    OpenedFile,
    create_file,
    keep_blob,
    plain_errors,
    remove_blobs_except,
)
from nplt_storage.files.directory import OpenDirectory, void_stamp
from nplt_storage.files.format import Header, blobs_of, copies, encode_header, live_of, read_header
from nplt_storage.files.live_journal import LiveJournal
from nplt_storage.ids import is_file_id
from nplt_storage.index.updates import FileStamp
from nplt_storage.partial_answers import DeltaKind
from nplt_storage.redaction import blobs_named_by, redacted, without_words_of
from nplt_storage.rows import ConversationRow, fold, new_row
from nplt_storage.store import Unstoppable

log = logging.getLogger(__name__)


class FileRecord:
    def __init__(
        self,
        opened: OpenedFile,
        *,
        directory: OpenDirectory,
        closed: Callable[[FileRecord], None],
        header: Header | None = None,
    ) -> None:
        """`header` is given for a file that was just created. Until the first append the file may
        be removed, and created again with this header."""
        self.file = opened.file
        self.row = opened.row
        self._row_after = opened.row
        """The row after the append that is under way."""
        self._found = opened.found
        self._directory = directory
        self._closed = closed
        self._header = header
        self._committer = self._new_committer(opened.descriptor)
        self._journal = LiveJournal(
            live_of(self.file.path), files=directory.disk, partial_answer=opened.partial_answer
        )
        self._blobs_to_name: set[str] = set()
        self._is_index_behind = False
        """Whether the index may still hold text that was erased from the file. While it may, the
        index gets a stamp that matches no file, so that the next start reads the file again."""
        self._is_open = True

    @property
    def session_id(self) -> str:
        return self.file.session_id

    @property
    def is_there(self) -> bool:
        """Whether the file exists. It does not after a failed first append."""
        return self.file.tail is not None

    def append(self, entry: Entry) -> Awaitable[ConversationRow]:
        if not (self._is_open and self.is_there and self._directory.space.is_enough):
            return self._append_with_care(entry)
        commit = self._begin(entry)
        return commit if self._header is None else self._first(commit)

    def _begin(self, entry: Entry) -> Unstoppable[ConversationRow]:
        commit = self._committer.begin(entry)
        self._row_after = fold(self.row, entry)  # while the disk works
        return commit

    async def _append_with_care(self, entry: Entry) -> ConversationRow:
        """Checks the free space first, and creates the file if it was removed."""
        self._check_open()
        try:
            await self._directory.space.check(self.session_id)
            if not self.is_there:
                header, disk = self._header, self._directory.disk
                assert header is not None
                opened = await self._directory.threads.write(
                    lambda: create_file(disk, self.file, header)
                )
                self._found = opened.found
                self._committer = self._new_committer(opened.descriptor)
        except (StorageUnavailable, ConversationReadOnly):
            if self._header is not None and self.is_there:
                await self._discard_new()
            raise
        return await self._first(self._begin(entry))

    async def _first(self, commit: Unstoppable[ConversationRow]) -> ConversationRow:
        """Removes a new file if this append, its first one, fails."""
        try:
            with anyio.CancelScope(shield=True):
                await commit
            return commit.result()
        except (StorageUnavailable, ConversationReadOnly):
            if self._header is not None and self.is_there:
                await self._discard_new()
            raise

    def journal_delta(self, turn_id: str, call: int, kind: DeltaKind, text: str) -> None:
        if self._is_open:
            self._journal.journal_delta(turn_id, call, kind, text)

    async def keep_blob(self, data: bytes) -> BlobReference:
        self._check_open()
        await self._directory.space.check(self.session_id)

        def keep() -> BlobReference:
            with plain_errors(self.session_id):
                return keep_blob(self._directory.disk, blobs_of(self.file.path), data)

        reference = await self._directory.threads.write(keep)
        self._blobs_to_name.add(reference.blob_id)
        return reference

    async def redact(self, seq: int, *, at: datetime) -> Entry:
        self._check_open()
        await self._committer.close()
        before, was_behind = self.file.tail, self._is_index_behind
        self._is_index_behind = True
        try:
            redaction = await self._directory.threads.write(
                lambda: redact_entry(self._directory.disk, self.file, seq, at=at)
            )
        except StorageError:
            self._is_index_behind = was_behind or self.file.tail is not before
            raise
        finally:
            # The file was replaced: the next append opens the new one and checks its end.
            self._committer = self._new_committer(None)
        unchanged = {"last_accessed": self.row.last_accessed, "lost": self.row.lost}
        self.row = replace(redaction.row, **unchanged)
        with anyio.CancelScope(shield=True):  # if it stopped halfway, traces of the text would stay
            stamp = await self._directory.threads.write(lambda: self._clean_up(redaction))
            await self._directory.index.redact(self.row, stamp, seq)
            self._is_index_behind = False
        self._directory.changes.note(self.row.user, self.session_id, "message")
        return redaction.tombstone

    def _clean_up(self, redaction: Redaction) -> FileStamp:
        disk, path = self._directory.disk, self.file.path
        attachments = self._directory.paths.files / self.session_id
        with plain_errors(self.session_id):
            self._journal.drop_stale()
            remove_traces(
                disk, path, redaction, attachments=attachments, blobs_kept=self._blobs_to_name
            )
            self._found = disk.found(path)
            return self._stamp_of_all(self._found)

    async def close(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        await self._committer.close()
        stamps: list[FileStamp] = []

        def close() -> None:
            self._journal.close()
            if self.is_there:
                with suppress(OSError):  # without a stamp, the next start reads the file
                    stamps.append(self.stamp(self._directory.disk.found(self.file.path)))

        with anyio.move_on_after(COMMIT_SECONDS_MAX, shield=True):
            await self._directory.commit_threads.submit_or_do(close)
        if stamps and self.session_id not in self._directory.damage:
            self._directory.index.note(self.row, stamps[0])
        self._closed(self)

    def _appended(self, entry: Entry) -> ConversationRow:
        self.row = self._row_after
        self._header = None
        self._journal.note(entry)
        if self._blobs_to_name:
            self._blobs_to_name -= blobs_named_by([entry])
        # The stamp has the file's size but not its time, which would cost a system call per
        # append. After a crash the next start reads the end of the file instead.
        tail = self.file.tail
        assert tail is not None
        stamp = self.stamp(replace(self._found, size=tail.end, mtime_ns=0))
        self._directory.index.note(self.row, stamp, entry)
        changes = self._directory.changes
        if self.row.user in changes.watched:
            changes.note(self.row.user, self.session_id, change_by(entry))
        return self.row

    def _new_committer(self, descriptor: int | None) -> Committer[ConversationRow]:
        return Committer(
            Appender(self.file, descriptor, sync_later=self._directory.sync_later),
            appended=self._appended,
            threads=self._directory.commit_threads,
        )

    def stamp(self, found: FoundFile) -> FileStamp:
        stamp = self._stamp_of_all(found)
        return void_stamp(found.name, stamp) if self._is_index_behind else stamp

    def _stamp_of_all(self, found: FoundFile) -> FileStamp:
        tail = self.file.tail
        assert tail is not None
        return FileStamp(
            file=found,
            end_offset=tail.end,
            head_seq=tail.closing.head_seq,
            synced=self._directory.syncs_at_once,
        )

    async def _discard_new(self) -> None:
        if self.file.writing.locked():
            return  # a write hangs, and its outcome is unknown
        await self._committer.close()
        try:
            await self._directory.threads.write(self.file.remove_unused)
        except StorageError as error:
            log.warning("%s: an unused file stays: %s", self.file.path.name, error)
        else:
            self._directory.index.forget(self.session_id)
        self._committer = self._new_committer(None)

    def _check_open(self) -> None:
        if not self._is_open:
            raise ConversationReadOnly(self.session_id, "this record was closed")


class Redaction(Struct, frozen=True, kw_only=True):
    erased: Entry
    tombstone: Entry
    row: ConversationRow
    """The row after the redaction. The old name or preview may have contained the erased text."""
    blobs_named: frozenset[str]


def redact_entry(disk: Disk, file: JsonFile, seq: int, *, at: datetime) -> Redaction:
    """Writes a new file with a tombstone in place of the entry and every other line unchanged
    (except a rollback that repeats the erased words, and the header's fields of another program),
    and replaces the old file in one step.
    `remove_traces` removes further copies of the words; after a crash in between, calling this
    again completes that. Blocks; the caller prevents appends meanwhile."""
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
        # What another program stored about the conversation may repeat the words.
        first = encode_header(replace(header, extra={})) if header.extra else read(0, tail.first)
        new = NewFile(disk, file.path, first, created_at=header.created_at)
        try:
            for line in tail.entries(read).lines():
                entry = decode_verified(line.data)
                after = without_words_of(erased, tombstone, entry)
                new.add(after, line.data if after == entry else encode_line(after))
                blobs_named |= blobs_named_by([after])
                row = fold(row, after)
            new.seal()
            file.replace(new.new_path, new.tail)
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
    """Removes other copies of the words: those left by a torn append or an import, blobs without a
    reference, an attachment. Blocks. `blobs_kept` belong to an entry that is about to be
    written."""
    erased = redaction.erased
    for name in copies(disk.names_in(path.parent, with_part=path.name), path):
        disk.remove(path.with_name(name))
    disk.sync_directory(path.parent)
    spared = blobs_kept - blobs_named_by([erased])
    remove_blobs_except(disk, blobs_of(path), redaction.blobs_named | spared)
    if isinstance(erased, AttachmentEntry) and is_file_id(erased.file_id):
        disk.remove(attachments / erased.file_id)
        if disk.names_in(attachments):
            disk.sync_directory(attachments)
