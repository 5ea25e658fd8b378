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


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a benchmark is given: a place for its files, and how thorough to be."""

    scratch: Path
    full: bool = False

    def new_path(self, name: str) -> Path:
        for number in count(1):
            path = self.scratch / f"{name}-{number}"
            if not path.exists():
                return path
        raise AssertionError


@contextmanager
def scratch_directory(chosen: Path | None) -> Iterator[Path]:
    usual = Path("/var/tmp")
    parent = chosen or (usual if os.access(usual, os.W_OK) else None)
    with tempfile.TemporaryDirectory(prefix="nplt-bench-", dir=parent) as path:
        yield Path(path)
