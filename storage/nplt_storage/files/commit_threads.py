"""The threads in which the disk works: one per commit, few for other work.

Each commit has a thread of its own from beginning to end, because it mostly waits,
and the system lets files that are synced at the same time share that wait. The
event loop is woken once for all commits that have finished since it last looked.

Threads are started on demand. Work goes to the thread that became idle last, so
the others stay idle and end after a while. A commit that hangs occupies only its
own thread; others are started beside it, up to a limit. All are daemon threads, so
that a disk that never answers does not keep the process from ending.
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

from nplt_storage.errors import StorageUnavailable

log = logging.getLogger(__name__)

THREADS_MAX: Final = 32
IDLE_SECONDS_MAX: Final = 10.0


Settled: TypeAlias = Callable[[BaseException | None], None]
"""Told how work ended: with that error, or with none."""


class _Job:
    __slots__ = ("error", "loop", "settled", "work")

    def __init__(
        self, work: Callable[[], None], settled: Settled, loop: AbstractEventLoop | None
    ) -> None:
        self.work = work
        self.settled = settled
        self.loop = loop
        """Where `settled` is called; `None`: nobody waits for it."""
        self.error: BaseException | None = None


class _ThreadSlot:
    """Where one thread waits for work. A wake each, not a queue for all: the
    standard library's `SimpleQueue.get` may sleep past its timeout when several
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
        self._threads_max = threads_max
        self._idle_seconds_max = idle_seconds_max
        self._lock = Lock()
        self._is_closed = False
        self._count = 0
        self._idle: list[_ThreadSlot] = []
        self._waiting: deque[_Job] = deque()
        """Work for which there is no thread: all that may be are busy."""
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
        """The work is under way when this returns, and cancelling the future does not
        stop it. `StorageUnavailable`: there is no thread, and it will not be done."""
        done: Future[None] = get_running_loop().create_future()
        self.run(work, partial(_settle, done))
        return done

    def run(self, work: Callable[[], None], settled: Settled) -> None:
        """As `submit`, and calls `settled` in this event loop when it is done."""
        self._add(_Job(work, settled, get_running_loop()))

    def submit_or_do(self, work: Callable[[], None]) -> Future[None]:
        """For what has to be done even if there is no thread for it: then here."""
        try:
            return self.submit(work)
        except StorageUnavailable:
            loop = get_running_loop()
            done: Future[None] = loop.create_future()
            job = _Job(work, partial(_settle, done), loop)
            _run_job(job)
            job.settled(job.error)
            return done

    def start(self, work: Callable[[], None]) -> None:
        """For work that nobody waits for; may be called from any thread."""
        self._add(_Job(work, _log_failure, None))

    def close(self) -> None:
        """Idle threads leave now, the others when they are through."""
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
            raise StorageUnavailable(f"the system gives no more threads: {error}") from error

    def _work(self, slot: _ThreadSlot) -> None:
        while (job := slot.job) is not None:
            _run_job(job)
            with self._lock:
                loop = self._note_finished(job)
                is_idle = self._take_next(slot)
            if loop is not None:
                self._wake(loop)
            if is_idle:
                self._wait(slot)

    def _note_finished(self, job: _Job) -> AbstractEventLoop | None:
        """The loop that has to be woken for it, if it was not woken before."""
        loop = job.loop
        if loop is None:
            job.settled(job.error)
            return None
        finished = self._finished.get(loop)
        if finished is not None:
            finished.append(job)
            return None
        self._finished[loop] = [job]
        return loop

    def _take_next(self, slot: _ThreadSlot) -> bool:
        """Gives the thread its next job. True: there is none, and it must wait. False with no
        job: the threads are closed, and it ends."""
        slot.job = self._waiting.popleft() if self._waiting else None
        if slot.job is not None:
            return False
        if self._is_closed:
            self._count -= 1
            return False
        self._idle.append(slot)
        return True

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


def _run_job(job: _Job) -> None:
    try:
        job.work()
    except BaseException as error:
        job.error = error


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
