"""Where tools that block run: a thread for each call, which can be left behind.

A call to the system may never come back, and no thread can be cancelled. So
whoever waits for one can leave at any moment; what the thread gives then is
dropped. The threads are daemons: one that hangs does not keep the process from
ending. One that was left behind keeps its place, so there are never more than
a bounded number of them, and they are not the ones that other work waits for.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from typing import Final, TypeVar

import anyio
from anyio.lowlevel import RunVar

THREADS_MAX: Final = 64

_T = TypeVar("_T")
_places_of_this_loop: RunVar[anyio.CapacityLimiter] = RunVar("places for tools that block")


async def run_in_thread(work: Callable[[], _T]) -> _T:
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[_Ended[_T]] = loop.create_future()
    places = _places()
    place = object()
    await places.acquire_on_behalf_of(place)

    def end(how: _Ended[_T]) -> None:
        places.release_on_behalf_of(place)
        if not ended.done():
            ended.set_result(how)

    def run() -> None:
        how = _try(work)
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(end, how)

    try:
        context = contextvars.copy_context()
        Thread(target=context.run, args=(run,), name="tool", daemon=True).start()
    except BaseException:
        places.release_on_behalf_of(place)
        raise
    return (await ended)()


_Ended = Callable[[], _T]
"""Gives what the work gave, or raises what it raised. An exception itself can't be
carried by a future if it is a StopIteration."""


def _try(work: Callable[[], _T]) -> _Ended[_T]:
    try:
        value = work()
    except BaseException as raised:
        error = raised

        def fail() -> _T:
            raise error

        return fail
    return lambda: value


def _places() -> anyio.CapacityLimiter:
    try:
        return _places_of_this_loop.get()
    except LookupError:
        places = anyio.CapacityLimiter(THREADS_MAX)
        _places_of_this_loop.set(places)
        return places
