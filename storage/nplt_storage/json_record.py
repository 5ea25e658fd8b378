"""The one writer of a conversation that is kept in a file.

A commit runs in a worker thread, in one hop, shielded from cancellation: who
gives up waiting must not leave a half-known state behind. It has a deadline of
its own, though. When a disk hangs, the append fails, and should the thread get
through later, what it wrote was not acknowledged: it is not counted in, and
is set aside before the next append.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

import anyio
import anyio.to_thread

from nplt_storage.entries import Entry
from nplt_storage.errors import ConversationReadOnly, StorageUnavailable
from nplt_storage.json_appender import Appender

COMMIT_SECONDS_MAX = 30.0


class _Commit:
    """One append on its way. Whoever comes first settles how it ended."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.is_begun = False
        self.is_done = False
        self.is_given_up = False


class JsonRecord:
    def __init__(
        self,
        appender: Appender,
        *,
        appended: Callable[[Entry], None],
        closed: Callable[[], None],
        threads: anyio.CapacityLimiter,
        commit_seconds_max: float = COMMIT_SECONDS_MAX,
    ) -> None:
        self._appender = appender
        self._appended = appended
        self._closed = closed
        self._threads = threads
        self._commit_seconds_max = commit_seconds_max
        self._lock = Lock()
        self._is_writing = False
        self._is_closed = False

    @property
    def session_id(self) -> str:
        return self._appender.session_id

    async def append(self, entry: Entry) -> None:
        with self._lock:
            if self._is_closed:
                raise ConversationReadOnly(self.session_id, "this record was closed")
            if self._is_writing:
                raise ConversationReadOnly(self.session_id, "the disk has not answered yet")
            self._is_writing = True
        commit = _Commit(entry)
        try:
            with anyio.move_on_after(self._commit_seconds_max, shield=True):
                await anyio.to_thread.run_sync(
                    self._run, commit, abandon_on_cancel=True, limiter=self._threads
                )
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
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._release, limiter=self._threads)
        self._closed()

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
            self._appender.append(commit.entry, wanted=lambda: self._finish(commit))
        finally:
            with self._lock:
                self._is_writing = False
                if self._is_closed:
                    self._appender.release()

    def _finish(self, commit: _Commit) -> bool:
        with self._lock:
            commit.is_done = not commit.is_given_up
            return commit.is_done

    def _release(self) -> None:
        with self._lock:
            if not self._is_writing:  # else the thread that hangs there does it
                self._appender.release()
