"""The few things the files of this room ask of the operating system.

One door, so that a test can stand in it: count the bytes that are read, let
the third write fail, let a sync lie. Nothing here decides anything. Every call
may block; they are made in worker threads.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Final, Protocol

PRIVATE_FILE: Final = 0o600


class FileOperations(Protocol):
    def open(self, path: Path, flags: int) -> int: ...
    def close(self, descriptor: int) -> None: ...
    def size(self, descriptor: int) -> int: ...
    def is_at(self, descriptor: int, path: Path) -> bool:
        """Whether that name still leads to that file."""
        ...

    def read(self, descriptor: int, length: int, offset: int) -> bytes: ...
    def write(self, descriptor: int, data: bytes | memoryview, offset: int) -> int: ...
    def truncate(self, descriptor: int, size: int) -> None: ...
    def sync_data(self, descriptor: int) -> None: ...
    def sync(self, descriptor: int) -> None: ...
    def sync_directory(self, directory: Path) -> None: ...
    def rename(self, source: Path, target: Path) -> None: ...
    def remove(self, path: Path) -> None: ...


class SystemFiles:
    def open(self, path: Path, flags: int) -> int:
        # Without waiting: opening a pipe that nobody writes to would never return.
        descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, PRIVATE_FILE)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, "it is no regular file")
        return descriptor

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def size(self, descriptor: int) -> int:
        return os.fstat(descriptor).st_size

    def is_at(self, descriptor: int, path: Path) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), path.stat())
        except FileNotFoundError:
            return False

    def read(self, descriptor: int, length: int, offset: int) -> bytes:
        return os.pread(descriptor, length, offset)

    def write(self, descriptor: int, data: bytes | memoryview, offset: int) -> int:
        return os.pwrite(descriptor, data, offset)

    def truncate(self, descriptor: int, size: int) -> None:
        os.ftruncate(descriptor, size)

    def sync_data(self, descriptor: int) -> None:
        # macOS has no fdatasync; there fsync is the nearest thing Python offers.
        getattr(os, "fdatasync", os.fsync)(descriptor)

    def sync(self, descriptor: int) -> None:
        os.fsync(descriptor)

    def sync_directory(self, directory: Path) -> None:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        source.rename(target)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)


def write_all(files: FileOperations, descriptor: int, data: bytes, offset: int) -> None:
    """One write as a rule; the system may take less (a signal, a disk almost full)."""
    written = files.write(descriptor, data, offset)
    while written < len(data):
        written += files.write(descriptor, memoryview(data)[written:], offset + written)


def read_all(files: FileOperations, descriptor: int, length: int, offset: int) -> bytes:
    """As many bytes as there are, up to `length`."""
    data = files.read(descriptor, length, offset)
    if len(data) == length or not data:
        return data
    parts = [data]
    missing = length - len(data)
    while missing and (data := files.read(descriptor, missing, offset + length - missing)):
        parts.append(data)
        missing -= len(data)
    return b"".join(parts)


def write_new_file(files: FileOperations, path: Path, data: bytes) -> None:
    """A whole file or none: written beside, synced, then given its name. What had
    that name before is replaced."""
    beside = path.with_name(f".{path.name}.new")
    files.remove(beside)  # left by a crash
    descriptor = files.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        try:
            write_all(files, descriptor, data, 0)
            files.sync(descriptor)
        finally:
            files.close(descriptor)
        files.rename(beside, path)
    except OSError:
        files.remove(beside)
        raise
    files.sync_directory(path.parent)
