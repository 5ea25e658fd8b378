"""The threads in which the disk works: one per commit, few for other work.

Where the kernel can sync by itself, ordinary commits need no thread. On a busy machine it does
so only for many commits at a time. The others, and all commits elsewhere, are made here.

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
import os
import struct
import sys
from asyncio import AbstractEventLoop, Future, get_running_loop
from collections import deque
from collections.abc import Callable
from functools import partial
from math import inf
from threading import Lock, Thread
from typing import Final, TypeAlias, TypeVar

from anyio import CapacityLimiter, to_thread
from msgspec import Struct

from nplt_storage.errors import StorageUnavailable

log = logging.getLogger(__name__)

# ------------------------------------------------------------------------------
# Syncs without a thread, by Linux's asynchronous I/O (`io_submit(2)`)
#
# The kernel runs each fdatasync in a worker of its own, and counts those that are finished in
# an eventfd, which the event loop watches. So conversations that commit at the same time share
# the wait of the disk, no thread has to be woken, and the interpreter is not handed over.
#
# `KernelSync.start` gives `None` where there is no such thing: another system, an old kernel, a
# sandbox that forbids the calls. Syncs are then made in threads.
#
#     OFFSET SIZE  struct iocb                    OFFSET SIZE  struct io_event
#     0      8     data: the place in the table   0      8     data, as in the iocb
#     16     2     opcode: 3 is fdatasync         8      8     address of the iocb
#     20     4     file descriptor                16     8     result: 0, or -errno
#     56     4     flags: 1, `resfd` is given     24     8     second result
#     60     4     resfd: the eventfd

_CALLS: Final = {
    # io_setup, io_destroy, io_submit, io_getevents
    "x86_64": (206, 207, 209, 208),
    "aarch64": (0, 1, 2, 4),
}
_PLACES: Final = 128
"""The number of syncs that may be under way."""
_REQUEST: Final = struct.Struct("=Q8xH2xI32xII")
_EVENT: Final = struct.Struct("=Q8xq8x")
_FDATASYNC: Final = 3
_WITH_EVENTFD: Final = 1


class SyncRefused(OSError):
    """The kernel did not accept the request: nothing was synced, and a thread can do it."""


Done: TypeAlias = Callable[[OSError | None], None]
"""Called with the error of a sync, or `None`."""


class KernelSync:
    """Syncs files by the kernel's asynchronous I/O; belongs to the event loop in which it was
    started."""

    def __init__(self, loop: AbstractEventLoop, calls: tuple[int, int, int, int]) -> None:
        """Raises `OSError` if the kernel refuses."""
        import ctypes  # a server starts without it

        self.loop = loop
        # Short calls that never wait: they keep the interpreter, as handing it over costs more.
        self._call = ctypes.PyDLL(None, use_errno=True).syscall
        self._call.restype = ctypes.c_long
        self._error_number = ctypes.get_errno
        setup, self._destroy, self._submit, self._get_events = map(ctypes.c_long, calls)
        self._none, self._one, self._all = map(ctypes.c_long, (0, 1, _PLACES))
        self._context = ctypes.c_ulong(0)
        self._requests = ctypes.create_string_buffer(_REQUEST.size * _PLACES)
        begins_at = ctypes.addressof(self._requests)
        self._addresses = [begins_at + _REQUEST.size * place for place in range(_PLACES)]
        self._submitted = (ctypes.c_void_p * 1)()
        self._events = ctypes.create_string_buffer(_EVENT.size * _PLACES)
        self._free = list(range(_PLACES))
        self._under_way: dict[int, Done] = {}
        self._single: tuple[int, float] | None = None
        """The index of a sync that was alone when it began, and the time it began."""
        self.slow_until = 0.0
        """The machine counts as busy until this time of the loop's clock."""
        self._is_closing = False
        self._eventfd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        try:
            if self._call(setup, ctypes.c_uint(_PLACES), ctypes.byref(self._context)):
                raise OSError(*self._last_error())
            loop.add_reader(self._eventfd, self._take_events)
        except BaseException:
            self._give_back()
            raise

    @classmethod
    def start(cls) -> KernelSync | None:
        calls = _CALLS.get(os.uname().machine) if sys.platform == "linux" else None
        if calls is None or sys.maxsize < 2**32:
            return None
        try:
            return cls(get_running_loop(), calls)
        # The kernel; the loop can't watch descriptors; a Python built without ctypes.
        except (OSError, NotImplementedError, ImportError):
            return None

    @property
    def count(self) -> int:
        return len(self._under_way)

    @property
    def has_room(self) -> bool:
        return bool(self._free)

    def begin(self, descriptor: int, done: Done) -> None:
        """Syncs the file and calls `done` in the event loop. The descriptor must stay open until
        then. Call this only while it `has_room`. If it raises `SyncRefused`, nothing is done."""
        place = self._free.pop()
        _REQUEST.pack_into(
            self._requests,
            _REQUEST.size * place,
            place,
            _FDATASYNC,
            descriptor,
            _WITH_EVENTFD,
            self._eventfd,
        )
        self._submitted[0] = self._addresses[place]
        if self._call(self._submit, self._context, self._one, self._submitted) != 1:
            self._free.append(place)
            raise SyncRefused(*self._last_error())
        if not self._under_way:
            self._single = (place, self.loop.time())
        self._under_way[place] = done

    def close(self) -> None:
        """Releases the resources once the syncs under way have finished and been reported."""
        self._is_closing = True
        if not self._under_way:
            self.loop.remove_reader(self._eventfd)
            self._give_back()

    def _take_events(self) -> None:
        try:
            os.eventfd_read(self._eventfd)
        except BlockingIOError:
            return
        limits = (self._none, self._all)
        # -1 if a signal came and there is no event: an earlier call may have taken it.
        count = self._call(self._get_events, self._context, *limits, self._events, None)
        for number in range(count):
            place, result = _EVENT.unpack_from(self._events, _EVENT.size * number)
            self._free.append(place)
            if self._single is not None and self._single[0] == place:
                now, begun_at = self.loop.time(), self._single[1]
                self._single = None
                if now - begun_at > SLOW_SYNC_SECONDS:
                    self.slow_until = now + _SLOW_SECONDS
            error = OSError(-result, os.strerror(-result)) if result else None
            try:
                self._under_way.pop(place)(error)
            except Exception:
                log.exception("the end of a sync could not be told")
        if self._is_closing:
            self.close()

    def _give_back(self) -> None:
        os.close(self._eventfd)
        self._call(self._destroy, self._context)

    def _last_error(self) -> tuple[int, str]:
        number = self._error_number()
        return number, os.strerror(number)


