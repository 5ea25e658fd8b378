"""What a directory of conversations asks of the system, beyond single files.

The same door as `FileOperations`, a little wider, for the same reason: a test
can stand in it, and stop the machine before any call. Nothing here decides
anything. Every call may block; they are made in worker threads.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from nplt_storage.catalogue.freshness import FoundFile
from nplt_storage.data_directory import make_private_directory
from nplt_storage.file_operations import FileOperations, SystemFiles


class Disk(FileOperations, Protocol):
    def names_in(self, directory: Path) -> list[str]:
        """In order; none if there is no such directory."""
        ...

    def found(self, path: Path) -> FoundFile: ...

    def found_in(self, directory: Path) -> list[FoundFile]:
        """In the order of names; what is no regular file has a size of -1."""
        ...

    def make_directory(self, directory: Path) -> None:
        """Private, and its name on disk when this returns; fine if it is there."""
        ...

    def remove_tree(self, directory: Path) -> None:
        """With all that is in it; fine if it is not there."""
        ...

    def free_bytes(self, directory: Path) -> int: ...


class SystemDisk(SystemFiles):
    def names_in(self, directory: Path) -> list[str]:
        try:
            return sorted(os.listdir(directory))  # noqa: PTH208
        except FileNotFoundError:
            return []

    def found(self, path: Path) -> FoundFile:
        return FoundFile.of(path.name, path.stat())

    def found_in(self, directory: Path) -> list[FoundFile]:
        with os.scandir(directory) as entries:
            return sorted(map(_found, entries), key=lambda found: found.name)

    def make_directory(self, directory: Path) -> None:
        make_private_directory(directory)

    def remove_tree(self, directory: Path) -> None:
        shutil.rmtree(directory, ignore_errors=True)

    def free_bytes(self, directory: Path) -> int:
        status = os.statvfs(directory)
        return status.f_bavail * status.f_frsize


def _found(entry: os.DirEntry[str]) -> FoundFile:
    if entry.is_file():
        with suppress(FileNotFoundError):  # gone since it was listed, or a broken link
            return FoundFile.of(entry.name, entry.stat())
    return FoundFile(name=entry.name, size=-1, mtime_ns=0, inode=0)
