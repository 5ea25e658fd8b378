"""Threads that wait for the disk, so that conversations commit side by side.

A commit does little but wait, and the system lets files that are synced at the
same time share that wait. So each commit has a thread to itself from beginning
to end, and the event loop is woken once for all that were finished since it
last looked: few wake-ups are what makes many commits cheap.

Threads are started when there is work for them. Work goes to the thread that
was idle last, so those that are not needed stay idle, and leave after a while.
A commit that hangs keeps its thread and nobody else's: others are started
beside it, up to a bound. All are daemons: a disk that never answers must not
keep the process from ending.
"""

from __future__ import annotations

import logging
from asyncio import AbstractEventLoop, Future, get_running_loop
from collections import deque
from collections.abc import Callable
from threading import Lock, Thread
from typing import Final

from nplt_storage.errors import StorageUnavailable

log = logging.getLogger(__name__)

THREADS_MAX: Final = 64
IDLE_SECONDS_MAX: Final = 10.0


class _Job:
    __slots__ = ("done", "error", "work")

    def __init__(self, work: Callable[[], None], done: Future[None] | None) -> None:
        self.work = work
        self.done = done
        """`None`: nobody waits for it."""
        self.error: BaseException | None = None


class _Seat:
    """Where one thread waits for work. A bell each, not a queue for all: the
    standard library's `SimpleQueue.get` may sleep past its timeout when several
    threads wait in it (seen with Python 3.11)."""

    __slots__ = ("bell", "job")

    def __init__(self, job: _Job) -> None:
        self.job: _Job | None = job
        self.bell = Lock()
        self.bell.acquire()


class CommitThreads:
    def __init__(
        self, threads_max: int = THREADS_MAX, *, idle_seconds_max: float = IDLE_SECONDS_MAX
    ) -> None:
        self._threads_max = threads_max
        self._idle_seconds_max = idle_seconds_max
        self._lock = Lock()
        self._is_closed = False
        self._count = 0
        self._idle: list[_Seat] = []
        self._waiting: deque[_Job] = deque()
        """Work for which there is no thread: all that may be are busy."""
        self._finished: dict[AbstractEventLoop, list[_Job]] = {}
        """Who is to be told; a loop that is in here was woken and has not looked yet."""

    @property
    def count(self) -> int:
        return self._count

    @property
    def busy(self) -> int:
        return self._count - len(self._idle)

    def submit(self, work: Callable[[], None]) -> Future[None]:
        """Under way when this returns, whether or not the result is awaited: to
        stop waiting does not stop the work. `StorageUnavailable`: there is no
        thread for it, and it will not be done."""
        done: Future[None] = get_running_loop().create_future()
        self._add(_Job(work, done))
        return done

    def submit_or_do(self, work: Callable[[], None]) -> Future[None]:
        """For what has to be done even if there is no thread for it: then here."""
        try:
            return self.submit(work)
        except StorageUnavailable:
            done: Future[None] = get_running_loop().create_future()
            job = _Job(work, done)
            _carry_out(job)
            _settle(job)
            return done

    def start(self, work: Callable[[], None]) -> None:
        """For work that nobody waits for; may be called from any thread."""
        self._add(_Job(work, None))

    def close(self) -> None:
        """Idle threads leave now, the others when they are through."""
        with self._lock:
            self._is_closed = True
            for seat in self._idle:
                seat.bell.release()
            self._count -= len(self._idle)
            self._idle.clear()

    def _add(self, job: _Job) -> None:
        with self._lock:
            if self._idle:
                seat = self._idle.pop()
                seat.job = job
                seat.bell.release()
                return
            if self._count >= self._threads_max:
                self._waiting.append(job)
                return
            self._count += 1
        try:
            Thread(target=self._work, args=(_Seat(job),), name="commit", daemon=True).start()
        except RuntimeError as error:
            with self._lock:
                self._count -= 1
            raise StorageUnavailable(f"no thread for the disk: {error}") from error

    def _work(self, seat: _Seat) -> None:
        while (job := seat.job) is not None:
            _carry_out(job)
            with self._lock:
                loop = self._note_finished(job)
                is_idle = self._take_next(seat)
            if loop is not None:
                self._wake(loop)
            if is_idle:
                self._wait(seat)

    def _note_finished(self, job: _Job) -> AbstractEventLoop | None:
        """The loop that has to be woken for it, if it was not woken before."""
        if job.done is None:
            return None
        loop = job.done.get_loop()
        finished = self._finished.setdefault(loop, [])
        finished.append(job)
        return loop if len(finished) == 1 else None

    def _take_next(self, seat: _Seat) -> bool:
        """Whether the thread is to wait for work; without, and with none, it leaves."""
        seat.job = self._waiting.popleft() if self._waiting else None
        if seat.job is not None:
            return False
        if self._is_closed:
            self._count -= 1
            return False
        self._idle.append(seat)
        return True

    def _wait(self, seat: _Seat) -> None:
        if not seat.bell.acquire(timeout=self._idle_seconds_max):
            with self._lock:
                if seat in self._idle:
                    self._idle.remove(seat)
                    self._count -= 1
                    return
            seat.bell.acquire()  # it rang while the thread got up to leave

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
            _settle(job)


def _settle(job: _Job) -> None:
    if job.done is None or job.done.done():
        return  # whoever waited has given up
    if job.error is None:
        job.done.set_result(None)
    else:
        job.done.set_exception(job.error)


def _carry_out(job: _Job) -> None:
    try:
        job.work()
    except BaseException as error:
        job.error = error
        if job.done is None:
            log.exception("work that nobody waited for failed")