# ------------------------------------------------------------------------------
# The threads of commits

THREADS_MAX: Final = 32
IDLE_SECONDS_MAX: Final = 10.0
SLOW_WRITE_SECONDS: Final = 0.1
"""A write that takes longer, because the system has too much to write, holds up the loop."""
_SLOW_SECONDS: Final = 10.0
"""Commits are made in threads for this long after a slow write or sync."""
FEW_COMMITS: Final = 2
"""While the machine is busy, up to this many concurrent commits are made in threads. The kernel's
worker is bound to the processor of the event loop, where it waits for a time slice of each other
program; a thread is woken where it can run. One client then has two to four times as many turns. On
an idle machine the kernel is quicker."""
SLOW_SYNC_SECONDS: Final = 0.003
"""The machine, or its disk, counts as busy if the kernel took longer than this for a single
sync."""


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
        self._threads_max = threads_max
        self._idle_seconds_max = idle_seconds_max
        self._lock = Lock()
        self._is_closed = False
        self._count = 0
        self._idle: list[_ThreadSlot] = []
        self._waiting: deque[_Job] = deque()
        """Work that waits because all threads allowed are busy."""
        self._finished: dict[AbstractEventLoop, list[_Job]] = {}
        """Finished jobs by the event loop that waits for them. A loop in here was woken and
        has not fetched its jobs yet."""
        self._kernel_sync: KernelSync | None = None
        self._threads_until = 0.0
        """Commits use threads until this time of the loop's clock."""

    def kernel_sync(self) -> KernelSync | None:
        """The kernel's sync if it can take a commit now; `None` if a thread is needed, or would be
        faster."""
        loop = get_running_loop()
        if self._kernel_sync is None and not self._threads_until:
            self._kernel_sync = KernelSync.start()
            self._threads_until = loop.time() if self._kernel_sync else inf
        kernel = self._kernel_sync
        if kernel is None or kernel.loop is not loop or not kernel.has_room:
            return None
        now = loop.time()
        if now < kernel.slow_until and kernel.count + self.busy < FEW_COMMITS:
            return None
        return kernel if now >= self._threads_until else None

    def note_slow_write(self) -> None:
        self._threads_until = get_running_loop().time() + _SLOW_SECONDS

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
        self._add(_Job(work, settled, get_running_loop()))

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
        if self._kernel_sync is not None:
            self._kernel_sync.close()
            self._kernel_sync, self._threads_until = None, inf

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
