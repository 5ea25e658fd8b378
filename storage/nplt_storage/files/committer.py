"""The one writer of a conversation that is kept in a file.

A commit runs in a thread, in one hop, shielded from cancellation: who gives up
waiting must not leave a half-known state behind. It has a deadline of its own,
though. When a disk hangs, the append fails, and should the thread get through
later, what it wrote was not acknowledged: it is not counted in, and is set
aside before the next append.
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import Callable
from functools import partial
from threading import Lock

import anyio

from nplt_storage.errors import ConversationReadOnly, StorageUnavailable
from nplt_storage.facts.entries import Entry
from nplt_storage.files.appender import Addition, Appender
from nplt_storage.files.commit_threads import CommitThreads

COMMIT_SECONDS_MAX = 30.0


class _Commit:
    """One append on its way. Whoever comes first settles how it ended."""

    __slots__ = ("addition", "is_begun", "is_done", "is_given_up")

    def __init__(self, addition: Addition) -> None:
        self.addition = addition
        self.is_begun = False
        self.is_done = False
        self.is_given_up = False


class Committer:
    def __init__(
        self,
        appender: Appender,
        *,
        appended: Callable[[Entry], None],
        closed: Callable[[], None],
        threads: CommitThreads,
        commit_seconds_max: float = COMMIT_SECONDS_MAX,
    ) -> None:
        self._appender = appender
        self._appended = appended
        self._closed = closed
        self._threads = threads
        self._commit_seconds_max = commit_seconds_max
        self._lock = Lock()
        """Never held while the disk works: the event loop takes it too."""
        self._is_writing = False
        self._is_closed = False

    @property
    def session_id(self) -> str:
        return self._appender.session_id

    async def append(self, entry: Entry) -> None:
        commit, done = self._begin(entry)
        try:
            with anyio.move_on_after(self._commit_seconds_max, shield=True):
                await done
        finally:
            with self._lock:
                commit.is_given_up = not commit.is_done
                if not commit.is_begun:
                    self._is_writing = False
        if commit.is_given_up:
            raise StorageUnavailable(f"no answer from the disk in {self._commit_seconds_max:g} s")
        self._appended(entry)

    async def close(self) -> None:
        if not self._mark_closed():
            return
        released = self._threads.submit_or_do(self._release)
        with anyio.move_on_after(self._commit_seconds_max, shield=True):
            await released
        self._closed()

    def _begin(self, entry: Entry) -> tuple[_Commit, Future[None]]:
        with self._lock:
            if self._is_closed:
                raise ConversationReadOnly(self.session_id, "this record was closed")
            if self._is_writing:
                raise ConversationReadOnly(self.session_id, "the disk has not answered yet")
            commit = _Commit(self._appender.prepare(entry))
            done = self._threads.submit(partial(self._run, commit))
            self._is_writing = True  # before the thread can look: it needs this lock
            return commit, done

    def _mark_closed(self) -> bool:
        with self._lock:
            was_open, self._is_closed = not self._is_closed, True
        return was_open

    def _run(self, commit: _Commit) -> None:
        with self._lock:
            if commit.is_given_up:
                return
            commit.is_begun = True
        try:
            self._appender.commit(commit.addition, wanted=lambda: self._finish(commit))
        finally:
            with self._lock:
                self._is_writing = False
                is_closed = self._is_closed
            if is_closed:
                self._appender.close()

    def _finish(self, commit: _Commit) -> bool:
        with self._lock:
            commit.is_done = not commit.is_given_up
            return commit.is_done

    def _release(self) -> None:
        with self._lock:
            is_writing = self._is_writing
        if not is_writing:  # else the thread that hangs there does it
            self._appender.close()
