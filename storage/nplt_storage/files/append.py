"""Appends to a conversation's file, and handles failures of the disk.

One commit is one line, written with a new closing line in one write at the place
of the old closing line; then a sync, then the acknowledgement. No byte of an
acknowledged line changes again. If the write fails, the old closing line is
restored. If the sync fails, the state on disk is not known: the file is closed, and the
next append first repairs it up to the last acknowledged line.

With a durability other than `always`, a sync that fails later makes the next
append fail; the repair then begins at the first unconfirmed line.
"""

from __future__ import annotations

import logging
import os
from asyncio import TimerHandle
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from threading import Lock, Timer
from typing import Generic, Literal, NamedTuple, TypeAlias, TypeVar

import anyio
from msgspec import Struct
from msgspec.structs import replace

from nplt_storage.entries import Entry
from nplt_storage.errors import BadEntry, ConversationReadOnly, StorageUnavailable
from nplt_storage.file_system import FileId, write_all
from nplt_storage.files.commit_threads import CommitThreads
from nplt_storage.files.conversation_file import JsonFile, check_lines, plain_errors, reader_of
from nplt_storage.files.format import Tail, make_whole
from nplt_storage.store import Unstoppable

log = logging.getLogger(__name__)

# ------------------------------------------------------------------------------
# Durability: when a write is synced
#
#     always      before it is acknowledged
#     interval    some time later, together with later writes
#     never       by the operating system, and when the conversation is closed
#
# In every mode an entry is written before it is acknowledged, so it survives the end
# of the process. The modes differ in what a power cut may lose.

DurabilityMode: TypeAlias = Literal["always", "interval", "never"]

SyncLater: TypeAlias = Callable[[Callable[[], None]], None]
"""Schedules a sync that is due. Raises `StorageUnavailable` if it can't schedule the sync."""


class Durability(Struct, frozen=True, kw_only=True):
    mode: DurabilityMode = "always"
    interval_seconds: float = 1.0

    def __post_init__(self) -> None:
        if self.interval_seconds <= 0:
            raise ValueError("the interval between syncs must be longer than nothing")

    @property
    def promise(self) -> str:
        match self.mode:
            case "always":
                return "on disk (fdatasync) before it is acknowledged"
            case "interval":
                return (
                    "written before it is acknowledged, on disk (fdatasync) at most "
                    f"{self.interval_seconds:g} s later; a power cut may take what came since"
                )
            case "never":
                return (
                    "written before it is acknowledged, not synced; a power cut may take"
                    " what came since the conversation was opened"
                )

    def sync_later(self, threads: CommitThreads) -> SyncLater | None:
        """The function that schedules syncs; `None` if every append syncs at once."""
        match self.mode:
            case "always":
                return None
            case "interval":
                return SyncSchedule(self.interval_seconds, threads).add
            case "never":
                return lambda sync: None


class SyncSchedule:
    """Collects syncs and starts them together, a fixed time after the first was added."""

    def __init__(self, seconds: float, threads: CommitThreads) -> None:
        self._seconds = seconds
        self._threads = threads
        self._lock = Lock()
        self._due: list[Callable[[], None]] = []

    def add(self, sync: Callable[[], None]) -> None:
        with self._lock:
            if not self._due:
                timer = Timer(self._seconds, self._begin)
                timer.daemon = True  # closing a conversation syncs it, so no sync is lost at exit
                try:
                    timer.start()
                except RuntimeError as error:
                    reason = f"the system gives no more threads: {error}"
                    raise StorageUnavailable(reason) from error
            self._due.append(sync)

    def _begin(self) -> None:
        with self._lock:
            due, self._due = self._due, []
        for sync in due:
            try:
                self._threads.start(sync)
            except StorageUnavailable:
                sync()  # no thread to be had: sync in the timer's thread


class PreparedLine(NamedTuple):
    """The bytes that an append writes, and the end of the file before and after it."""

    data: bytes
    before: Tail
    after: Tail


