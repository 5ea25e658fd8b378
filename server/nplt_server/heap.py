"""Settings of the process's heap: of Python's garbage collector and of the C library's allocator.

A full collection visits every object that may be part of a cycle. The SDKs of vendors and of MCP
make 200,000 such objects, which stay until the process ends: each collection would stop the event
loop for a quarter of a second, and Python would therefore collect so rarely that the conversations
closed in between take tens of megabytes. So modules that are loaded late are kept out of its way.

The GNU C library gives up to eight heaps per core to threads, so that they do not wait for each
other. Each keeps a megabyte or two that was freed in it, and threads that disk work wakes by turns
spread what lives long over all of them. Threads of Python rarely allocate at the same time.

A list is freed with all that only it has, in one step, in which no other thread can run.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

_M_ARENA_MAX: Final = -8
_HEAPS_MAX: Final = 2
"""The main thread's, and one for all others."""
_FREED_AT_ONCE: Final = 1_000


@contextmanager
def loading_modules() -> Iterator[None]:
    """Exempts the objects that exist when the block ends from collections, if the block has loaded
    modules. Garbage from before the block is collected first: later it would stay for ever."""
    gc.collect()
    loaded = len(sys.modules)
    yield
    if len(sys.modules) > loaded:
        gc.freeze()


def free_in_slices(items: list[Any]) -> None:
    """Empties a long list, in a thread, so that the event loop can run meanwhile: freeing 100,000
    entries at once would stop it for 25 ms."""
    while items:
        del items[-_FREED_AT_ONCE:]


def limit_heaps() -> None:
    """Limits the number of heaps, where the C library has such a limit and the environment does not
    set it. Call it before threads are started."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and "MALLOC_ARENA_MAX" not in os.environ:
        mallopt(_M_ARENA_MAX, _HEAPS_MAX)
