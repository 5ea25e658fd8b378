"""Reading files that may be anything: only regular ones, and never more than they hold."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from nplt_storage.file_operations import SystemFiles, read_all

_BLOCK_BYTES: Final = 1024 * 1024


def read_range(path: Path, offset: int, length: int) -> bytes:
    """Fewer bytes only at its end. Raises `OSError`."""
    files = SystemFiles()
    descriptor = files.open(path, os.O_RDONLY)
    try:
        there = max(files.size(descriptor) - offset, 0)
        return read_all(files, descriptor, min(length, there), offset)
    finally:
        files.close(descriptor)


def read_blocks(path: Path) -> Iterator[bytes]:
    files = SystemFiles()
    descriptor = files.open(path, os.O_RDONLY)
    try:
        offset = 0
        while block := files.read(descriptor, _BLOCK_BYTES, offset):
            yield block
            offset += len(block)
    finally:
        files.close(descriptor)