class Appender:
    def __init__(
        self, file: JsonFile, descriptor: int | None = None, *, sync_later: SyncLater | None = None
    ) -> None:
        """Owns the descriptor from here on. Without one the first append opens the file."""
        self.session_id = file.session_id
        self._file = file
        self._files = file.files
        self._descriptor = descriptor
        self._file_id: FileId | None = None
        """The identity of the open descriptor, once it has been looked up."""
        self._sync_later = sync_later
        self._lock = Lock()
        """Serializes appends and scheduled syncs; held during disk operations."""
        self._unsynced_from: int | None = None
        """Offset of the first line that no sync has confirmed."""
        self._failure: OSError | None = None
        """The error of a scheduled sync, which the next append raises."""

    def prepare(self, entry: Entry) -> PreparedLine:
        """Validates and encodes an entry. Writes nothing; a bad entry is refused here."""
        tail = self._file.tail
        assert tail is not None
        if entry.seq != tail.closing.head_seq + 1:
            raise BadEntry(f"entry {entry.seq} can't follow entry {tail.closing.head_seq}")
        line, after = tail.extended(entry)
        return PreparedLine(line + after.closing_line, tail, after)

    def append(self, entry: Entry) -> None:
        """Prepares and commits. Blocks."""
        self.commit(self.prepare(entry))

    def commit(
        self, prepared: PreparedLine, *, acknowledge: Callable[[], bool] = lambda: True
    ) -> None:
        """Writes the line, syncs it as the durability mode says, then calls `acknowledge`.
        If that returns False, the caller has given up waiting: the line does not count, and
        is set aside before the next append."""
        with self._lock, self._file.writing:
            if self._file.tail is not prepared.before:  # the commit hung too long
                raise ConversationReadOnly(self.session_id, "the file was opened anew meanwhile")
            self._write(prepared.data, prepared.before)
            if acknowledge():
                self._file.tail = prepared.after
            else:
                self._release()

    def sync(self) -> None:
        """Syncs lines that were written earlier. Called when a scheduled sync is due."""
        with self._lock:
            if self._descriptor is None or self._unsynced_from is None:
                return
            try:
                self._sync(self._descriptor)
            except OSError as error:
                self._failure = error
                log.error("%s: the disk did not confirm: %s", self._file.path.name, error.strerror)

    def close(self) -> None:
        """Syncs unconfirmed lines and closes the descriptor."""
        self.sync()
        with self._lock:
            self._release()
            tail, confirmed = self._file.tail, self._unsynced_from
            if tail is not None and confirmed is not None and confirmed < tail.end:
                log.error("%s: its last lines may not be on disk", self._file.path.name)

    def _release(self) -> None:
        """Closes the descriptor without a sync. The next append repairs the file first."""
        descriptor, self._descriptor, self._file_id = self._descriptor, None, None
        if descriptor is not None:
            with suppress(OSError):  # the descriptor is closed even if close() fails
                self._files.close(descriptor)

    def _write(self, data: bytes, tail: Tail) -> None:
        if self._failure is not None:
            error, self._failure = self._failure, None
            raise self._not_confirmed(error) from error
        descriptor = self._reopen(tail) if self._descriptor is None else self._descriptor
        self._check_undisturbed(descriptor, tail)
        try:
            write_all(self._files, descriptor, data, tail.end)
        except OSError as error:
            self._restore_closing_line(descriptor, tail)
            raise StorageUnavailable(f"writing failed: {error.strerror}") from error
        if self._sync_later is not None:
            if self._unsynced_from is not None:
                return  # a sync is scheduled already
            with suppress(StorageUnavailable):  # nothing can run it later: it is synced now
                self._sync_later(self.sync)
                self._unsynced_from = tail.end
                return
        try:
            self._sync(descriptor)
        except OSError as error:
            raise self._not_confirmed(error) from error

    def _check_undisturbed(self, descriptor: int, tail: Tail) -> None:
        """Refuses the append if another program (an editor, a restored backup) changed or
        replaced the file: the line would be acknowledged, but lost."""
        size = tail.size
        try:
            if self._file_id is None:
                self._file_id = self._files.file_id(descriptor)
            # One system call: each of them lets the other threads in, and waits for them.
            if self._files.find(self._file.path) == (self._file_id, size):
                return
        except OSError as error:
            raise StorageUnavailable(f"the file can't be examined: {error.strerror}") from error
        raise ConversationReadOnly(
            self.session_id, "its file was changed or replaced by another program"
        )

    def _sync(self, descriptor: int) -> None:
        try:
            self._files.sync_data(descriptor)
        except OSError:
            # Linux reports a sync error once: a second sync through this descriptor would
            # succeed although the data is not on disk.
            self._release()
            raise
        self._unsynced_from = None

    def _restore_closing_line(self, descriptor: int, tail: Tail) -> None:
        try:
            self._files.truncate(descriptor, tail.size)
            write_all(self._files, descriptor, tail.closing_line, tail.end)
            self._sync(descriptor)
        except OSError:
            self._release()

    def _reopen(self, tail: Tail) -> int:
        """Opens the file again after a failure. Bytes after the last acknowledged line are
        set aside, even if they are a complete line, because its append was reported as
        failed."""
        start = tail.last if self._unsynced_from is None else min(self._unsynced_from, tail.last)
        try:
            descriptor = self._files.open(self._file.path, os.O_RDWR)
            try:
                with plain_errors(self.session_id):
                    check_lines(reader_of(self._files, descriptor), tail, start)
                make_whole(self._files, descriptor, self._file.path, tail=replace(tail, last=start))
            except BaseException:
                self._files.close(descriptor)
                raise
        except OSError as error:
            reason = f"I/O error: {error.strerror}"
            raise ConversationReadOnly(self.session_id, reason) from error
        self._descriptor, self._unsynced_from = descriptor, None
        return descriptor

    def _not_confirmed(self, error: OSError) -> StorageUnavailable:
        return StorageUnavailable(f"the disk did not confirm what was written: {error.strerror}")


