"""What a check gets: a place for its files, how thorough to be, and a source of chance.

Chance is seeded by the run and the check, so that a run can be repeated. The exact moment at which
a process dies depends on the machine; what is done to it does not.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    scratch: Path
    seed: int
    quick: bool = False
    sabotage: bool = False
    """Removes an acknowledged line after each fault: every check must fail."""
    plots: Path | None = None
    """The directory for curves."""

    def chance(self, *names: object) -> random.Random:
        return random.Random("/".join(map(str, (self.seed, *names))))

    def new_path(self, name: str) -> Path:
        for number in count(1):
            path = self.scratch / f"{name}-{number}"
            try:
                path.mkdir(parents=True)
            except FileExistsError:
                continue
            return path
        raise AssertionError


@contextmanager
def memory_directory(plan: Plan) -> Iterator[Path]:
    """A directory for checks that are not about the disk, in memory if possible."""
    shared = Path("/dev/shm")
    if not os.access(shared, os.W_OK):
        yield plan.new_path("memory")
        return
    path = Path(tempfile.mkdtemp(prefix="nplt-faults-", dir=shared))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
