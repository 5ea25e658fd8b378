"""The directory everything is kept in, and the lock that makes it ours.

    <data_dir>/
        lock            held (flock) by the one server that uses the directory
        catalog.sqlite  what lists and search are answered from; can be made again
        history/        session_YYYYMMDD_<id>.json, one file per conversation
        files/          <session_id>/<file_id>, attachments
        trash/          what was deleted, for a while

Private to its owner (0700). The lock is the kernel's: it ends with the process,
however that ends.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from nplt_storage.errors import DataDirectoryInUse, StorageUnavailable
from nplt_storage.file_operations import SystemFiles

_PRIVATE_DIRECTORY = 0o700


class DataDirectory:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    @property
    def history(self) -> Path:
        return self.path / "history"

    @property
    def files(self) -> Path:
        return self.path / "files"

    @property
    def trash(self) -> Path:
        return self.path / "trash"

    def take(self) -> None:
        """Makes what is missing and takes the lock, or raises `DataDirectoryInUse`."""
        try:
            for directory in (self.path, self.history, self.files, self.trash):
                make_private_directory(directory)
            lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StorageUnavailable(
                f"the data directory {self.path} can't be used: {error.strerror}"
            ) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            raise DataDirectoryInUse(self.path) from error
        self._lock = lock
        self._sweep()

    def _sweep(self) -> None:
        """Attachments that were on their way in when the last server died."""
        for part in self.files.glob("*/*.part"):
            with suppress(OSError):
                part.unlink()
                part.parent.rmdir()  # if nothing else is in it

    def give_back(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def make_private_directory(directory: Path) -> None:
    if directory.is_dir():
        return
    directory.mkdir(mode=_PRIVATE_DIRECTORY, parents=True, exist_ok=True)
    sync_directory(directory.parent)


def sync_directory(directory: Path) -> None:
    SystemFiles().sync_directory(directory)
