"""A whole conversation's file, written beside and given its name at the end.

For what is not an append: a conversation that is taken in, and the one rewrite
there is. Until it is sealed, and renamed by whoever made it, a crash leaves
nothing but a file that is swept away at the next start.
"""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Final

from nplt_storage.file_operations import write_all
from nplt_storage.files.disk import Disk
from nplt_storage.files.layout import Closing, advance, encode_closing
from nplt_storage.files.names import on_its_way
from nplt_storage.files.recovery import Tail

_BUFFER_BYTES: Final = 1024 * 1024


class NewFile:
    """Blocks. `first` is the header's line; `created_at` what it says there."""

    def __init__(self, disk: Disk, path: Path, first: bytes, *, created_at: datetime) -> None:
        self.beside = on_its_way(path.with_name(f"{path.name}.whole"))
        self._disk = disk
        self._buffer = bytearray(first)
        self._written = 0
        self._first = self._last = self._end = len(first)
        self._closing = Closing(
            updated_at=created_at, head_seq=0, message_count=0, epoch_offset=len(first)
        )
        disk.remove(self.beside)  # left by a crash
        self._descriptor: int | None = disk.open(self.beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL)

    @property
    def head_seq(self) -> int:
        return self._closing.head_seq

    def add(self, line: bytes, *, kind: str, at: datetime) -> None:
        """`line` as `encode_line` made it."""
        comma = b"" if self._end == self._first else b","
        self._last = self._end
        self._closing = advance(self._closing, kind, at=at, offset=self._end)
        self._buffer += b"%b%b\n" % (comma, line)
        self._end += len(comma) + len(line) + 1
        if len(self._buffer) >= _BUFFER_BYTES:
            self._flush()

    def seal(self) -> Tail:
        """All of it is on disk when this returns, under the name it has meanwhile."""
        self._buffer += encode_closing(self._closing)
        self._flush()
        assert self._descriptor is not None
        self._disk.sync(self._descriptor)
        self._close()
        return Tail(first=self._first, last=self._last, end=self._end, closing=self._closing)

    def abandon(self) -> None:
        with suppress(OSError):  # the next start sweeps it away
            self._close()
            self._disk.remove(self.beside)

    def _flush(self) -> None:
        assert self._descriptor is not None
        data, self._buffer = bytes(self._buffer), bytearray()
        write_all(self._disk, self._descriptor, data, self._written)
        self._written += len(data)

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            self._disk.close(descriptor)
