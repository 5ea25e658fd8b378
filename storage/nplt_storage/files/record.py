"""The one writer of a conversation that is kept in a file, and all it may do.

Appends go through the commit threads (`committer`); what a running answer
says goes to the journal beside; blobs before the lines that name them. The row
is folded along, so that lists and pages know what stands without reading.

A conversation whose very first append fails was never there: its file is taken
back, and made again by the next append that works.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Literal

import anyio

from nplt_storage.catalogue.freshness import FileStamp, FoundFile
from nplt_storage.conversation.rows import fold
from nplt_storage.erasing import blobs_named_by
from nplt_storage.errors import ConversationReadOnly, StorageError, StorageUnavailable
from nplt_storage.facts.entries import Entry
from nplt_storage.facts.tool_calls import BlobReference
from nplt_storage.files.access import plain_errors
from nplt_storage.files.appender import Appender
from nplt_storage.files.blobs import keep_blob
from nplt_storage.files.committer import COMMIT_SECONDS_MAX, Committer
from nplt_storage.files.indexing import part_of, void_stamp
from nplt_storage.files.layout import Header
from nplt_storage.files.live import LiveJournal
from nplt_storage.files.names import blobs_of, live_of
from nplt_storage.files.opening import OpenedFile, create_file
from nplt_storage.files.redacting import Redaction, redact_entry, remove_traces
from nplt_storage.files.workshop import Workshop

log = logging.getLogger(__name__)


class FileRecord:
    def __init__(
        self,
        opened: OpenedFile,
        *,
        workshop: Workshop,
        closed: Callable[[FileRecord], None],
        header: Header | None = None,
    ) -> None:
        """`header`: it was made just now, and could be taken back."""
        self.file = opened.file
        self.row = opened.row
        self._found = opened.found
        self._workshop = workshop
        self._closed = closed
        self._header = header
        self._journal = LiveJournal(live_of(self.file.path), files=workshop.disk, said=opened.said)
        self._commits = self._new_commits(opened.descriptor)
        self._blobs_to_name: set[str] = set()
        self._is_catalogue_behind = False
        """Whether it may still hold what was erased here: then what it is told of the
        file fits no file, so that the next start reads it anew."""
        self._is_open = True

    @property
    def session_id(self) -> str:
        return self.file.session_id

    @property
    def is_there(self) -> bool:
        """Not so between a creation that was taken back and the next one."""
        return self.file.tail is not None

    async def append(self, entry: Entry) -> None:
        self._check_open()
        try:
            await self._workshop.space.check(self.session_id)
            if not self.is_there:
                await self._create_again()
            await self._commits.append(entry)
        except (StorageUnavailable, ConversationReadOnly):
            if self._header is not None and self.is_there:
                await self._take_back()
            raise

    def say(self, turn_id: str, call: int, kind: Literal["text", "reasoning"], text: str) -> None:
        if self._is_open:
            self._journal.say(turn_id, call, kind, text)

    async def keep_blob(self, data: bytes) -> BlobReference:
        self._check_open()
        await self._workshop.space.check(self.session_id)
        reference = await self._workshop.threads.write(lambda: self._keep_blob(data))
        self._blobs_to_name.add(reference.blob_id)
        return reference

    async def redact(self, seq: int, *, at: datetime) -> Entry:
        self._check_open()
        await self._commits.close()
        redaction = await self._rewrite(seq, at=at)
        self.row = replace(redaction.row, last_accessed=self.row.last_accessed)
        with anyio.CancelScope(shield=True):  # begun is begun: half of it leaves the words
            stamp = await self._workshop.threads.write(lambda: self._clean_up(redaction))
            await self._workshop.catalogue.redact(self.row, stamp, seq)
            self._is_catalogue_behind = False
        return redaction.tombstone

    async def close(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        await self._commits.close()
        stamps: list[FileStamp] = []
        with anyio.move_on_after(COMMIT_SECONDS_MAX, shield=True):
            await self._workshop.commits.submit_or_do(lambda: stamps.extend(self._let_go()))
        if stamps:
            self._workshop.catalogue.note(self.row, stamps[0])
        self._closed(self)

    # Inside

    async def _rewrite(self, seq: int, *, at: datetime) -> Redaction:
        before, was_behind = self.file.tail, self._is_catalogue_behind
        self._is_catalogue_behind = True
        try:
            return await self._workshop.threads.write(
                lambda: redact_entry(self._workshop.disk, self.file, seq, at=at)
            )
        except StorageError:
            self._is_catalogue_behind = was_behind or self.file.tail is not before
            raise
        finally:
            # The file is another one now: the next append opens it by the rule.
            self._commits = self._new_commits(None)

    def _clean_up(self, redaction: Redaction) -> FileStamp:
        disk, path = self._workshop.disk, self.file.path
        attachments = self._workshop.directory.files / self.session_id
        with plain_errors(self.session_id):
            self._journal.drop_stale()
            remove_traces(
                disk,
                path,
                redaction,
                attachments=attachments,
                blobs_kept=self._blobs_to_name,
            )
            self._found = disk.found(path)
            return self._stamp_of_all(self._found)

    def _appended(self, entry: Entry) -> None:
        self.row = fold(self.row, entry)
        self._header = None
        self._journal.note(entry)
        if self._blobs_to_name:
            self._blobs_to_name -= blobs_named_by([entry])
        # Where the file ends is known; its time is not worth a question to the
        # system. A start after a crash takes a short look at its end instead.
        tail = self.file.tail
        assert tail is not None
        stamp = self.stamp(part_of(self._found, tail.end))
        self._workshop.catalogue.note(self.row, stamp, entry)

    def _new_commits(self, descriptor: int | None) -> Committer:
        return Committer(
            Appender(self.file, descriptor, sync_later=self._workshop.sync_later),
            appended=self._appended,
            closed=lambda: None,
            threads=self._workshop.commits,
        )

    def stamp(self, found: FoundFile) -> FileStamp:
        stamp = self._stamp_of_all(found)
        return void_stamp(found.name, stamp) if self._is_catalogue_behind else stamp

    def _stamp_of_all(self, found: FoundFile) -> FileStamp:
        tail = self.file.tail
        assert tail is not None
        return FileStamp(
            file=found,
            end_offset=tail.end,
            head_seq=tail.closing.head_seq,
            synced=self._workshop.syncs_at_once,
        )

    def _let_go(self) -> list[FileStamp]:
        """How the file is left, if that can be told; else the next start looks."""
        self._journal.close()
        if not self.is_there:
            return []
        try:
            return [self.stamp(self._workshop.disk.found(self.file.path))]
        except OSError:
            return []

    def _keep_blob(self, data: bytes) -> BlobReference:
        with plain_errors(self.session_id):
            return keep_blob(self._workshop.disk, blobs_of(self.file.path), data)

    async def _take_back(self) -> None:
        if self.file.writing.locked():
            return  # the disk has not answered: nobody knows what is there
        await self._commits.close()
        try:
            await self._workshop.threads.write(self.file.remove_unused)
        except StorageError as error:
            log.warning("%s: an unused file stays: %s", self.file.path.name, error)
        else:
            self._workshop.catalogue.forget(self.session_id)
        self._commits = self._new_commits(None)

    async def _create_again(self) -> None:
        header = self._header
        assert header is not None
        opened = await self._workshop.threads.write(
            lambda: create_file(self._workshop.disk, self.file, header)
        )
        self._found = opened.found
        self._commits = self._new_commits(opened.descriptor)

    def _check_open(self) -> None:
        if not self._is_open:
            raise ConversationReadOnly(self.session_id, "this record was closed")
