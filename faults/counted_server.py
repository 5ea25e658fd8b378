"""`python -m faults.counted_server …`: the server, which counts its tasks on SIGUSR1, and its tasks
and objects on SIGUSR2 (that takes half a second).

The counts are written beside the data directory, to a file that appears whole. The handlers run
in the main thread, where the event loop runs.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from nplt_server.cli import main

SECONDS_MAX = 30.0


def counts_path(data_dir: Path) -> Path:
    return data_dir.with_name(f"{data_dir.name}.counts")


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    tasks: Counter[str]
    """By the functions that they are in."""
    objects: Counter[str]
    """By type; only if they were asked for."""


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
    return Counts(tasks=Counter(counted["tasks"]), objects=Counter(counted["objects"]))


def _write_counts(path: Path, *, objects: bool) -> None:
    types: Counter[str] = Counter()
    if objects:
        gc.collect()
        every = (type(each) for each in gc.get_objects())
        types.update(f"{each.__module__}.{each.__name__}" for each in every)
    tasks = Counter(map(_place_of, asyncio.all_tasks()))
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps({"tasks": tasks, "objects": types}))
    unfinished.rename(path)


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
