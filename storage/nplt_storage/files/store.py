"""Conversations kept as files, one each, in a data directory that is ours alone.

    <data_dir>/history/session_YYYYMMDD_<id>.json

The files are the truth; the catalogue beside them answers for lists and search,
and nothing is read at a start that it knows already. A file has an open
descriptor only while its conversation is open, or something of it is being
read. All disk work runs in threads, one hop each, so conversations commit side
by side. Deleting moves to the trash.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from threading import Event
from typing import Final

import anyio

from nplt_storage.conversation.history import ConversationHistory
from nplt_storage.conversation.paging import MessagePage, PageQuery, read_page
from nplt_storage.conversation.row_lists import RowPage, RowQuery
from nplt_storage.conversation.rows import ConversationRow
from nplt_storage.conversation.searching import SearchPage, SearchQuery
from nplt_storage.conversation.sent_before import SentBefore
from nplt_storage.conversation.views import content_of
from nplt_storage.data_directory import DataDirectory
from nplt_storage.facts.checks import check_time
from nplt_storage.facts.entries import Entry
from nplt_storage.facts.json_values import check_object, check_text
from nplt_storage.files.access import plain_errors
from nplt_storage.files.blobs import read_blob
from nplt_storage.files.building import FileBuilder, NewConversation
from nplt_storage.files.desk import Desk
from nplt_storage.files.file import JsonFile
from nplt_storage.files.layout import Header
from nplt_storage.files.names import blobs_of, file_name
from nplt_storage.files.opening import OpenedFile, batch_of, create_file, open_at_end
from nplt_storage.files.resent import PromptFinder
from nplt_storage.files.trash import KEPT_FOR
from nplt_storage.files.workshop import FileSettings, Workshop, open_workshop
from nplt_storage.store import Builder, Opened, Origin, Record, StoreDescription

log = logging.getLogger(__name__)

_DAY: Final = timedelta(days=1)


class JsonFileStore:
    def __init__(self, workshop: Workshop, *, clock: Callable[[], datetime]) -> None:
        """Use `open_directory`: it takes the lock and looks at what is there."""
        self._workshop = workshop
        self._desk = Desk(workshop)
        self._prompts = PromptFinder(workshop, self._desk)
        self._clock = clock
        self._trash_emptied_at = clock()  # by the start

    @classmethod
    async def open_directory(
        cls,
        data_dir: Path,
        *,
        clock: Callable[[], datetime],
        settings: FileSettings | None = None,
    ) -> JsonFileStore:
        workshop = await open_workshop(data_dir, settings or FileSettings(), now=clock())
        return cls(workshop, clock=clock)

    @property
    def directory(self) -> DataDirectory:
        return self._workshop.directory

    @property
    def description(self) -> StoreDescription:
        promise = self._workshop.settings.durability.promise
        return StoreDescription(backend="json", promise=promise, path=str(self.directory.path))

    @property
    def read_only_reason(self) -> str | None:
        return self._workshop.space.shortage

    # Writing

    async def create(self, session_id: str, *, user: str) -> Record:
        check_text(user, "the user's name")
        with self._desk.alone_with_new(session_id):
            await self._workshop.space.check(session_id)
            header = Header(session_id=session_id, created_at=self._clock(), user=user)
            name = file_name(session_id, header.created_at)
            file = self._desk.file_at(name, session_id)
            opened = await self._workshop.threads.write(
                lambda: create_file(self._workshop.disk, file, header)
            )
            record = self._desk.record(opened, header)
            self._workshop.catalogue.note(opened.row, record.stamp(opened.found))
        return record

    async def open(self, session_id: str) -> Opened:
        with self._desk.alone_to_open(session_id):
            row, file = await self._desk.find(session_id)
            opened, history = await self._desk.opening(
                file, row, lambda: self._opened_with_history(file, row)
            )
            record = self._desk.record(opened)
        return Opened(record=record, history=history, row=opened.row, said=opened.said)

    def _opened_with_history(
        self, file: JsonFile, row: ConversationRow
    ) -> tuple[OpenedFile, ConversationHistory]:
        """Blocks: a long history takes its time to be made."""
        opened = open_at_end(self._workshop.disk, file, row)
        try:
            turns_max = self._workshop.settings.max_turns
            return opened, ConversationHistory(
                file.session_id, opened.entries, row=opened.row, turns_max=turns_max
            )
        except BaseException:
            self._workshop.disk.close(opened.descriptor)
            raise

    @asynccontextmanager
    async def build(self, session_id: str, origin: Origin) -> AsyncIterator[Builder]:
        check_text(origin.user, "the user's name")
        check_object(origin.extra, "what is said about the conversation")
        check_time(origin.created_at, "the time of its creation")
        threads = self._workshop.threads
        header = Header(
            session_id=session_id,
            created_at=origin.created_at,
            user=origin.user,
            extra=origin.extra,
        )
        name = file_name(session_id, origin.created_at)
        path = self.directory.history / name
        with self._desk.building(session_id):
            await self._workshop.space.check(session_id)
            new = await threads.write(lambda: NewConversation(self._workshop.disk, path, header))
            try:
                yield FileBuilder(new, threads)
                with self._desk.alone_with_new(session_id):
                    await threads.write(new.finish)
                    with anyio.CancelScope(shield=True):
                        await self._desk.take_in(session_id, [name])
            except BaseException:
                with anyio.CancelScope(shield=True):
                    await threads.write(new.abandon)
                raise

    async def delete(self, session_id: str) -> None:
        with self._desk.alone_to_delete(session_id):
            await self._desk.close_record(session_id)
            at, trash = self._clock(), self._workshop.trash
            is_gone = Event()
            try:
                await self._workshop.threads.write(
                    lambda: trash.put(session_id, at=at, gone=is_gone.set)
                )
            finally:
                if is_gone.is_set():
                    self._desk.forget(session_id)
        await self._empty_trash_once_a_day(at)

    async def undelete(self, session_id: str, *, user: str | None = None) -> None:
        with self._desk.alone_with_new(session_id):
            names = await self._workshop.threads.write(
                lambda: self._workshop.trash.take_back(session_id, user=user)
            )
            with anyio.CancelScope(shield=True):
                await self._desk.take_in(session_id, names)

    async def is_trash_of_another(self, session_id: str, user: str) -> bool:
        trash = self._workshop.trash
        return bool(await self._workshop.threads.read(lambda: trash.owners(session_id)) - {user})

    async def empty_trash(self, older_than: timedelta = KEPT_FOR) -> int:
        """Removes for good what was deleted that long ago; says how many there were."""
        now = self._clock()
        return await self._workshop.threads.write(
            lambda: self._workshop.trash.empty(now, older_than)
        )

    async def _empty_trash_once_a_day(self, now: datetime) -> None:
        if now - self._trash_emptied_at < _DAY:
            return
        self._trash_emptied_at = now
        try:
            await self.empty_trash()
        except OSError as error:
            log.warning("the trash can't be emptied: %s", error.strerror)

    async def close(self) -> None:
        with anyio.CancelScope(shield=True):
            await self._desk.close_records()
            await self._workshop.close()

    # Reading

    async def page(self, session_id: str, query: PageQuery) -> MessagePage:
        row, file = await self._desk.find(session_id)

        def read() -> MessagePage:
            with file.reading(row.head_seq) as entries:
                return read_page(query, entries, hidden=row.hidden)

        return await self._desk.reading(file, row, read)

    async def text_of(self, session_id: str, seq: int) -> str | None:
        row, file = await self._desk.find(session_id)

        def read() -> str | None:
            with file.reading() as entries:
                entry = next(entries.after(seq - 1), None) if seq >= 1 else None
                return None if entry is None else content_of(entry)

        return await self._desk.reading(file, row, read)

    async def prompt_with(self, session_id: str, message_id: str) -> SentBefore | None:
        return await self._prompts.find(session_id, message_id)

    async def blob(self, session_id: str, blob_id: str, offset: int, length: int) -> bytes:
        _, file = await self._desk.find(session_id)

        def read() -> bytes:
            with plain_errors(session_id):
                directory = blobs_of(file.path)
                return read_blob(self._workshop.disk, directory, blob_id, offset, length)

        return await self._workshop.threads.read(read)

    async def entries(
        self, session_id: str, *, after: int = 0, through: int | None = None
    ) -> AsyncIterator[Sequence[Entry]]:
        row, file = await self._desk.find(session_id)
        last = row.head_seq if through is None else min(through, row.head_seq)
        seq = max(after, 0)
        while seq < last:
            batch = await self._desk.reading(
                file,
                row,
                lambda: batch_of(file, after=seq, through=last),  # noqa: B023
            )
            seq = batch[-1].seq
            yield batch

    async def origin(self, session_id: str) -> Origin:
        row, file = await self._desk.find(session_id)
        header = await self._desk.reading(file, row, file.header)
        return Origin(user=header.user, created_at=header.created_at, extra=header.extra)

    # All of them

    async def row(self, session_id: str) -> ConversationRow | None:
        return await self._desk.row(session_id)

    async def list(self, user: str, query: RowQuery) -> RowPage:
        return await self._workshop.catalogue.list(user, query)

    async def count(self, user: str) -> int:
        return await self._workshop.catalogue.count(user)

    async def search(self, user: str, query: SearchQuery) -> SearchPage:
        return await self._workshop.catalogue.search(user, query)

    def touch(self, session_id: str, at: datetime) -> None:
        self._workshop.catalogue.touch(session_id, at)
