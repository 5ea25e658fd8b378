"""The threads for disk work: one for each commit, and a few for everything else.

Each commit has a thread of its own from beginning to end (it writes and syncs in one go),
because it mostly waits, and the system lets files that are synced at the same time share that
wait. The event loop is woken once for all commits that have finished since it last looked.

Threads are started on demand. Work goes to the thread that became idle last, so
the others stay idle and end after a while. A commit that hangs occupies only its
own thread; others are started beside it, up to a limit. All are daemon threads, so
that a disk that never answers does not keep the process from ending.

A thread that is woken can't run before the event loop gives the interpreter away. Until then
each system call of the loop wakes it for nothing. Therefore commits are handed over together, at
the end of the loop's tick, unless there is only one.
"""

from __future__ import annotations

import logging
from asyncio import AbstractEventLoop, Future, get_running_loop
from collections import deque
from collections.abc import Callable
from functools import partial
from threading import Lock, Thread
from typing import Final, TypeAlias, TypeVar

from anyio import CapacityLimiter, to_thread
from msgspec import Struct

from nplt_storage.durations import Commits
from nplt_storage.errors import StorageUnavailable

log = logging.getLogger(__name__)

# ------------------------------------------------------------------------------
# The threads of commits

THREADS_MAX: Final = 16
"""Each thread that wants the interpreter slows the event loop down. More of them save no time even
if 64 conversations commit at once."""
IDLE_SECONDS_MAX: Final = 10.0


Settled: TypeAlias = Callable[[BaseException | None], None]
"""Called with the error of the work, or `None`."""


class _Job(Struct, eq=False):
    work: Callable[[], None]
    settled: Settled
    loop: AbstractEventLoop | None = None
    """The loop in which `settled` is called; `None` if no one waits for it."""
    error: BaseException | None = None

    def run(self) -> None:
        try:
            self.work()
        except BaseException as error:
            self.error = error


class _ThreadSlot:
    """The slot in which one thread waits for work. Each has a lock of its own instead of a shared
    queue, because the standard library's `SimpleQueue.get` may sleep past its timeout when several
    threads wait in it (seen with Python 3.11)."""

    __slots__ = ("job", "wake")

    def __init__(self, job: _Job) -> None:
        self.job: _Job | None = job
        self.wake = Lock()
        self.wake.acquire()


