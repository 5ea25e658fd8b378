"""Conversations kept as files, one each, in a data directory that is ours alone.

    <data_dir>/history/session_YYYYMMDD_<id>.json

Rows are built from the files when the directory is opened and kept up to date
after that. A file has an open descriptor only while its conversation is open,
or a page of it is being read. All disk work runs in worker threads, one hop
each, so conversations commit side by side. Deleting moves to the trash.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TypeVar

import anyio
import anyio.to_thread

from nplt_storage.catalog import Catalog, ConversationRow, new_row
from nplt_storage.data_directory import DataDirectory
from nplt_storage.entries import Entry
from nplt_storage.errors import (
    ConversationDamaged,
    ConversationExists,
    ConversationNotFound,
    ConversationReadOnly,
    StorageUnavailable,
)
from nplt_storage.file_operations import FileOperations, SystemFiles
from nplt_storage.history import ConversationHistory
from nplt_storage.ids import is_session_id, new_entry_id
from nplt_storage.json_appender import Appender
from nplt_storage.json_file import JsonFile
from nplt_storage.json_layout import Header
from nplt_storage.json_record import JsonRecord
from nplt_storage.json_scan import damaged_row, file_name, find_files, row_of
from nplt_storage.json_values import check_text
from nplt_storage.paging import MessagePage, PageQuery, read_page
from nplt_storage.store import Record, StoreDescription
from nplt_storage.trash import move_to_trash
from nplt_storage.views import content_of

_WRITERS_MAX = 64
_READERS_MAX = 8
_T = TypeVar("_T")


class JsonFileStore:
    def __init__(
        self,
        directory: DataDirectory,
        *,
        clock: Callable[[], datetime],
        files: FileOperations,
        new_id: Callable[[], str],
    ) -> None:
        """Use `open_directory`: it takes the lock and reads what is there."""
        self.directory = directory
        self.description = StoreDescription(
            backend="json",
            promise="on disk (fdatasync) before it is acknowledged",
            path=str(directory.path),
        )
        self._clock = clock
        self._files = files
        self._new_id = new_id
        self._catalog = Catalog()
        self._by_id: dict[str, JsonFile] = {}
        self._records: dict[str, JsonRecord] = {}
        self._opening: set[str] = set()
        self._damage: dict[str, str] = {}
        self._writers = anyio.CapacityLimiter(_WRITERS_MAX)
        self._readers = anyio.CapacityLimiter(_READERS_MAX)

    @classmethod
    async def open_directory(
        cls,
        data_dir: Path,
        *,
        clock: Callable[[], datetime],
        files: FileOperations | None = None,
        new_id: Callable[[], str] = new_entry_id,
    ) -> JsonFileStore:
        directory = DataDirectory(data_dir)
        store = cls(directory, clock=clock, files=files or SystemFiles(), new_id=new_id)
        await anyio.to_thread.run_sync(directory.take)
        try:
            await anyio.to_thread.run_sync(store._scan)
        except BaseException:
            directory.give_back()
            raise
        return store

    def _scan(self) -> None:
        try:
            found = find_files(self.directory.history)
        except OSError as error:
            raise StorageUnavailable(f"the files can't be listed: {error.strerror}") from error
        for session_id, paths in found.items():
            file = self._by_id[session_id] = self._file_at(paths[-1], session_id)
            if len(paths) > 1:
                self._catalog.put(damaged_row(paths, session_id))
                self._damage[session_id] = "there is more than one file for it"
                continue
            row, damage = row_of(self._files, file.path, session_id, new_id=self._new_id)
            file.head_seq_min = row.head_seq
            self._catalog.put(row)
            if damage is not None:
                self._damage[session_id] = damage

    # Rows

    def rows(self, user: str) -> list[ConversationRow]:
        return self._catalog.of_user(user)

    def count(self, user: str) -> int:
        return self._catalog.count(user)

    def row(self, session_id: str) -> ConversationRow | None:
        return self._catalog.get(session_id)

    def touch(self, session_id: str, at: datetime) -> None:
        self._catalog.touch(session_id, at)

    # Writing

    async def create(self, session_id: str, *, user: str) -> Record:
        check_text(user, "the user's name")
        if not is_session_id(session_id):
            raise ConversationNotFound(session_id)
        if session_id in self._by_id:
            raise ConversationExists(session_id)
        created_at = self._clock()
        path = self.directory.history / file_name(session_id, created_at)
        file = self._by_id[session_id] = self._file_at(path, session_id)
        header = Header(session_id=session_id, created_at=created_at, user=user)
        try:
            descriptor = await self._in_thread(self._writers, lambda: file.create(header))
        except BaseException:
            del self._by_id[session_id]
            raise
        self._catalog.put(new_row(session_id, user=user, created_at=created_at))
        return self._record_of(file, descriptor)

    async def open(self, session_id: str) -> tuple[Record, ConversationHistory]:
        file = self._find(session_id)
        if session_id in self._records or session_id in self._opening:
            raise ConversationReadOnly(session_id, "it is open already")
        self._opening.add(session_id)
        try:
            descriptor, entries = await self._quarantining(self._writers, file, file.load)
        finally:
            self._opening.discard(session_id)
        return self._record_of(file, descriptor), ConversationHistory(session_id, entries)

    async def delete(self, session_id: str) -> None:
        file = self._by_id.get(session_id)
        if file is None:
            raise ConversationNotFound(session_id)
        record = self._records.get(session_id)
        if record is not None:
            await record.close()
        await self._in_thread(
            self._writers, lambda: move_to_trash(self._files, self.directory, file.path, session_id)
        )
        self._by_id.pop(session_id, None)
        self._damage.pop(session_id, None)
        self._catalog.remove(session_id)

    async def close(self) -> None:
        with anyio.CancelScope(shield=True):
            for record in list(self._records.values()):
                await record.close()
            await anyio.to_thread.run_sync(self.directory.give_back)

    # Reading

    async def page(self, session_id: str, query: PageQuery) -> MessagePage:
        file = self._find(session_id)

        def read() -> MessagePage:
            with file.reading() as entries:
                return read_page(query, entries)

        return await self._quarantining(self._readers, file, read)

    async def text_of(self, session_id: str, seq: int) -> str | None:
        file = self._find(session_id)

        def read() -> str | None:
            with file.reading() as entries:
                entry = next(entries.after(seq - 1), None) if seq >= 1 else None
                return None if entry is None else content_of(entry)

        return await self._quarantining(self._readers, file, read)

    # Inside

    def _find(self, session_id: str) -> JsonFile:
        file = self._by_id.get(session_id)
        if file is None:
            raise ConversationNotFound(session_id)
        if session_id not in self._catalog:
            raise ConversationNotFound(session_id)  # it is being created just now
        if session_id in self._damage:
            raise ConversationDamaged(session_id, self._damage[session_id])
        return file

    def _file_at(self, path: Path, session_id: str) -> JsonFile:
        return JsonFile(path, session_id, files=self._files, new_id=self._new_id)

    def _record_of(self, file: JsonFile, descriptor: int) -> JsonRecord:
        session_id = file.session_id

        def appended(entry: Entry) -> None:
            self._catalog.add(session_id, entry)

        def closed() -> None:
            if self._records.get(session_id) is record:
                del self._records[session_id]

        record = JsonRecord(
            Appender(file, descriptor), appended=appended, closed=closed, threads=self._writers
        )
        self._records[session_id] = record
        return record

    async def _quarantining(
        self, threads: anyio.CapacityLimiter, file: JsonFile, work: Callable[[], _T]
    ) -> _T:
        try:
            return await self._in_thread(threads, work)
        except ConversationDamaged as damage:
            self._damage[file.session_id] = damage.reason
            self._catalog.mark_damaged(file.session_id)
            raise

    async def _in_thread(self, threads: anyio.CapacityLimiter, work: Callable[[], _T]) -> _T:
        # Cancelling does not reach into it: what a thread began is waited for.
        return await anyio.to_thread.run_sync(work, limiter=threads)
