"""The calls to the operating system, and the layout and lock of the data directory.

All file access goes through `FileOperations` and `Disk`, so that tests can replace
them: count the bytes read, fail the third write, ignore a sync. Every call may
block and is made in a worker thread, except for the write of a short line and the writes to
the `.live` file, which only copy into the system's cache.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TypeAlias

from msgspec import Struct

from nplt_storage.errors import DataDirectoryInUse, StorageUnavailable

PRIVATE_FILE: Final = 0o600

_INODE_BITS = 2**63 - 1  # what SQLite can keep of an unsigned number
_BLOCK_BYTES: Final = 1024 * 1024

Read: TypeAlias = Callable[[int, int], bytes]
"""(offset, length) → the bytes there, fewer only at the end of the file."""
FileId: TypeAlias = tuple[int, int]
"""The same for every name and descriptor of a file, and for no other file that exists."""


class FoundFile(Struct, frozen=True, kw_only=True):
    """A conversation's file as the directory shows it."""

    name: str
    size: int
    mtime_ns: int
    inode: int

    @classmethod
    def of(cls, name: str, status: os.stat_result) -> FoundFile:
        return cls(
            name=name,
            size=status.st_size,
            mtime_ns=status.st_mtime_ns,
            inode=status.st_ino & _INODE_BITS,
        )


class FileOperations:
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

    def file_id(self, descriptor: int) -> FileId:
        status = os.fstat(descriptor)
        return status.st_dev, status.st_ino

    def find(self, path: Path) -> tuple[FileId, int] | None:
        """Which file has that name, and its size; `None`: there is none."""
        try:
            status = os.stat(path)  # noqa: PTH116 (asked before each append)
        except FileNotFoundError:
            return None
        return (status.st_dev, status.st_ino), status.st_size

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


def read_blocks(read: Read, start: int, end: int) -> Iterator[bytes]:
    """What is there between the two; less if the file ends before."""
    while start < end and (block := read(start, min(_BLOCK_BYTES, end - start))):
        yield block
        start += len(block)


def write_blocks(files: FileOperations, descriptor: int, blocks: Iterable[bytes]) -> int:
    """One after the other, from the beginning of the file; gives how many bytes."""
    size = 0
    for block in blocks:
        write_all(files, descriptor, block, size)
        size += len(block)
    return size


@contextmanager
def opened(files: FileOperations, path: Path, flags: int) -> Iterator[int]:
    descriptor = files.open(path, flags)
    try:
        yield descriptor
    finally:
        files.close(descriptor)


def reader_of(files: FileOperations, descriptor: int) -> Read:
    return lambda offset, length: read_all(files, descriptor, length, offset)


@contextmanager
def opened_to_read(files: FileOperations, path: Path) -> Iterator[tuple[Read, int]]:
    """Its bytes, and its size when it was opened."""
    with opened(files, path, os.O_RDONLY) as descriptor:
        yield reader_of(files, descriptor), files.size(descriptor)


def write_new_file(files: FileOperations, path: Path, data: bytes | Iterable[bytes]) -> None:
    """A whole file or none: written beside, synced, then given its name. What had
    that name before is replaced."""
    beside = path.with_name(f".{path.name}.new")
    files.remove(beside)  # left by a crash
    descriptor = files.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        try:
            write_blocks(files, descriptor, [data] if isinstance(data, bytes) else data)
            files.sync(descriptor)
        finally:
            files.close(descriptor)
        files.rename(beside, path)
    except Exception:
        files.remove(beside)
        raise
    files.sync_directory(path.parent)


_NO_SECOND_NAME: Final = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)


def give_second_name(source: Path, target: Path, part: Path) -> None:
    """The very same file under a second name; where the disk knows no hard links, a
    copy, which is called `part` until it is on disk."""
    try:
        target.hardlink_to(source)
    except OSError as error:
        if error.errno not in _NO_SECOND_NAME:
            raise
        import shutil  # rarely needed, and slow to load

        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        with source.open("rb") as there, os.fdopen(os.open(part, flags, PRIVATE_FILE), "wb") as new:
            shutil.copyfileobj(there, new)
            new.flush()
            os.fsync(new.fileno())
        part.rename(target)


# ------------------------------------------------------------------------------
# The data directory and its lock
#
#     <data_dir>/
#         lock            locked (flock) by the one server that uses the directory
#         catalog.sqlite  the index for lists and search; can be rebuilt
#         history/        session_YYYYMMDD_<id>.json, one file per conversation
#         files/          <session_id>/<file_id>, attachments
#         trash/          deleted conversations, for a while
#
# Private to its owner (0700). The kernel releases the lock when the process ends.

_PRIVATE_DIRECTORY = 0o700


class DataDirectory:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.history = path / "history"
        self.files = path / "files"
        self.trash = path / "trash"
        self._lock: int | None = None

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
        lock_directory(lock, self.path)
        self._lock = lock
        # Attachments that were on their way in when the last server died.
        for part in self.files.glob("*/*.part"):
            with suppress(OSError):
                part.unlink()
                part.parent.rmdir()  # if nothing else is in it

    def give_back(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def lock_directory(descriptor: int, directory: Path) -> None:
    """Takes the lock, or closes the descriptor and raises `DataDirectoryInUse`."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise DataDirectoryInUse(directory) from error


def make_private_directory(directory: Path) -> None:
    if directory.is_dir():
        return
    directory.mkdir(mode=_PRIVATE_DIRECTORY, parents=True, exist_ok=True)
    sync_directory(directory.parent)


def sync_directory(directory: Path) -> None:
    FileOperations().sync_directory(directory)


# ------------------------------------------------------------------------------
# Directories


class Disk(FileOperations):
    def names_in(self, directory: Path) -> list[str]:
        """In order; none if there is no such directory."""
        try:
            return sorted(os.listdir(directory))  # noqa: PTH208
        except FileNotFoundError:
            return []

    def found(self, path: Path) -> FoundFile:
        return FoundFile.of(path.name, path.stat())

    def found_in(self, directory: Path) -> list[FoundFile]:
        """In the order of names; what is no regular file has a size of -1."""
        found: list[FoundFile] = []
        with os.scandir(directory) as entries:
            for entry in entries:
                there = FoundFile(name=entry.name, size=-1, mtime_ns=0, inode=0)
                # It may be gone since it was listed, or be a link that leads nowhere or in circles.
                with suppress(OSError):
                    if entry.is_file():
                        there = FoundFile.of(entry.name, entry.stat())
                found.append(there)
        return sorted(found, key=lambda there: there.name)

    def make_directory(self, directory: Path) -> None:
        """Private, and its name on disk when this returns; fine if it is there."""
        make_private_directory(directory)

    def remove_tree(self, directory: Path) -> None:
        """With all that is in it; fine if it is not there."""
        import shutil

        shutil.rmtree(directory, ignore_errors=True)

    def free_bytes(self, directory: Path) -> int:
        status = os.statvfs(directory)
        return status.f_bavail * status.f_frsize
