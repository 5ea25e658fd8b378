"""Runs the server's work: background tasks, turn slots, threads for long computations.

`BackgroundTasks` holds one task per connection and one per running turn. `Activity` counts
what is in progress, so that others can wait for the end of it. `TurnSlots` limits how many
turns run at once. `HeavyWork` runs long computations in threads, fairly among users.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, TypeVar

import anyio
from anyio import to_thread

from nplt_storage.errors import StorageUnavailable
from nplt_storage.store import Shared

log = logging.getLogger(__name__)

_T = TypeVar("_T")
Spawn = Callable[[Callable[[], Awaitable[object]]], None]
"""Starts a background task, which is cancelled when the server stops."""
_CANCEL_AGAIN_SECONDS: Final = 0.5


class BackgroundTasks:
    """The server's tasks: one per connection, one per running turn. Leaving the block cancels the
    remaining ones and waits for them. They are plain asyncio tasks, because a task in an anyio
    group costs an idle connection three kilobytes more (B9: 10.5 instead of 7.2 KiB)."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Callable[[], Awaitable[object]]) -> None:
        task = asyncio.get_running_loop().create_task(self._guarded(work()))
        self._tasks.add(task)

    async def __aenter__(self) -> BackgroundTasks:
        return self

    async def __aexit__(self, *_: object) -> None:
        with anyio.CancelScope(shield=True):
            while self._tasks:
                for task in self._tasks:
                    task.cancel()  # repeatedly, because its cleanup may block too
                await asyncio.wait(self._tasks, timeout=_CANCEL_AGAIN_SECONDS)
                # A task that was cancelled before its first step has not removed itself.
                self._tasks -= {task for task in self._tasks if task.done()}

    async def _guarded(self, work: Awaitable[object]) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            await work
        except Exception:
            # A bug in one task must not end the others.
            log.exception("a task failed")
        finally:
            self._tasks.discard(task)


def call_guarded(callback: Callable[[_T], None], value: _T) -> None:
    """Calls the callback with a result. An exception in it is logged and ignored: the result
    is on disk, and the conversation goes on."""
    try:
        callback(value)
    except Exception:
        log.exception("a reply could not be sent")


class Activity:
    """Counts operations in progress, so that a caller can wait until there are none."""

    __slots__ = ("_count", "_part_of", "_rest", "is_quiet")

    def __init__(self, part_of: Activity | None = None) -> None:
        self._part_of = part_of
        self._count = 0
        self._rest: anyio.Event | None = None
        self.is_quiet = True

    def begin(self) -> None:
        self._count += 1
        if self.is_quiet:  # all operations in here count as one in the parent
            self.is_quiet = False
            if self._part_of is not None:
                self._part_of.begin()

    def end(self) -> None:
        self._count -= 1
        if self._count:
            return
        self.is_quiet = True
        if self._rest is not None:
            self._rest.set()
            self._rest = None
        if self._part_of is not None:
            self._part_of.end()

    async def quiet(self) -> None:
        while self._count:
            if self._rest is None:
                self._rest = anyio.Event()
            await self._rest.wait()


_TRY_AGAIN_SECONDS: Final = 0.2
_OF_USER: Final = "limits.turns_per_user_max"
_OF_ALL: Final = "limits.turns_max"


class TurnSlots:
    """Limits how many turns run at once, per user and in total. If servers share a history, a
    user's limit holds for all servers together, and the total for each one. While the shared store
    is unavailable, each server counts only its own turns."""

    def __init__(self, *, turns_max: int, per_user_max: int, shared: Shared | None = None) -> None:
        self._shared = shared
        self._per_user_max = per_user_max
        self._turns_max = turns_max
        self._all = anyio.Semaphore(turns_max, fast_acquire=True)
        self._of_user: dict[str, anyio.Semaphore] = defaultdict(
            lambda: anyio.Semaphore(per_user_max, fast_acquire=True)
        )
        self._waiting: dict[str, Counter[str]] = defaultdict(Counter)

    async def take(
        self, user: str, turn_id: str, *, on_wait: Callable[[str], None] = lambda _: None
    ) -> None:
        """Takes a slot. `on_wait` is called with the reason if it must wait for one."""
        mine = f"{_run(self._per_user_max, f'of {user}')} already ({_OF_USER})"
        of_user = self._of_user[user]
        with self._counted(user, _OF_USER, None if of_user.value else mine, on_wait):
            await of_user.acquire()
        try:
            if (shared := self._shared) is not None:
                with suppress(StorageUnavailable):
                    if not await shared.take_turn(user, turn_id, self._per_user_max):
                        with self._counted(user, _OF_USER, mine, on_wait):
                            await self._take_shared(shared, user, turn_id)
            all_run = f"{_run(self._turns_max, 'in all')} already ({_OF_ALL})"
            with self._counted(user, _OF_ALL, None if self._all.value else all_run, on_wait):
                await self._all.acquire()
        except BaseException:
            of_user.release()
            self._end_shared(user, turn_id)
            raise

    async def _take_shared(self, shared: Shared, user: str, turn_id: str) -> None:
        while True:
            await anyio.sleep(_TRY_AGAIN_SECONDS)
            if await shared.take_turn(user, turn_id, self._per_user_max):
                return

    @contextmanager
    def _counted(
        self, user: str, setting: str, why: str | None, on_wait: Callable[[str], None]
    ) -> Iterator[None]:
        """Counts a turn that waits. `why` is `None` if it need not wait."""
        if why is None:
            yield
            return
        on_wait(why)
        self._waiting[user][setting] += 1
        try:
            yield
        finally:
            self._waiting[user] -= Counter((setting,))

    def waiting(self, users: Iterable[str]) -> dict[str, int]:
        """How many turns of these users wait, by the setting that limits them."""
        return dict(sum((self._waiting[user] for user in users), Counter[str]()))

    def _end_shared(self, user: str, turn_id: str) -> None:
        if self._shared is not None:
            self._shared.end_turn(user, turn_id)

    def take_now(self, user: str) -> bool:
        """Takes a slot without waiting. Returns False if no slot is free, other turns wait, or the
        shared store must be asked."""
        of_user = self._of_user[user]
        if self._shared is not None or not (of_user.value and self._all.value):
            return False
        of_user.acquire_nowait()
        self._all.acquire_nowait()
        return True

    def give_back(self, user: str, turn_id: str) -> None:
        self._all.release()
        self._of_user[user].release()
        self._end_shared(user, turn_id)


def _run(turns: int, whose: str) -> str:
    return f"1 turn {whose} runs" if turns == 1 else f"{turns} turns {whose} run"


_THREADS_MAX: Final = 2
"""Threads share the interpreter with the event loop, so each additional one slows it down."""


class HeavyWork:
    """Runs long computations in threads: one at a time for each user, a few in all. A user's
    computations queue behind each other, not in front of other users'."""

    def __init__(self) -> None:
        self._threads = anyio.CapacityLimiter(_THREADS_MAX)
        self._of_user: dict[str, anyio.Lock] = {}

    async def run(self, user: str, work: Callable[[], _T]) -> _T:
        async with self._of_user.setdefault(user, anyio.Lock()):
            return await to_thread.run_sync(work, limiter=self._threads)
