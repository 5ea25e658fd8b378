"""Who has which conversation in hand: one writer each, and no two at a time who
open, make or delete the same one.

Also where damage is noticed: a file that turns out to be damaged is set apart,
and said so in lists, whoever was reading it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

import anyio

from nplt_storage.catalogue.freshness import FileStamp
from nplt_storage.conversation.rows import ConversationRow
from nplt_storage.errors import (
    ConversationDamaged,
    ConversationExists,
    ConversationNotFound,
    ConversationReadOnly,
    StorageError,
    StorageUnavailable,
)
from nplt_storage.files.file import JsonFile
from nplt_storage.files.indexing import void_stamp
from nplt_storage.files.layout import Header
from nplt_storage.files.opening import OpenedFile
from nplt_storage.files.record import FileRecord
from nplt_storage.files.workshop import Workshop
from nplt_storage.ids import is_session_id

log = logging.getLogger(__name__)

_T = TypeVar("_T")


class Desk:
    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop
        self._names = workshop.names
        self._files: dict[str, JsonFile] = {}
        """Those in use since the start: to them the opening rule was applied."""
        self._records: dict[str, FileRecord] = {}
        self._busy: set[str] = set()
        self._building: set[str] = set()
        self._reading_again = anyio.Lock()

    # One at a time

    @contextmanager
    def alone_with_new(self, session_id: str) -> Iterator[None]:
        if not is_session_id(session_id):
            raise ConversationNotFound(session_id)
        if session_id in self._names or session_id in self._busy:
            raise ConversationExists(session_id)
        with self._alone(session_id):
            yield

    @contextmanager
    def building(self, session_id: str) -> Iterator[None]:
        """One at a time; whoever makes one of that id meanwhile is first."""
        with self.alone_with_new(session_id):
            if session_id in self._building:
                raise ConversationExists(session_id)
        self._building.add(session_id)
        try:
            yield
        finally:
            self._building.discard(session_id)

    @contextmanager
    def alone_to_open(self, session_id: str) -> Iterator[None]:
        if session_id in self._records:
            raise ConversationReadOnly(session_id, "it is open already")
        with self._alone(session_id):
            yield

    @contextmanager
    def alone_to_delete(self, session_id: str) -> Iterator[None]:
        if session_id not in self._names:
            raise ConversationNotFound(session_id)
        with self._alone(session_id):
            yield

    @contextmanager
    def _alone(self, session_id: str) -> Iterator[None]:
        if session_id in self._busy:
            raise ConversationReadOnly(session_id, "it is open already")
        self._busy.add(session_id)
        try:
            yield
        finally:
            self._busy.discard(session_id)

    # Records

    def record(self, opened: OpenedFile, header: Header | None = None) -> FileRecord:
        """Its writer from here on; `header` if it was made just now."""
        session_id = opened.file.session_id
        record = FileRecord(opened, workshop=self._workshop, closed=self._closed, header=header)
        self._records[session_id] = record
        self._files[session_id] = opened.file
        self._names[session_id] = opened.file.path.name
        return record

    def _closed(self, record: FileRecord) -> None:
        del self._records[record.session_id]
        if not record.is_there:
            self._names.pop(record.session_id, None)
            self._files.pop(record.session_id, None)

    async def close_record(self, session_id: str) -> None:
        record = self._records.get(session_id)
        if record is not None:
            await record.close()

    async def close_records(self) -> None:
        for record in list(self._records.values()):
            await record.close()

    # Files

    async def find(self, session_id: str) -> tuple[ConversationRow, JsonFile]:
        """The file, and the row as it was when the file ended at its head."""
        record = self._records.get(session_id)
        if record is not None and record.is_there and session_id not in self._workshop.damage:
            return record.row, record.file
        row = await self.row(session_id)
        name = self._names.get(session_id)
        if row is None or name is None:
            raise ConversationNotFound(session_id)
        if row.damaged:
            reason = self._workshop.damage.get(session_id, "it was found so before")
            raise ConversationDamaged(session_id, reason)
        if session_id not in self._files:
            file = self._files[session_id] = self.file_at(name, session_id)
            file.head_seq_min = row.head_seq
        return row, self._files[session_id]

    async def row(self, session_id: str) -> ConversationRow | None:
        if session_id in self._names:
            await self._workshop.shelf.order.wait_for(session_id)
            # One that is open was read to be opened, and tells the catalogue itself.
            if session_id in self._workshop.shelf.unread and session_id not in self._records:
                await self._read_again(session_id)
        return await self._workshop.catalogue.row(session_id)

    async def _read_again(self, session_id: str) -> None:
        """`StorageUnavailable` if that is no better now than it was."""
        unread = self._workshop.shelf.unread
        async with self._reading_again:
            name = self._names.get(session_id)
            if name is None or session_id not in unread:
                return  # somebody else was first
            known = await self._workshop.catalogue.known(session_id)
            stamp = None if known is None else known[1]
            reading = self._workshop.shelf.reading(session_id, name, stamp)
            await self._workshop.learn(reading.whole())
            if session_id not in self._names:  # deleted meanwhile
                self.forget(session_id)
            elif reading.is_unread:
                raise StorageUnavailable(f"the file of {session_id!r} can't be read now")
            unread.discard(session_id)

    def file_at(self, name: str, session_id: str) -> JsonFile:
        return JsonFile(
            self._workshop.directory.history / name,
            session_id,
            files=self._workshop.disk,
            new_id=self._workshop.settings.new_id,
        )

    async def take_in(self, session_id: str, names: Sequence[str]) -> None:
        """They were put there just now, whole."""
        self._names[session_id] = names[-1]
        try:
            await self._workshop.learn(self._workshop.shelf.pieces(session_id, names))
        except StorageError as error:
            # It is there all the same: who hears that it failed would do it again.
            log.error("%s is not in lists yet: %s", names[-1], error)
            self._workshop.shelf.unread.add(session_id)

    def forget(self, session_id: str) -> None:
        self._names.pop(session_id, None)
        self._files.pop(session_id, None)
        self._workshop.damage.pop(session_id, None)
        self._workshop.shelf.unread.discard(session_id)
        self._workshop.catalogue.forget(session_id)

    # Work that may meet damage

    async def opening(self, file: JsonFile, row: ConversationRow, work: Callable[[], _T]) -> _T:
        with self._set_apart_if_damaged(file, row):
            return await self._workshop.threads.write(work)

    async def reading(self, file: JsonFile, row: ConversationRow, work: Callable[[], _T]) -> _T:
        was_settled = file.tail is not None
        with self._set_apart_if_damaged(file, row):
            result = await self._workshop.threads.read(work)
        if not was_settled:
            await self._note_settled(file, row)
        return result

    @contextmanager
    def _set_apart_if_damaged(self, file: JsonFile, row: ConversationRow) -> Iterator[None]:
        try:
            yield
        except ConversationDamaged as damage:
            self._workshop.damage[file.session_id] = damage.reason
            # What was there is remembered: a file cut short must not look sound later.
            stamp = replace(
                void_stamp(file.path.name, None),
                head_seq=row.head_seq,
                synced=self._workshop.syncs_at_once,
            )
            self._workshop.catalogue.note(replace(row, damaged=True), stamp)
            raise

    async def _note_settled(self, file: JsonFile, row: ConversationRow) -> None:
        """Opening wrote the file's end anew: what is known of it must fit again."""
        try:
            found = await self._workshop.threads.read(lambda: self._workshop.disk.found(file.path))
        except OSError:
            return
        tail = file.tail
        is_idle = file.session_id not in self._records and file.session_id not in self._busy
        if tail is not None and is_idle and tail.closing.head_seq == row.head_seq:
            stamp = FileStamp(file=found, end_offset=tail.end, head_seq=row.head_seq)
            self._workshop.catalogue.note(row, stamp)
