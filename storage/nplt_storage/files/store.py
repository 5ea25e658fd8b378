"""Keeps conversations as files, one each, in a data directory used by one server.

    <data_dir>/history/session_YYYYMMDD_<id>.json

The files are the truth. The index beside them answers lists and search, and saves
reading unchanged files at a start. A file is only open while its conversation is, or
while it is being read. Disk work runs in threads, so conversations commit side by side.
Deleting moves a conversation to the trash.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path
from threading import Event
from typing import Final, TypeVar
from weakref import WeakValueDictionary

import anyio
from msgspec.structs import replace

from nplt_storage.codec import check_time, decode_verified, peek_kind
from nplt_storage.entries import BlobReference, Entry, ModelInputEntry
from nplt_storage.errors import (
    ConversationDamaged,
    ConversationExists,
    ConversationNotFound,
    ConversationReadOnly,
    StorageError,
    StorageUnavailable,
)
from nplt_storage.file_system import DataDirectory, FoundFile
from nplt_storage.files.commit_threads import DiskThreads
from nplt_storage.files.conversation_file import (
    ConversationShortened,
    JsonFile,
    NewConversation,
    OpenedFile,
    batch_of,
    create_file,
    open_at_end,
    plain_errors,
    read_blob,
)
from nplt_storage.files.directory import FileSettings, OpenDirectory, open_directory, void_stamp
from nplt_storage.files.format import Header, blobs_of, by_session_id, file_name, on_its_way
from nplt_storage.files.record import FileRecord
from nplt_storage.files.repair import repair_file, write_readable_copy
from nplt_storage.files.salvage import CannotRepair, KnownElsewhere
from nplt_storage.history import ConversationHistory
from nplt_storage.ids import is_session_id
from nplt_storage.index.updates import FileStamp, PromptsFound
from nplt_storage.json_values import check_object, check_text
from nplt_storage.messages import LevelMaker, content_of, no_levels
from nplt_storage.pages import MessagePage, PageQuery, read_page
from nplt_storage.rows import (
    UNKNOWN_USER,
    ConversationRow,
    RowPage,
    RowQuery,
    row_as_bytes,
    row_from_bytes,
)
from nplt_storage.search import SearchPage, SearchQuery
from nplt_storage.seen_marks import moved_mark
from nplt_storage.sent_before import SentBefore, sent_before
from nplt_storage.store import (
    Builder,
    DeletedConversation,
    Opened,
    Origin,
    Record,
    Repaired,
    StoreDescription,
)

log = logging.getLogger(__name__)

_T = TypeVar("_T")


class FileBuilder:
    """Builds a conversation from the event loop."""

    def __init__(self, conversation: NewConversation, threads: DiskThreads) -> None:
        self._conversation = conversation
        self._threads = threads

    async def add(self, entries: Sequence[Entry]) -> None:
        await self._threads.write(lambda: self._conversation.add(entries))

    async def keep_blob(self, data: bytes) -> BlobReference:
        return await self._threads.write(lambda: self._conversation.keep_blob(data))


def all_prompts(file: JsonFile, _: ConversationRow) -> PromptsFound:
    """The prompts by message id; the first of several counts. Blocks while the whole file is
    read."""
    prompts: dict[str, int] = {}
    with file.reading_lines() as (read, tail):
        for line in tail.entries(read).lines():
            if peek_kind(line.data) == ModelInputEntry.kind:
                entry = decode_verified(line.data)
                if isinstance(entry, ModelInputEntry) and entry.message_id is not None:
                    prompts.setdefault(entry.message_id, line.seq)
        through = tail.closing.head_seq
    return PromptsFound(session_id=file.session_id, prompts=prompts, through=through)


_DAY: Final = timedelta(days=1)
_LOOK_SECONDS: Final = 1.0
_USED_LAST_MAX: Final = 256
_TRASH_ROWS_MAX: Final = 1_000
"""A list of the whole trash keeps all of its rows; pages of it keep so many."""


class JsonFileStore:
    """Allows one writer per conversation, and one operation at a time on each. A file that proves
    to be damaged is marked, whichever operation finds it."""

    def __init__(
        self,
        directory: OpenDirectory,
        *,
        clock: Callable[[], datetime],
        levels: LevelMaker = no_levels,
    ) -> None:
        """Use `open_directory`, which takes the lock and surveys the files."""
        self._directory = directory
        self._disk = directory.disk
        self._threads = directory.threads
        self._names = directory.names
        self.changes = directory.changes
        self.commits = directory.commit_threads.commits
        self._clock = clock
        self._levels = levels
        self._files: WeakValueDictionary[str, JsonFile] = WeakValueDictionary()
        """The files in use, by a record, a reader or a write that hangs: all have the same object.
        The opening rule was applied to it, or will be."""
        self._used_last: OrderedDict[str, JsonFile] = OrderedDict()
        """Keeps the files used last, so that the opening rule is not applied for each reader."""
        self._records: dict[str, FileRecord] = {}
        self._busy: set[str] = set()
        self._building: set[str] = set()
        self._reading_again = anyio.Lock()
        self._look_again_at: dict[str, float] = {}
        self._copies: dict[str, tuple[ConversationRow, JsonFile]] = {}
        """Readable copies of damaged files."""
        self._looked_at: dict[str, FoundFile] = {}
        """Files that another program changed, as they were when they were read."""
        self._trash_emptied_at = clock()  # by the start
        self._trash_counted_at = directory.settings.seconds()
        self._trash_rows: dict[str, bytes] = {}
        """The encoded rows of deleted conversations that have been listed, by folder and file name,
        those listed last at the end; their files do not change. Decoded they would take twice the
        memory."""

    @classmethod
    async def open_directory(
        cls,
        data_dir: Path,
        *,
        clock: Callable[[], datetime],
        settings: FileSettings | None = None,
        levels: LevelMaker = no_levels,
    ) -> JsonFileStore:
        directory = await open_directory(data_dir, settings or FileSettings(), now=clock())
        return cls(directory, clock=clock, levels=levels)

    @property
    def directory(self) -> DataDirectory:
        return self._directory.paths

    @property
    def description(self) -> StoreDescription:
        promise = self._directory.settings.durability.promise
        return StoreDescription(backend="json", promise=promise, path=str(self.directory.path))

    @property
    def read_only_reason(self) -> str | None:
        return self._directory.space.shortage

    # Writing

    async def create(self, session_id: str, *, user: str) -> Record:
        with self._alone_with_new(session_id):
            header = Header(session_id=session_id, created_at=self._clock(), user=user)
            created: list[OpenedFile] = []
            with anyio.CancelScope(shield=True):
                await self._directory.commit_threads.submit(
                    lambda: created.append(self._create(header))
                )
            record = self._record(created[0], header)
            self._directory.index.note(record.row, record.stamp(created[0].found))
            if user in self.changes.watched:
                self.changes.note(user, session_id, "new")
        return record

    def _create(self, header: Header) -> OpenedFile:
        """Blocks."""
        session_id = header.session_id
        check_text(header.user, "the user's name")
        self._directory.space.check_now(session_id)
        file = self._file_at(file_name(session_id, header.created_at), session_id)
        created = create_file(self._disk, file, header)
        self._directory.seen.begin(session_id, 0)
        return created

    async def open(self, session_id: str) -> Opened:
        turns_max = self._directory.settings.turns_max

        def open_it(file: JsonFile, row: ConversationRow) -> tuple[OpenedFile, ConversationHistory]:
            opened = open_at_end(self._disk, file, row)
            self._directory.seen.begin(session_id, opened.row.head_seq)
            try:  # in this thread, because building a long history takes time
                return opened, ConversationHistory(
                    session_id, opened.entries, row=opened.row, turns_max=turns_max
                )
            except BaseException:
                self._disk.close(opened.descriptor)
                raise

        with self._alone(session_id):
            opened, history = await self._use(session_id, open_it, to_write=True)
            record = self._record(opened)
        return Opened(
            record=record, history=history, row=opened.row, partial_answer=opened.partial_answer
        )

    def _record(self, opened: OpenedFile, header: Header | None = None) -> FileRecord:
        """Makes and registers the conversation's writer; `header` if the file was created
        just now."""
        session_id = opened.file.session_id
        record = FileRecord(opened, directory=self._directory, closed=self._closed, header=header)
        self._records[session_id] = record
        self._keep(opened.file)
        self._names[session_id] = opened.file.path.name
        return record

    def _closed(self, record: FileRecord) -> None:
        del self._records[record.session_id]
        if not record.is_there:
            self._names.pop(record.session_id, None)
            self._let_go(record.session_id)

    @asynccontextmanager
    async def build(self, session_id: str, origin: Origin) -> AsyncIterator[Builder]:
        check_text(origin.user, "the user's name")
        check_object(origin.extra, "a field of the conversation")
        check_time(origin.created_at, "the time of its creation")
        header = Header(
            session_id=session_id,
            created_at=origin.created_at,
            user=origin.user,
            extra=origin.extra,
        )
        name = file_name(session_id, origin.created_at)
        path = self.directory.history / name
        with self._alone_with_new(session_id):
            if session_id in self._building:
                raise ConversationExists(session_id)
        self._building.add(session_id)
        try:
            await self._directory.space.check(session_id)
            new = await self._threads.write(lambda: NewConversation(self._disk, path, header))
            try:
                yield FileBuilder(new, self._threads)
                # A conversation that was created meanwhile stays, and this one is not built.
                with self._alone_with_new(session_id):
                    await self._threads.write(new.finish)
                    with anyio.CancelScope(shield=True):
                        await self._take_in(session_id, [name])
            except BaseException:
                with anyio.CancelScope(shield=True):
                    await self._threads.write(new.abandon)
                raise
        finally:
            self._building.discard(session_id)

    async def repair(self, session_id: str) -> Repaired:
        """Keeps every readable line, replaces every other one by a tombstone, and clears the mark
        of a damaged or shortened conversation."""
        with self._alone(session_id):
            row, path = await self.row(session_id), self._path(session_id)
            if row is None:
                raise ConversationNotFound(session_id)
            await self._directory.space.check(session_id)
            await self._drop_copy(session_id)
            repaired: Repaired | None = None
            with anyio.CancelScope(shield=True):
                repaired = await self._threads.write(lambda: self._repair(path, row))
                self._forget(session_id)
                await self._take_in(session_id, [path.name])
                self._directory.index.touch(session_id, row.last_accessed)
        assert repaired is not None
        for sentence in repaired.says:
            log.warning("%s was repaired: %s", path.name, sentence)
        return repaired

    def _repair(self, path: Path, row: ConversationRow) -> Repaired:
        session_id, new_id = row.session_id, self._directory.settings.new_id
        user = None if row.user == UNKNOWN_USER else row.user
        known = KnownElsewhere(user=user, created_at=row.created_at if user else None)
        with plain_errors(session_id):
            there = self._disk.names_in(path.parent, with_part=session_id)
            names = by_session_id(there)[session_id]
            if len(names) > 1:
                reason = f"there is more than one file for it: {', '.join(names)}"
                raise ConversationDamaged(session_id, reason)
            try:
                return repair_file(path, session_id, clock=self._clock, new_id=new_id, known=known)
            except CannotRepair as reason:
                raise ConversationDamaged(session_id, str(reason)) from reason

    async def delete(self, session_id: str) -> None:
        with self._alone(session_id, to_delete=True):
            if session_id in self._records:
                await self._records[session_id].close()
            await self._drop_copy(session_id)
            at, trash = self._clock(), self._directory.trash
            row = await self._directory.index.row(session_id)
            is_gone = Event()
            try:
                await self._threads.write(lambda: trash.put(session_id, at=at, gone=is_gone.set))
            finally:
                if is_gone.is_set():
                    self._forget(session_id)
                    if row is not None:
                        self.changes.note(row.user, session_id, "deleted")
        if at - self._trash_emptied_at >= _DAY:
            self._trash_emptied_at = at
            try:
                await self.empty_trash()
            except OSError as error:
                log.warning("the trash can't be emptied: %s", error.strerror)

    async def undelete(self, session_id: str, *, user: str | None = None) -> None:
        trash = self._directory.trash
        with self._alone_with_new(session_id):
            names = await self._threads.write(lambda: trash.restore(session_id, user=user))
            with anyio.CancelScope(shield=True):
                await self._take_in(session_id, names)

    async def is_trash_of_another(self, session_id: str, user: str) -> bool:
        trash = self._directory.trash
        return bool(await self._threads.read(lambda: trash.owners(session_id)) - {user})

    async def trash(self, user: str, *, limit: int | None = None) -> Sequence[DeletedConversation]:
        return await self._threads.read(lambda: self._trash_of(user, limit))

    def _trash_of(self, user: str, limit: int | None) -> list[DeletedConversation]:
        """Blocks: files that were not listed before are read."""
        known = self._trash_rows
        if limit is None:  # all are listed: rows of those that are gone are dropped
            self._trash_rows = {}
        found: dict[str, DeletedConversation] = {}
        last_at: datetime | None = None
        for at, session_id, path in self._directory.trash.conversations():
            if limit is not None and len(found) >= limit and at != last_at:
                break
            last_at = at
            name = f"{path.parent.name}/{path.name}"  # a path would take as much room as the row
            encoded = known.pop(name, None)
            if encoded is None:
                made = row_as_bytes(self._directory.row_in(path, session_id)[0])
                # A copy: what orjson returns keeps its buffer, ten times as long.
                encoded = bytes(memoryview(made))
            self._trash_rows[name] = encoded
            row = row_from_bytes(encoded)
            if row.user == user:
                found.setdefault(session_id, DeletedConversation(row=row, deleted_at=at))
        if limit is not None:
            for name in [
                *islice(self._trash_rows, max(0, len(self._trash_rows) - _TRASH_ROWS_MAX))
            ]:
                self._trash_rows.pop(name, None)
        return list(found.values())

    async def empty_trash(self) -> int:
        """Removes conversations deleted longer ago than `KEPT_FOR`, and returns their number."""
        now, seconds = self._clock(), self._directory.settings.seconds()
        days, self._trash_counted_at = int((seconds - self._trash_counted_at) / 86_400), seconds
        trash = self._directory.trash
        return await self._threads.write(lambda: trash.empty(now, days_served=days))

    async def close(self) -> None:
        with anyio.CancelScope(shield=True):
            for record in list(self._records.values()):
                await record.close()
            for session_id in list(self._copies):
                await self._drop_copy(session_id)
            await self._directory.close()

    # Reading

    async def page(self, session_id: str, query: PageQuery) -> MessagePage:
        def read(file: JsonFile, row: ConversationRow) -> MessagePage:
            with file.reading(row.head_seq) as entries:
                return read_page(query, entries, row.hidden, row.unfinished, self._levels)

        return await self._read(session_id, read)

    async def text_of(self, session_id: str, seq: int) -> str | None:
        def read(file: JsonFile, _: ConversationRow) -> str | None:
            with file.reading() as entries:
                entry = entries.at(seq)
                return None if entry is None else content_of(entry)

        return await self._read(session_id, read)

    async def prompt_by_message_id(self, session_id: str, message_id: str) -> SentBefore | None:
        """Finds the prompt by the number in the index, and checks the line. If the index does not
        cover the whole file, or is wrong, the file is read once from its beginning and the index is
        corrected."""
        row, _ = await self._find(session_id)
        index = self._directory.index
        try:
            seq, through = await index.prompt(session_id, message_id)
        except StorageUnavailable:
            seq, through = None, 0  # the file is searched instead
        if seq is None and through >= row.head_seq:
            return None

        def read(file: JsonFile, row: ConversationRow) -> SentBefore | None:
            with file.reading() as entries:
                following = () if seq is None else entries.after(seq - 1)
                return sent_before(following, message_id=message_id, hidden=row.hidden)

        found = await self._read(session_id, read)
        if found is None:
            searched = await self._read(session_id, all_prompts)
            index.note_prompts(searched)
            seq = searched.prompts.get(message_id)
            found = await self._read(session_id, read)
        return found

    async def blob(self, session_id: str, blob_id: str, offset: int, length: int) -> bytes:
        directory = blobs_of(self._path(session_id))

        def read() -> bytes:
            with plain_errors(session_id):
                return read_blob(self._disk, directory, blob_id, offset, length)

        return await self._threads.read(read)

    async def entries(
        self, session_id: str, *, after: int = 0, through: int | None = None
    ) -> AsyncIterator[Sequence[Entry]]:
        row = await self._read(session_id, lambda _, row: row)
        last = row.head_seq if through is None else min(through, row.head_seq)
        seq = max(after, 0)
        while seq < last:
            batch = await self._read(
                session_id,
                lambda file, _: batch_of(file, after=seq, through=last),  # noqa: B023
            )
            if not batch:
                return  # an older copy of the file was put back
            seq = batch[-1].seq
            yield batch

    async def origin(self, session_id: str) -> Origin:
        header = await self._read(session_id, lambda file, _: file.header())
        return Origin(user=header.user, created_at=header.created_at, extra=header.extra)

    # All of them

    async def row(self, session_id: str) -> ConversationRow | None:
        if session_id in self._names:
            await self._directory.order.wait_for(session_id)
            # An open file was read when it was opened, and its record updates the index.
            if session_id in self._directory.unread and session_id not in self._records:
                await self._read_again(session_id)
        return await self._directory.index.row(session_id)

    async def list(self, user: str, query: RowQuery) -> RowPage:
        catching_up = self._directory.catching_up
        incomplete = catching_up is not None and not catching_up.done()
        page = await self._directory.index.list(user, query)
        changed = await self._look_for_damage(page.rows)
        if not changed and not incomplete:
            return page
        rows = tuple(changed.get(row.session_id, row) for row in page.rows)
        return replace(page, rows=rows, incomplete=incomplete)

    async def count(self, user: str) -> int:
        return await self._directory.index.count(user)

    async def search(self, user: str, query: SearchQuery) -> SearchPage:
        return await self._directory.index.search(user, query)

    def touch(self, session_id: str, at: datetime) -> None:
        self._directory.index.touch(session_id, at)

    # What users have seen

    async def seen(self, session_ids: Sequence[str]) -> Mapping[str, int]:
        marks = self._directory.seen.marks
        return {id_: marks[id_] for id_ in session_ids if id_ in marks}

    async def mark_seen(self, session_id: str, seq: int, *, unread: bool = False) -> int:
        record = self._records.get(session_id)
        is_open = record is not None and record.is_there
        row = record.row if record is not None and is_open else await self.row(session_id)
        if row is None:
            raise ConversationNotFound(session_id)
        file = self._directory.seen
        known = file.marks.get(session_id)
        mark = moved_mark(known, seq, row.head_seq, unread=unread)
        if mark != known:
            await self._directory.space.check(session_id)
            file.note(session_id, mark)
            self._directory.index.note_seen(session_id)
        # Another request may have set the same mark, and still be writing it.
        await self._directory.commit_threads.submit(file.write)
        if mark != known:
            self.changes.note(row.user, session_id, "seen")
        return mark

    # One operation at a time

    @contextmanager
    def _alone_with_new(self, session_id: str) -> Iterator[None]:
        if not is_session_id(session_id):
            raise ConversationNotFound(session_id)
        if session_id in self._names or session_id in self._busy:
            raise ConversationExists(session_id)
        with self._alone(session_id):
            yield

    @contextmanager
    def _alone(self, session_id: str, *, to_delete: bool = False) -> Iterator[None]:
        if to_delete and session_id not in self._names:
            raise ConversationNotFound(session_id)
        if session_id in self._busy or (session_id in self._records and not to_delete):
            raise ConversationReadOnly(session_id, "it is open already")
        self._busy.add(session_id)
        try:
            yield
        finally:
            self._busy.discard(session_id)

    def _is_idle(self, id_: str) -> bool:
        return id_ in self._names and id_ not in self._records and id_ not in self._busy

    # Files

    async def _find(self, session_id: str) -> tuple[ConversationRow, JsonFile]:
        """The file, and its row as of the file's head."""
        record = self._records.get(session_id)
        if record is not None and record.is_there and session_id not in self._directory.damage:
            return record.row, record.file
        row = await self.row(session_id)
        name = self._names.get(session_id)
        if row is None or name is None:
            raise ConversationNotFound(session_id)
        if row.damaged:
            reason = self._directory.damage.get(session_id, "it was found so before")
            damage = ConversationDamaged(session_id, reason)
            damage.can_be_repaired = True
            raise damage
        file = self._files.get(session_id)
        if file is None:
            file = self._file_at(name, session_id)
            file.head_seq_min = row.head_seq
        self._keep(file)
        return row, file

    def _keep(self, file: JsonFile) -> None:
        self._files[file.session_id] = self._used_last[file.session_id] = file
        self._used_last.move_to_end(file.session_id)
        while len(self._used_last) > _USED_LAST_MAX:
            self._used_last.popitem(last=False)

    def _let_go(self, session_id: str) -> None:
        """Forgets the file: its next reader applies the opening rule again."""
        self._files.pop(session_id, None)
        self._used_last.pop(session_id, None)

    def _path(self, session_id: str) -> Path:
        name = self._names.get(session_id)
        if name is None:
            raise ConversationNotFound(session_id)
        return self.directory.history / name

    def _file_at(self, name: str, session_id: str) -> JsonFile:
        path, new_id = self.directory.history / name, self._directory.settings.new_id
        return JsonFile(path, session_id, files=self._disk, new_id=new_id)

    async def _take_in(self, session_id: str, names: Sequence[str]) -> None:
        """Adds the conversation whose files have just been put in place."""
        self._names[session_id] = names[-1]
        await self._learn_new(session_id, names)
        row = await self._directory.index.row(session_id)
        if row is not None:
            self.changes.note(row.user, session_id, "new")

    async def _learn_new(self, session_id: str, names: Sequence[str]) -> None:
        try:
            await self._directory.learn(self._directory.pieces(session_id, names))
        except StorageError as error:
            # The conversation exists: a caller that gets an error would create it again.
            log.error("%s is not in lists yet: %s", names[-1], error)
            self._directory.unread.add(session_id)

    def _forget(self, session_id: str) -> None:
        for known in (self._names, self._looked_at, self._look_again_at):
            known.pop(session_id, None)
        self._let_go(session_id)
        self._directory.damage.pop(session_id, None)
        self._directory.unread.discard(session_id)
        self._directory.index.forget(session_id)

    async def _read_again(self, session_id: str) -> None:
        """Raises `StorageUnavailable` if the file still can't be read."""
        unread = self._directory.unread
        async with self._reading_again:
            name = self._names.get(session_id)
            if name is None or session_id not in unread:
                return  # somebody else was first
            known = await self._directory.index.known(session_id)
            stamp = None if known is None else known[1]
            reading = self._directory.reading(session_id, name, stamp)
            await self._directory.learn(reading.whole())
            if session_id not in self._names:  # deleted meanwhile
                self._forget(session_id)
            elif reading.is_unread:
                raise StorageUnavailable(f"the file of {session_id!r} can't be read now")
            unread.discard(session_id)

    async def _learn_again(self, session_id: str) -> None:
        """Adds the current state of the file to the index."""
        known = await self._directory.index.known(session_id)
        name = self._names.get(session_id)
        if name is None or known is None:
            raise ConversationNotFound(session_id)
        self._let_go(session_id)
        # The head of a row that was listed was in the file, synced or not.
        stamp = replace(known[1], head_seq=known[0].head_seq, synced=True)
        await self._directory.learn(self._directory.pieces(session_id, [name], stamp))
        self.changes.note(known[0].user, session_id, "message")

    # Work that may meet damage

    async def _use(
        self,
        session_id: str,
        work: Callable[[JsonFile, ConversationRow], _T],
        *,
        to_write: bool = False,
    ) -> _T:
        """Runs `work` on the file. The file takes precedence over the index: a restored older copy
        is read again."""
        run = self._threads.write if to_write else self._threads.read
        for is_reread in (False, True):
            row, file = await self._find(session_id)
            was_settled = to_write or file.tail is not None
            try:
                result = await run(lambda: work(file, row))  # noqa: B023
            except ConversationShortened:
                if is_reread:
                    raise
                await self._learn_again(session_id)
                continue
            except ConversationDamaged as damage:
                damage.can_be_repaired = True
                self._set_apart(session_id, file.path.name, row, damage.reason)
                raise
            if not was_settled:
                await self._note_settled(file, row)
            return result
        raise AssertionError

    async def _read(self, session_id: str, work: Callable[[JsonFile, ConversationRow], _T]) -> _T:
        """Reads from the file or, if it is damaged, from a repaired copy."""
        try:
            return await self._use(session_id, work)
        except ConversationShortened:
            raise
        except ConversationDamaged as damage:
            row, file = await self._readable_copy(session_id, damage)
            return await self._threads.read(lambda: work(file, row))

    async def _readable_copy(
        self, session_id: str, damage: ConversationDamaged
    ) -> tuple[ConversationRow, JsonFile]:
        """A read-only copy that lives as long as this process. Raises `damage` if nothing can be
        read."""
        if session_id not in self._copies:
            path = self._path(session_id)
            name = on_its_way(path.with_name(f"{path.name}.readable")).name
            file = self._file_at(name, session_id)
            listed = await self.row(session_id)
            if listed is None:
                raise damage
            known = KnownElsewhere(user=listed.user, created_at=listed.created_at)

            def make() -> ConversationRow:
                write_readable_copy(path, file.path, session_id, known=known)
                return self._directory.row_in(file.path, session_id)[0]

            try:
                await self._directory.space.check(session_id)
                row = await self._threads.write(make)
            except (CannotRepair, OSError, ConversationReadOnly):
                raise damage from None
            self._copies[session_id] = replace(row, damaged=True), file
        return self._copies[session_id]

    async def _drop_copy(self, session_id: str) -> None:
        """Removes the readable copy, which must not outlive the conversation or survive a
        redaction."""
        if session_id in self._copies:
            _, file = self._copies.pop(session_id)
            await self._threads.write(lambda: self._disk.remove(file.path))

    def _set_apart(self, session_id: str, name: str, row: ConversationRow, reason: str) -> None:
        self._directory.damage[session_id] = reason
        # The head is remembered: a file that was cut short must not look sound later.
        synced = self._directory.syncs_at_once
        stamp = replace(void_stamp(name, None), head_seq=row.head_seq, synced=synced)
        self._directory.index.note(replace(row, damaged=True), stamp)
        self.changes.note(row.user, session_id, "damaged")

    async def _note_settled(self, file: JsonFile, row: ConversationRow) -> None:
        """Updates the index after opening has rewritten the end of the file."""
        try:
            found = await self._threads.read(lambda: self._disk.found(file.path))
        except OSError:
            return
        tail = file.tail
        is_idle = self._is_idle(file.session_id)
        if tail is not None and is_idle and tail.closing.head_seq == row.head_seq:
            stamp = FileStamp(file=found, end_offset=tail.end, head_seq=row.head_seq)
            self._directory.index.note(row, stamp)

    async def _look_for_damage(self, rows: Sequence[ConversationRow]) -> dict[str, ConversationRow]:
        """The given rows whose files have been damaged or shortened by another program, with their
        new rows. A file counts as unchanged by its size and time, which are checked once a second
        at most; a changed file is read once. Open files are left out, because their readers
        notice."""
        now = self._directory.settings.seconds()
        closed = {
            row.session_id: row
            for row in rows
            if now >= self._look_again_at.get(row.session_id, now)
            and not row.damaged
            and self._is_idle(row.session_id)
        }
        if not closed:
            return {}
        # Those whose time has come need not be remembered.
        later = {id_: at for id_, at in self._look_again_at.items() if at > now}
        self._look_again_at = later | dict.fromkeys(closed, now + _LOOK_SECONDS)
        stamps = await self._directory.index.stamps([*closed])
        paths = {id_: self._path(id_) for id_ in stamps if id_ in self._names}
        changed = await self._threads.read(lambda: self._changed(paths, stamps))
        new_rows: dict[str, ConversationRow] = {}
        for session_id, found in changed.items():
            row, path = closed[session_id], paths[session_id]
            there, reason = await self._threads.read(
                lambda: self._directory.row_in(path, session_id)  # noqa: B023
            )
            self._looked_at[session_id] = found
            if not self._is_idle(session_id):
                continue
            if reason is not None:
                self._set_apart(session_id, path.name, row, reason)
                new_rows[session_id] = replace(row, damaged=True)
            elif there.head_seq < row.head_seq:
                await self._learn_again(session_id)
                new_rows[session_id] = await self._directory.index.row(session_id) or row
        return new_rows

    def _changed(
        self, paths: Mapping[str, Path], stamps: Mapping[str, FileStamp]
    ) -> dict[str, FoundFile]:
        """Files that have changed. Missing or inaccessible ones are left to the callers that open
        them. Blocks."""
        changed: dict[str, FoundFile] = {}
        for session_id, path in paths.items():
            with suppress(OSError):
                found, known = self._disk.found(path), stamps[session_id].file
                if known.size >= 0 and found not in (known, self._looked_at.get(session_id)):
                    changed[session_id] = found
        return changed
