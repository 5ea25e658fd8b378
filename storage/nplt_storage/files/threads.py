"""Where disk work runs that is no commit: worker threads, one hop each.

Readers are few, so that a crowd of them does not keep the disk from those who
write. What a thread began is waited for: cancelling does not reach into it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import anyio
import anyio.to_thread

_WRITERS_MAX: Final = 64
_READERS_MAX: Final = 8
_T = TypeVar("_T")


class DiskThreads:
    def __init__(self) -> None:
        self._writers = anyio.CapacityLimiter(_WRITERS_MAX)
        self._readers = anyio.CapacityLimiter(_READERS_MAX)

    async def read(self, work: Callable[[], _T]) -> _T:
        return await anyio.to_thread.run_sync(work, limiter=self._readers)

    async def write(self, work: Callable[[], _T]) -> _T:
        return await anyio.to_thread.run_sync(work, limiter=self._writers)