class CommitThreads:
    def __init__(
        self, threads_max: int = THREADS_MAX, *, idle_seconds_max: float = IDLE_SECONDS_MAX
    ) -> None:
        self.commits = Commits()
        self._threads_max = threads_max
        self._idle_seconds_max = idle_seconds_max
        self._lock = Lock()
        self._is_closed = False
        self._count = 0
        self._idle: list[_ThreadSlot] = []
        self._waiting: deque[_Job] = deque()
        """Work that waits because no further thread can be started."""
        self._gathered: dict[AbstractEventLoop, list[_Job]] = {}
        """Jobs that a loop hands over at the end of its tick."""
        self._finished: dict[AbstractEventLoop, list[_Job]] = {}
        """Finished jobs by the event loop that waits for them. A loop in here was woken and
        has not fetched its jobs yet."""

    @property
    def count(self) -> int:
        return self._count

    @property
    def busy(self) -> int:
        return self._count - len(self._idle)

    def submit(self, work: Callable[[], None]) -> Future[None]:
        """Starts the work; cancelling the future does not stop it. Raises `StorageUnavailable` if
        there is no thread for it."""
        done: Future[None] = get_running_loop().create_future()
        self.run(work, partial(_settle, done))
        return done

    def run(self, work: Callable[[], None], settled: Settled) -> None:
        """Like `submit`, and calls `settled` in this event loop when the work is done."""
        loop = get_running_loop()
        job = _Job(work, settled, loop)
        if (gathered := self._gathered.get(loop)) is not None:
            gathered.append(job)
        elif self.busy:
            self._gathered[loop] = [job]
            loop.call_soon(self._hand_over, loop)
        else:
            self._add(job)

    def _hand_over(self, loop: AbstractEventLoop) -> None:
        for job in self._gathered.pop(loop):
            try:
                self._add(job)
            except StorageUnavailable:
                job.run()
                job.settled(job.error)

    def submit_or_do(self, work: Callable[[], None]) -> Future[None]:
        """Submits work that must be done even if no thread is free: it then runs in the caller's
        thread."""
        try:
            return self.submit(work)
        except StorageUnavailable:
            done: Future[None] = get_running_loop().create_future()
            job = _Job(work, partial(_settle, done))
            job.run()
            job.settled(job.error)
            return done

    def start(self, work: Callable[[], None]) -> None:
        """Starts work that no one waits for; may be called from any thread."""
        self._add(_Job(work, _log_failure))

    def close(self) -> None:
        """Ends idle threads now, and the others when they have finished their work."""
        with self._lock:
            self._is_closed = True
            for slot in self._idle:
                slot.wake.release()
            self._count -= len(self._idle)
            self._idle.clear()

    def _add(self, job: _Job) -> None:
        with self._lock:
            if self._idle:
                slot = self._idle.pop()
                slot.job = job
                slot.wake.release()
                return
            if self._count >= self._threads_max:
                self._waiting.append(job)
                return
            self._count += 1
        try:
            Thread(target=self._work, args=(_ThreadSlot(job),), name="commit", daemon=True).start()
        except RuntimeError as error:
            with self._lock:
                self._count -= 1
                if self.busy:
                    self._waiting.append(job)  # a thread that is busy takes it next
                    return
            raise StorageUnavailable(f"the system gives no more threads: {error}") from error

    def _work(self, slot: _ThreadSlot) -> None:
        while (job := slot.job) is not None:
            job.run()
            loop, was_woken, is_idle = job.loop, False, False
            with self._lock:
                if loop is None:
                    job.settled(job.error)
                else:
                    was_woken = loop in self._finished
                    self._finished.setdefault(loop, []).append(job)
                slot.job = self._waiting.popleft() if self._waiting else None
                if slot.job is None and self._is_closed:
                    self._count -= 1
                elif slot.job is None:
                    self._idle.append(slot)
                    is_idle = True
            if loop is not None and not was_woken:
                self._wake(loop)
            if is_idle:
                self._wait(slot)

    def _wait(self, slot: _ThreadSlot) -> None:
        if not slot.wake.acquire(timeout=self._idle_seconds_max):
            with self._lock:
                if slot in self._idle:
                    self._idle.remove(slot)
                    self._count -= 1
                    return
            slot.wake.acquire()  # it rang while the thread got up to leave

    def _wake(self, loop: AbstractEventLoop) -> None:
        try:
            loop.call_soon_threadsafe(self._tell, loop)
        except RuntimeError:  # the loop was closed: nobody is there to be told
            with self._lock:
                del self._finished[loop]

    def _tell(self, loop: AbstractEventLoop) -> None:
        with self._lock:
            finished = self._finished.pop(loop)
        for job in finished:
            try:
                job.settled(job.error)
            except Exception:
                log.exception("the end of a commit could not be told")


def _settle(done: Future[None], error: BaseException | None) -> None:
    if done.done():
        return  # whoever waited has given up
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)


def _log_failure(error: BaseException | None) -> None:
    if error is not None:
        log.error("work that nobody waited for failed", exc_info=error)


# ------------------------------------------------------------------------------
# Worker threads for other disk work
#
# There are few readers, so that they do not keep the disk from writers. Work that
# has begun is waited for, also when the caller is cancelled.

_WRITERS_MAX: Final = 64
_READERS_MAX: Final = 8
_T = TypeVar("_T")


class DiskThreads:
    def __init__(self) -> None:
        self._writers = CapacityLimiter(_WRITERS_MAX)
        self._readers = CapacityLimiter(_READERS_MAX)

    async def read(self, work: Callable[[], _T]) -> _T:
        return await to_thread.run_sync(work, limiter=self._readers)

    async def write(self, work: Callable[[], _T]) -> _T:
        return await to_thread.run_sync(work, limiter=self._writers)
