"""Counts durations in buckets, and commits by how long they take, for operators; and the clock that
measures long ones."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from time import monotonic
from typing import Final

from msgspec import Struct, field

from nplt_storage.json_values import JsonObject

BUCKET_SECONDS: Final = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0)
"""Upper bounds of the buckets; one more bucket holds longer durations."""
SHORT_BUCKET_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
"""The same for what takes milliseconds."""


def boot_time() -> float:
    """A clock that goes on while the machine sleeps, where there is one."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


class Durations(Struct):
    bounds: tuple[float, ...] = BUCKET_SECONDS
    count: int = 0
    seconds: float = 0.0
    longest: float = 0.0
    buckets: list[int] = field(default_factory=list)
    """One number for each bucket. The list keeps its length, so that a scrape may read it while the
    thread of a commit adds to it."""

    def __post_init__(self) -> None:
        self.buckets = [0] * (len(self.bounds) + 1)

    def add(self, seconds: float) -> None:
        self.count += 1
        self.seconds += seconds
        self.longest = max(self.longest, seconds)
        self.buckets[bisect_left(self.bounds, seconds)] += 1

    def include(self, other: Durations) -> None:
        """Adds durations with the same bounds."""
        self.count += other.count
        self.seconds += other.seconds
        self.longest = max(self.longest, other.longest)
        self.buckets = [mine + its for mine, its in zip(self.buckets, other.buckets, strict=True)]

    def as_json(self) -> JsonObject:
        """`buckets`: durations per bucket, by upper bound; not cumulative."""
        edges = [*(f"{edge:g}" for edge in self.bounds), "more"]
        buckets: JsonObject = {
            edge: number for edge, number in zip(edges, self.buckets, strict=True) if number
        }
        return {
            "count": self.count,
            "sum": round(self.seconds, 3),
            "max": round(self.longest, 3),
            "buckets": buckets,
        }


class Commits:
    """Counts the commits of a store, from any thread."""

    def __init__(self) -> None:
        self.seconds = Durations(SHORT_BUCKET_SECONDS)
        """How long each took, those that failed included."""
        self.failed = 0
        self._lock = Lock()

    @contextmanager
    def count(self) -> Iterator[None]:
        """Counts the block as one commit."""
        began, is_done = monotonic(), False
        try:
            yield
            is_done = True
        finally:
            with self._lock:
                self.seconds.add(monotonic() - began)
                self.failed += not is_done
