"""The one thread that owns the catalogue's database.

It does jobs from a queue, in order. Notes lie on a pile beside it: they are
taken in together, a moment later or before the next job, so that of a
conversation that grows quickly only the last row is written, and a question
sees all that was noted before it. Long work is done in slices, and tidying up
when there is nothing else to do.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeAlias, TypeVar

from nplt_storage.catalogue.books import Books
from nplt_storage.catalogue.learned import Learned, Note
from nplt_storage.catalogue.ledger import Ledger
from nplt_storage.errors import StorageUnavailable

log = logging.getLogger(__name__)

_LINGER_SECONDS = 0.2
_SLICE_ENTRIES = 200
_T = TypeVar("_T")
_Job: TypeAlias = Callable[[], None]


class Clerk:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._pile: deque[Note] = deque()
        self._stirred = False
        self._until_tidy: list[_Reply[None]] = []
        self._closing = False
        self._at_work = True
        # The database is whole whenever the process ends: nobody need wait for it.
        threading.Thread(target=self._work, name="nplt-catalogue", daemon=True).start()

    # On the event loop

    def note(self, note: Note) -> None:
        if self._closing:
            return
        self._pile.append(note)
        if not self._stirred:
            self._stirred = True
            self._jobs.put(None)

    async def ask(self, question: Callable[[Books], _T]) -> _T:
        reply = _Reply[_T]()
        self._give(lambda: reply.say(self._ledger.answer(question)), reply)
        return await reply.future

    async def take_in(self, note: Note) -> None:
        reply = _Reply[None]()

        def job() -> None:
            self._ledger.take_in([note])
            reply.say(None)

        self._give(job, reply)
        await reply.future

    async def take_in_all(self, notes: Callable[[], Iterator[Note]]) -> None:
        """Slice by slice; other jobs are done between two of them."""
        reply = _Reply[None]()

        def go_on(rest: Iterator[Note]) -> None:
            if self._closing:
                raise StorageUnavailable("the catalogue is closed")
            if self._take_in_slice(rest):
                reply.say(None)
            else:
                self._jobs.put(reply.guarded(lambda: go_on(rest)))

        self._give(lambda: go_on(notes()), reply)
        await reply.future

    async def take_in_and_tidy(self, note: Note) -> None:
        """Waits until all that is to be erased is erased."""
        reply = _Reply[None]()

        def job() -> None:
            self._ledger.take_in([note])
            self._until_tidy.append(reply)

        self._give(job, reply)
        await reply.future

    async def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        reply = _Reply[None]()

        def job() -> None:
            while self._until_tidy and self._ledger.untidy:
                self._ledger.tidy()
            self._at_work = False
            self._ledger.close()
            reply.say(None)

        self._jobs.put(reply.guarded(job))
        await reply.future

    def _give(self, job: _Job, reply: _Reply[Any]) -> None:
        if self._closing:
            raise StorageUnavailable("the catalogue is closed")
        self._jobs.put(reply.guarded(job))

    # In the thread

    def _work(self) -> None:
        while self._at_work:
            try:
                job = self._next_job()
                self._take_in_pile()
                if job is not None:
                    job()
                elif self._ledger.untidy:
                    self._ledger.tidy()
            except Exception:
                log.exception("the catalogue goes on after a mistake in it")
            if self._until_tidy and not self._ledger.untidy:
                for reply in self._until_tidy:
                    reply.say(None)
                self._until_tidy.clear()
        # All that can be left is long work that now hears that it is over.
        while not self._jobs.empty():
            job = self._jobs.get()
            if job is not None:
                job()

    def _next_job(self) -> _Job | None:
        """`None`: it is time for the pile, or to tidy up."""
        try:
            if self._ledger.untidy:
                return self._jobs.get_nowait()
            return self._jobs.get() or self._jobs.get(timeout=_LINGER_SECONDS)
        except Empty:
            return None

    def _take_in_pile(self) -> None:
        self._stirred = False
        notes: list[Note] = []
        while self._pile:
            notes.append(self._pile.popleft())
        if notes:
            self._ledger.take_in(notes)

    def _take_in_slice(self, notes: Iterator[Note]) -> bool:
        """Whether that was the last."""
        batch: list[Note] = []
        entries = 0
        for note in notes:
            batch.append(note)
            entries += len(note.entries) + 1 if isinstance(note, Learned) else 1
            if entries >= _SLICE_ENTRIES:
                break
        self._ledger.take_in(batch)
        return entries < _SLICE_ENTRIES


class _Reply(Generic[_T]):
    """Said in the thread, heard on the event loop that asked."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[_T] = self._loop.create_future()

    def say(self, result: _T) -> None:
        self._wake(lambda: self.future.set_result(result))

    def guarded(self, job: _Job) -> _Job:
        def safely() -> None:
            try:
                job()
            except sqlite3.Error as error:
                self._fail(StorageUnavailable(f"the catalogue can't be read: {error}"))
            except BaseException as error:
                self._fail(error)

        return safely

    def _fail(self, error: BaseException) -> None:
        self._wake(lambda: self.future.set_exception(error))

    def _wake(self, settle: Callable[[], None]) -> None:
        def unless_given_up() -> None:
            if not self.future.done():
                settle()

        # The loop may be gone, if the program ends without closing the catalogue.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(unless_given_up)
