"""`python -m faults.counted_server …`: the server, which counts its tasks on SIGUSR1, and its tasks
and objects on SIGUSR2 (that takes half a second).

The counts are written beside the data directory, to a file that appears whole. The handlers run
in the main thread, where the event loop runs. With each goes who holds the memory: SQLite, the C
library (SQLite included), or the C library's free lists, which are not given back to the system.
With PYTHONTRACEMALLOC set, the lines that allocated the most come with the objects.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import os
import signal
import sys
import time
import tracemalloc
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from nplt_server.cli import main

SECONDS_MAX = 30.0
_LINES_MAX = 1_000


def counts_path(data_dir: Path) -> Path:
    return data_dir.with_name(f"{data_dir.name}.counts")


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    tasks: Counter[str]
    """By the functions that they are in."""
    objects: Counter[str]
    """By type; only if they were asked for."""
    memory: Counter[str]
    """Bytes, by who holds them."""
    allocations: Counter[str]
    """Bytes, by the line that allocated them."""


def ask_for_counts(pid: int, data_dir: Path, *, objects: bool) -> Counts:
    path = counts_path(data_dir)
    path.unlink(missing_ok=True)
    os.kill(pid, signal.SIGUSR2 if objects else signal.SIGUSR1)
    until = time.monotonic() + SECONDS_MAX
    while not path.exists():
        if time.monotonic() > until:
            raise TimeoutError("the server does not count its tasks")
        time.sleep(0.01)
    counted = json.loads(path.read_text())
    return Counts(**{name: Counter(counts) for name, counts in counted.items()})


def _write_counts(path: Path, *, objects: bool) -> None:
    types: Counter[str] = Counter()
    if objects:
        gc.collect()
        every = (type(each) for each in gc.get_objects())
        types.update(f"{each.__module__}.{each.__name__}" for each in every)
        types["frozen"] = gc.get_freeze_count()  # modules and SDKs
    tasks = Counter(map(_place_of, asyncio.all_tasks()))
    allocations = _allocations() if objects and tracemalloc.is_tracing() else {}
    counts = {"tasks": tasks, "objects": types, "memory": _memory(), "allocations": allocations}
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(counts))
    unfinished.rename(path)


_MALLOC_FIELDS = (
    *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
    *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
)


class _MallocInfo(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _fields_: ClassVar = [(name, ctypes.c_size_t) for name in _MALLOC_FIELDS]


def _memory() -> dict[str, int]:
    """Empty where the C library and SQLite do not tell."""
    held: dict[str, int] = {}
    with suppress(AttributeError, OSError):
        ask = ctypes.CDLL(None).mallinfo2
        ask.restype = _MallocInfo
        info = ask()
        held["C library, used"] = info.uordblks + info.hblkhd
        held["C library, free"] = info.fordblks
    with suppress(AttributeError, OSError):
        used = ctypes.CDLL("libsqlite3.so.0").sqlite3_memory_used
        used.restype = ctypes.c_int64
        held["SQLite"] = used()
    return held


def _allocations() -> dict[str, int]:
    found = tracemalloc.take_snapshot().statistics("lineno")
    return {str(each.traceback): each.size for each in found[:_LINES_MAX]}


def _place_of(task: asyncio.Task[object]) -> str:
    """The coroutines that wait for each other, from the outermost in."""
    names: list[str] = []
    inner: object = task.get_coro()
    while inner is not None:
        names.append(getattr(inner, "__qualname__", type(inner).__name__))
        inner = getattr(inner, "cr_await", getattr(inner, "ag_await", None))
    return " > ".join(names)


if __name__ == "__main__":
    counts = counts_path(Path(sys.argv[sys.argv.index("--data-dir") + 1]))
    signal.signal(signal.SIGUSR1, lambda number, frame: _write_counts(counts, objects=False))
    signal.signal(signal.SIGUSR2, lambda number, frame: _write_counts(counts, objects=True))
    sys.exit(main())
