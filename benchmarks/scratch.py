"""Where benchmarks keep their files: on a real disk if possible, and not for long.

Many systems keep /tmp in memory, where nothing is ever synced; /var/tmp is
meant to survive a restart, so it usually lies on a disk.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TypeVar

from benchmarks.measuring import ROUNDS

T = TypeVar("T", int, float)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a benchmark is given: a place for its files, and how thorough to be."""

    scratch: Path
    full: bool = False
    smoke: bool = False
    """Only find out whether it can be carried out: tiny counts, one round."""
    baseline: Path | None = None
    """Another checkout, whose server is measured in the same rounds."""
    plots: Path | None = None
    """Where curves are drawn; None: where they are removed with everything else."""

    @property
    def checkouts(self) -> dict[str, Path | None]:
        """Whose servers to measure, by name; `None` is this checkout."""
        return {"here": None, "beside": self.baseline} if self.baseline else {"here": None}

    def sized(self, usual: T, *, smoke: T) -> T:
        """How many of something there should be, or how long to go on."""
        return smoke if self.smoke else usual

    def rounds(self, usual: int = ROUNDS) -> int:
        return self.sized(usual, smoke=1)

    def new_path(self, name: str) -> Path:
        for number in count(1):
            path = self.scratch / f"{name}-{number}"
            if not path.exists():
                return path
        raise AssertionError


@contextmanager
def scratch_directory(chosen: Path | None, *, prefix: str = "nplt-bench-") -> Iterator[Path]:
    """On a real disk if possible: many systems keep /tmp in memory."""
    usual = Path("/var/tmp")
    parent = chosen or (usual if os.access(usual, os.W_OK) else None)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=parent) as path:
        yield Path(path)