# ------------------------------------------------------------------------------
# Committing from the event loop
#
# A thread writes the line and syncs it, in one go.
#
# A commit can't be cancelled, so that its outcome is always known. It has a deadline: when a
# disk hangs, the append fails. If the sync ends later, the line was not acknowledged: it
# does not count, and is set aside before the next append.


COMMIT_SECONDS_MAX = 30.0
_T = TypeVar("_T")


class _Commit(Unstoppable[_T]):
    """One append in progress. The thread that finishes it and the timer that gives it up race; the
    first one decides the outcome."""

    def __init__(self, entry: Entry, prepared: PreparedLine) -> None:
        super().__init__()
        self.entry = entry
        self.prepared = prepared
        self.due_at = 0.0
        self.is_begun = False
        self.is_done = False
        self.is_given_up = False


class Committer(Generic[_T]):
    def __init__(
        self,
        appender: Appender,
        *,
        appended: Callable[[Entry], _T],
        threads: CommitThreads,
        commit_seconds_max: float = COMMIT_SECONDS_MAX,
    ) -> None:
        """`appended` is called in the event loop for every entry that is on disk; its return value
        is the outcome of the append."""
        self._appender = appender
        self._appended = appended
        self._threads = threads
        self._commit_seconds_max = commit_seconds_max
        self._lock = Lock()
        """Never held by a thread during disk operations, because the event loop takes it too."""
        self._is_writing = False
        self._is_closed = False
        self._watched: _Commit[_T] | None = None
        self._timer: TimerHandle | None = None

    def begin(self, entry: Entry) -> Unstoppable[_T]:
        """The append is under way when this returns."""
        session_id = self._appender.session_id
        with self._lock:
            if self._is_closed:
                raise ConversationReadOnly(session_id, "this record was closed")
            if self._is_writing:
                raise ConversationReadOnly(session_id, "the disk has not answered yet")
            commit: _Commit[_T] = _Commit(entry, self._appender.prepare(entry))
            self._threads.run(partial(self._run, commit), partial(self._settle, commit))
            self._is_writing = True  # set before the thread can read it under this lock
        loop = commit.get_loop()
        self._watched = commit
        commit.due_at = loop.time() + self._commit_seconds_max
        if self._timer is None:
            self._timer = loop.call_at(commit.due_at, self._look)
        return commit

    async def append(self, entry: Entry) -> _T:
        commit = self.begin(entry)
        with anyio.CancelScope(shield=True):
            await commit
        return commit.result()

    async def close(self) -> None:
        with self._lock:
            was_open, self._is_closed = not self._is_closed, True
        if not was_open:
            return
        if self._timer is not None and (self._watched is None or self._watched.done()):
            self._timer.cancel()
            self._timer = None

        def release() -> None:
            with self._lock:
                is_writing = self._is_writing
            if not is_writing:  # otherwise the thread that is writing closes it
                self._appender.close()

        released = self._threads.submit_or_do(release)
        with anyio.move_on_after(self._commit_seconds_max, shield=True):
            await released

    def _run(self, commit: _Commit[_T]) -> None:
        with self._lock:
            if commit.is_given_up:
                return
            commit.is_begun = True
        try:
            with self._threads.commits.count():
                self._appender.commit(
                    commit.prepared, acknowledge=partial(self._acknowledge, commit)
                )
        finally:
            with self._lock:
                self._is_writing = False
                is_closed = self._is_closed
            if is_closed:
                self._appender.close()

    def _acknowledge(self, commit: _Commit[_T]) -> bool:
        with self._lock:
            commit.is_done = not commit.is_given_up
            return commit.is_done

    def _settle(self, commit: _Commit[_T], error: BaseException | None) -> None:
        if commit.done():
            return  # it was given up
        try:
            if error is not None:
                raise error
            outcome = self._appended(commit.entry)
        except BaseException as failure:
            commit.set_exception(failure)
        else:
            commit.set_result(outcome)

    # The deadline. One timer serves many commits: when it fires, it is set again for the commit
    # that is under way by then.

    def _look(self) -> None:
        commit, self._timer = self._watched, None
        if commit is None or commit.done():
            self._watched = None
        elif (loop := commit.get_loop()).time() < commit.due_at:
            self._timer = loop.call_at(commit.due_at, self._look)
        else:
            with self._lock:
                if commit.is_done:
                    return  # it is on disk, and `_settle` is about to be called
                commit.is_given_up = True
                if not commit.is_begun:
                    self._is_writing = False
            seconds = self._commit_seconds_max
            commit.set_exception(StorageUnavailable(f"no answer from the disk in {seconds:g} s"))
