"""The thread that owns the index, and its recovery from failures.

Updates are applied in batches, one transaction each. A batch that can't be committed
(disk full, not writable) is tried again with the next one, and until then applied for
each question and rolled back. A broken database is rebuilt from the files; if that
happens twice, it is kept in memory.

The thread runs jobs from a queue, in order. Updates are collected next to it and applied
together, a moment later or before the next job: of a conversation that grows quickly
only the last row is written. Long work is done in slices, and cleaning up when there is
nothing else to do.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from datetime import datetime
from functools import partial
from itertools import islice
from pathlib import Path
from queue import Empty, SimpleQueue
from traceback import extract_tb
from typing import TypeAlias, TypeVar

import anyio
import anyio.to_thread

from nplt_storage.entries import Entry
from nplt_storage.errors import StorageError, StorageUnavailable
from nplt_storage.index.database import (
    checkpoint,
    create_database,
    in_memory,
    open_database,
    open_reader,
    roll_back,
    transaction,
)
from nplt_storage.index.tables import IndexTables
from nplt_storage.index.updates import (
    ConversationAccessed,
    ConversationGone,
    EntriesAdded,
    EntryRedacted,
    FileStamp,
    IndexUpdate,
    MarkMoved,
    PromptsFound,
    Survey,
    Surveyed,
)
from nplt_storage.rows import ConversationRow, RowPage, RowQuery
from nplt_storage.search import SearchPage, SearchQuery

log = logging.getLogger(__name__)
_T = TypeVar("_T")


_MAY_PASS = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_READONLY,
}
_CUT_SHORT = sqlite3.SQLITE_IOERR_SHORT_READ


class IndexDatabase:
    def __init__(self, path: Path, survey: Survey, seen: dict[str, int]) -> None:
        self._path = path
        self._survey = survey
        self._seen = seen
        self._connection = open_database(path)
        self._tables = IndexTables(self._connection, seen)
        self._uncommitted: list[IndexUpdate] = []
        self._rebuilt = False
        self._has_given_up = False
        self._has_complained = False

    @property
    def untidy(self) -> bool:
        return self._tables.untidy and not self._has_given_up

    def take_in(self, notes: Sequence[IndexUpdate]) -> None:
        self._uncommitted += notes
        try:
            with transaction(self._connection):
                self._tables.apply(self._uncommitted)
            self._uncommitted = []
            self._has_given_up = self._has_complained = False
        except sqlite3.Error as error:
            self._cope(error)
        except Exception:
            # One update can't be applied. It must not keep the others from being applied.
            uncommitted, self._uncommitted = self._uncommitted, []
            self._tables = IndexTables(self._connection, self._seen)
            self._take_in_singly(uncommitted)

    def query(self, question: Callable[[IndexTables], _T]) -> _T:
        if self._uncommitted:
            self.take_in(())
        try:
            if self._uncommitted:
                return self._query_as_if_settled(question)
            return question(self._tables)
        except sqlite3.Error as error:
            self._cope(error)
        try:
            return question(self._tables)
        except sqlite3.Error as error:
            self._rebuild(error)
            return question(self._tables)

    def is_complete(self) -> bool:
        """Whether the database holds all updates and can be searched."""
        if self._uncommitted:
            self.take_in(())
        return not self._uncommitted and self._tables.texts is not None

    def changes(self) -> Iterator[Surveyed]:
        """The changes in the files that the index does not know yet."""
        yield from self._survey(self.query(lambda tables: tables.stamps()))

    def tidy(self) -> None:
        self._has_given_up = True
        try:
            self._tables.tidy()
            self._has_given_up = False
        except sqlite3.Error as error:
            # What is left to do is written down in the database itself.
            self._cope(error)

    def close(self) -> None:
        try:
            checkpoint(self._connection)
        except sqlite3.Error as error:
            log.warning("the journal of %s could not be emptied: %s", self._path, error)
        self._connection.close()

    def _query_as_if_settled(self, question: Callable[[IndexTables], _T]) -> _T:
        self._connection.execute("BEGIN")
        try:
            self._tables.apply(self._uncommitted)
            return question(self._tables)
        finally:
            roll_back(self._connection)
            self._tables = IndexTables(self._connection, self._seen)

    def _cope(self, error: sqlite3.Error) -> None:
        # The primary code; SQLite tells some of them apart further.
        code = getattr(error, "sqlite_errorcode", 0)
        if code & 0xFF not in _MAY_PASS or code == _CUT_SHORT:
            self._rebuild(error)
            return
        if not self._has_complained:
            self._has_complained = True
            log.warning("%s can't be written or read now: %s", self._path, error)
        self._tables = IndexTables(self._connection, self._seen)

    def _rebuild(self, error: sqlite3.Error) -> None:
        name = getattr(error, "sqlite_errorname", "")  # tells a broken table from broken full text
        where = " in ".join(frame.name for frame in reversed(extract_tb(error.__traceback__)[-3:]))
        log.error(
            "%s is broken (%s %s, found by %s) and is built again from the files",
            *(self._path, error, name, where),
        )
        self._connection.close()
        self._connection = in_memory() if self._rebuilt else create_database(self._path)
        self._rebuilt = True
        self._tables = IndexTables(self._connection, self._seen)
        uncommitted, self._uncommitted = self._uncommitted, []
        try:
            found = self._survey({})
            self._take_in_singly(note for note in found if note is not None)
        except (OSError, StorageError):
            log.exception("the files can't be read: lists are not complete")
        self._take_in_singly(uncommitted)

    def _take_in_singly(self, notes: Iterable[IndexUpdate]) -> None:
        for note in notes:
            try:
                with transaction(self._connection):
                    self._tables.apply([note])
            except Exception:
                log.exception("%s can't be added to the catalogue", type(note).__name__)
                self._tables = IndexTables(self._connection, self._seen)


_LINGER_SECONDS = 0.2
_SEARCH_THREADS = 2
_SLICE_ENTRIES = 200
_MARKS_AGAIN_MAX = 256
_Job: TypeAlias = Callable[[], None]


def settle(future: asyncio.Future[_T], settle_it: Callable[[], None]) -> None:
    """Settles a future from any thread. Nothing happens if its waiter has given up, or if the loop
    is gone because the program ended without closing the index."""

    def unless_given_up() -> None:
        if not future.done():
            settle_it()

    with suppress(RuntimeError):
        future.get_loop().call_soon_threadsafe(unless_given_up)


class ConversationIndex:
    """Updates are noted at once and never fail; questions see all earlier updates."""

    def __init__(self, path: Path, *, survey: Survey, seen: dict[str, int] | None = None) -> None:
        """Opens or creates the database and starts the thread; blocks briefly. `catch_up` calls
        `survey`, and so does the rebuilding of a database that breaks. `seen` has the marks of what
        users have seen, the newest at the end."""
        self._path = path
        seen = {} if seen is None else seen
        self._database = IndexDatabase(path, survey, seen)
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._pending: deque[IndexUpdate] = deque()
        self._is_woken = False
        self._until_tidy: list[asyncio.Future[None]] = []
        self._searching: dict[str, anyio.Lock] = {}
        self._search_threads = anyio.CapacityLimiter(_SEARCH_THREADS)
        self._closing = False
        self._at_work = True
        # A crash may have come between a mark and the update of the database.
        for session_id in islice(reversed(seen), _MARKS_AGAIN_MAX):
            self.note_seen(session_id)
        # The database is intact whenever the process ends, so the thread need not be waited for.
        threading.Thread(target=self._work, name="nplt-index", daemon=True).start()

    # Taking note: quick, in order, never an error

    def note(self, row: ConversationRow, stamp: FileStamp, *entries: Entry) -> None:
        """Notes the conversation's row after these durable entries."""
        self._note(EntriesAdded(row=row, stamp=stamp, entries=entries))

    def touch(self, session_id: str, at: datetime) -> None:
        self._note(ConversationAccessed(session_id=session_id, at=at))

    def forget(self, session_id: str) -> None:
        self._note(ConversationGone(session_id=session_id))

    def note_seen(self, session_id: str) -> None:
        """Notes that the mark of the conversation has changed."""
        self._note(MarkMoved(session_id=session_id))

    def note_prompts(self, found: PromptsFound) -> None:
        self._note(found)

    def _note(self, note: IndexUpdate) -> None:
        if self._closing:
            return
        self._pending.append(note)
        if not self._is_woken:
            self._is_woken = True
            self._jobs.put(None)

    # Taking in, and waiting for it

    async def catch_up(self) -> None:
        """Surveys the files slice by slice. Queries run between slices with what is
        known so far, so callers need not wait for this."""
        rest = self._database.changes()
        while not await self._do(lambda: self._take_in_slice(rest)):
            pass

    async def learn(self, piece: EntriesAdded) -> None:
        """Like `note`, for many entries (an import, a replaced file): waits until they are written,
        so that updates do not pile up."""
        await self._do(lambda: self._database.take_in([piece]))

    async def redact(self, row: ConversationRow, stamp: FileStamp, seq: int) -> None:
        """Removes that message from the index, and its words from the bytes of the database's
        files. Neither `row` nor the file may still contain it."""
        tidied: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def job() -> None:
            self._database.take_in([EntryRedacted(row=row, stamp=stamp, seq=seq)])
            self._until_tidy.append(tidied)

        await self._do(job)
        await tidied

    # Questions

    async def row(self, session_id: str) -> ConversationRow | None:
        return await self._ask(lambda tables: tables.row(session_id))

    async def known(self, session_id: str) -> tuple[ConversationRow, FileStamp] | None:
        """The row, and the stamp of the file it was made from."""
        return await self._ask(lambda tables: tables.known(session_id))

    async def list(self, user: str, query: RowQuery) -> RowPage:
        """Raises `BadCursor`."""
        return await self._ask(lambda tables: tables.page(user, query))

    async def count(self, user: str) -> int:
        return await self._ask(lambda tables: tables.count(user))

    async def search(self, user: str, query: SearchQuery) -> SearchPage:
        """Searches on a connection of its own, so that the writer does not wait; each user has one
        search at a time. Raises `BadCursor`, and `StorageUnavailable` if there is no index or the
        search takes too long."""

        def find(tables: IndexTables) -> SearchPage:
            return tables.search(user, query)

        def find_in_thread() -> SearchPage:
            # One transaction: what is found can't be removed before its text is read.
            with closing(open_reader(self._path)) as connection, transaction(connection):
                return find(IndexTables(connection))

        turn = self._searching.setdefault(user, anyio.Lock())
        try:
            async with turn:
                if await self._do(self._database.is_complete):
                    with suppress(sqlite3.Error):
                        return await anyio.to_thread.run_sync(
                            find_in_thread, limiter=self._search_threads, abandon_on_cancel=True
                        )
                return await self._ask(find)  # which copes with a broken database
        finally:
            if not turn.statistics().locked and not turn.statistics().tasks_waiting:
                self._searching.pop(user, None)

    async def prompt(self, session_id: str, message_id: str) -> tuple[int | None, int]:
        """The prompt's number, and the entry up to which all prompts are known."""
        return await self._ask(lambda tables: tables.prompt(session_id, message_id))

    async def stamps(self, ids: Sequence[str] | None = None) -> dict[str, FileStamp]:
        """The stamps of these conversations, or of all."""
        return await self._ask(lambda tables: tables.stamps(ids))

    async def close(self) -> None:
        """Writes all updates to the file and closes it."""
        if self._closing:
            return
        done = self._submit(self._finish)
        self._closing = True
        await done

    async def _ask(self, question: Callable[[IndexTables], _T]) -> _T:
        return await self._do(lambda: self._database.query(question))

    async def _do(self, work: Callable[[], _T]) -> _T:
        if self._closing:
            raise StorageUnavailable("the server is shutting down")
        return await self._submit(work)

    def _submit(self, work: Callable[[], _T]) -> asyncio.Future[_T]:
        done: asyncio.Future[_T] = asyncio.get_running_loop().create_future()

        def job() -> None:
            try:
                result = work()
            except sqlite3.Error as error:
                reason = StorageUnavailable(f"the catalogue can't be read: {error}")
                settle(done, lambda: done.set_exception(reason))
            except BaseException as error:
                settle(done, partial(done.set_exception, error))
            else:
                settle(done, lambda: done.set_result(result))

        self._jobs.put(job)
        return done

    # In the thread

    def _work(self) -> None:
        while self._at_work:
            try:
                job = self._next_job()
                self._is_woken = False
                if notes := [self._pending.popleft() for _ in range(len(self._pending))]:
                    self._database.take_in(notes)
                if job is not None:
                    job()
                elif self._database.untidy:
                    self._database.tidy()
            except Exception:
                log.exception("an error in the catalogue; it continues")
            while self._until_tidy and not self._database.untidy:
                tidied = self._until_tidy.pop()
                settle(tidied, partial(tidied.set_result, None))

    def _finish(self) -> None:
        while self._until_tidy and self._database.untidy:
            self._database.tidy()
        self._at_work = False
        self._database.close()

    def _next_job(self) -> _Job | None:
        """The next job; `None` if it is time for pending updates or for tidying."""
        try:
            if self._database.untidy:
                return self._jobs.get_nowait()
            return self._jobs.get() or self._jobs.get(timeout=_LINGER_SECONDS)
        except Empty:
            return None

    def _take_in_slice(self, notes: Iterator[Surveyed]) -> bool:
        """Applies the next updates; true if they were the last."""
        batch: list[IndexUpdate] = []
        entries = 0
        is_last = True
        for note in notes:
            if note is not None:
                batch.append(note)
                entries += len(note.entries) + 1 if isinstance(note, EntriesAdded) else 1
            if note is None or entries >= _SLICE_ENTRIES:
                is_last = False
                break
        if batch:
            self._database.take_in(batch)
        return is_last
