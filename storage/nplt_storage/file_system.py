"""The calls to the operating system, and the layout and lock of the data directory.

All file access goes through `FileOperations` and `Disk`, so that tests can replace
them: count the bytes read, fail the third write, ignore a sync. Every call may
block and is made in a worker thread, except for the write of a short line and the writes to
the `.live` file, which only copy into the system's cache.

The data directory is ours alone. Below it no symbolic link is followed, in no component of a
path, and only regular files that belong to the server's user, to root or to the owner of the
data directory are opened; anything else is `NotOurs`. The data directory itself may be a link
that its operator made.
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
"""Identifies a file: equal for all its names and descriptors, different from every other existing
file."""


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


class NotOurs(OSError):
    """A file in the data directory that is refused; the message says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(errno.EINVAL, reason)

    def __str__(self) -> str:
        return str(self.strerror)


_KINDS: Final = (
    (stat.S_ISREG, "a file"),
    (stat.S_ISLNK, "a symbolic link, and is not followed"),
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
)
_FOLDER: Final = os.O_DIRECTORY | os.O_CLOEXEC
# To pass through a directory no right to list it is needed; macOS has no such flag.
_WAY: Final = getattr(os, "O_PATH", os.O_RDONLY) | _FOLDER


def _kind(status: os.stat_result) -> str:
    return next((what for is_it, what in _KINDS if is_it(status.st_mode)), "a device")


class FileOperations:
    """The operations on files below `root`. Without a root, the folder of each path is its root."""

    root: Path | None = None

    def __init__(self, root: Path | None = None) -> None:
        self.root = root

    def open(self, path: Path, flags: int) -> int:
        with self._inside(path.parent, path) as (folder, owners):
            with suppress(FileNotFoundError):  # opening a device may act on it
                _check(os.stat(path.name, dir_fd=folder, follow_symlinks=False), owners, flags)
            # Without waiting: opening a pipe that nobody writes to would never return.
            flags |= os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
            descriptor = os.open(path.name, flags, PRIVATE_FILE, dir_fd=folder)
            try:
                _check(os.fstat(descriptor), owners)
            except BaseException:
                os.close(descriptor)
                raise
            return descriptor

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def size(self, descriptor: int) -> int:
        return os.fstat(descriptor).st_size

    def file_id(self, descriptor: int) -> FileId:
        status = os.fstat(descriptor)
        return status.st_dev, status.st_ino

    def find(self, path: Path) -> tuple[FileId, int] | None:
        """The identity and size of the file with that name, or `None`."""
        try:
            status = os.lstat(path)  # asked before each append
        except FileNotFoundError:
            return None
        return (status.st_dev, status.st_ino), status.st_size

    def read(self, descriptor: int, length: int, offset: int) -> bytes:
        return os.pread(descriptor, length, offset)

    def after_hole(self, descriptor: int, offset: int) -> int:
        try:
            return os.lseek(descriptor, offset, os.SEEK_DATA)
        except OSError as error:  # it ends in a hole, or the file system does not know
            return self.size(descriptor) if error.errno == errno.ENXIO else offset

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
        with self._listed(directory) as descriptor:
            os.fsync(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        with (
            self._inside(source.parent, source) as (before, _),
            self._inside(target.parent, target) as (after, _),
        ):
            os.rename(source.name, target.name, src_dir_fd=before, dst_dir_fd=after)

    def remove(self, path: Path) -> None:
        with suppress(FileNotFoundError), self._inside(path.parent, path) as (folder, _):
            os.unlink(path.name, dir_fd=folder)

    @contextmanager
    def _inside(self, directory: Path, path: Path) -> Iterator[tuple[int, frozenset[int]]]:
        """Opens the directory, from the root on without following links, and yields its descriptor
        and the owners whose files are ours. Errors name `path`."""
        root, names = self._way_to(directory)
        try:
            descriptor = os.open(root, _WAY)
            try:
                owners = frozenset((os.geteuid(), 0, os.fstat(descriptor).st_uid))
                for name in names:
                    inner = _open_folder(name, descriptor)
                    os.close(descriptor)
                    descriptor = inner
                yield descriptor, owners
            finally:
                os.close(descriptor)
        except OSError as error:
            error.filename = str(path)
            raise

    def _way_to(self, directory: Path) -> tuple[Path, tuple[str, ...]]:
        """The start of the path and the names that follow. `Path.relative_to` takes longer than
        opening the file."""
        root, parts = self.root, directory.parts
        if root is None or root.anchor != directory.anchor:
            return directory, ()
        count = len(root.parts)
        return (root, parts[count:]) if parts[:count] == root.parts else (directory, ())

    @contextmanager
    def _listed(self, directory: Path) -> Iterator[int]:
        with self._inside(directory, directory) as (folder, _):
            descriptor = os.open(".", os.O_RDONLY | _FOLDER, dir_fd=folder)
            try:
                yield descriptor
            finally:
                os.close(descriptor)


def _open_folder(name: str, folder: int) -> int:
    if name == "..":
        raise NotOurs("it is outside of the data directory")
    try:
        return os.open(name, _WAY | os.O_NOFOLLOW, dir_fd=folder)
    except NotADirectoryError:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        raise NotOurs(f"{name} is {_kind(status)}") from None


def _check(status: os.stat_result, owners: frozenset[int], flags: int = 0) -> None:
    """Raises `NotOurs`, unless the flags demand that the file does not exist yet."""
    if flags & os.O_EXCL:
        return
    if not stat.S_ISREG(status.st_mode):
        raise NotOurs(f"it is {_kind(status)}")
    if status.st_uid not in owners:
        raise NotOurs(f"it belongs to another user ({status.st_uid})")


def open_given(path: Path) -> int:
    """Opens a file that a person named, for reading. It may be a link and may belong to anybody,
    but it must be a regular file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(mode := os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise IsADirectoryError if stat.S_ISDIR(mode) else NotOurs("it is no regular file")
    return descriptor


def write_all(files: FileOperations, descriptor: int, data: bytes, offset: int) -> None:
    """Writes all the data. One write is usually enough, but the system may accept less (a signal,
    an almost full disk)."""
    written = files.write(descriptor, data, offset)
    while written < len(data):
        written += files.write(descriptor, memoryview(data)[written:], offset + written)


def read_all(files: FileOperations, descriptor: int, length: int, offset: int) -> bytes:
    """Reads up to `length` bytes; fewer only at the end of the file."""
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
    """Yields the bytes from `start` to `end`, or fewer if the file ends earlier."""
    while start < end and (block := read(start, min(_BLOCK_BYTES, end - start))):
        yield block
        start += len(block)


def write_blocks(files: FileOperations, descriptor: int, blocks: Iterable[bytes]) -> int:
    """Writes the blocks one after the other from the beginning of the file, and returns the number
    of bytes."""
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


class FileReader:
    """Reads anywhere in an open file: a `Read` that knows where the file has holes."""

    def __init__(self, files: FileOperations, descriptor: int) -> None:
        self._files = files
        self._descriptor = descriptor

    def __call__(self, offset: int, length: int) -> bytes:
        return read_all(self._files, self._descriptor, length, offset)

    def after_hole(self, offset: int) -> int:
        return self._files.after_hole(self._descriptor, offset)


def reader_of(files: FileOperations, descriptor: int) -> FileReader:
    return FileReader(files, descriptor)


def after_hole(read: Read, offset: int) -> int:
    """The offset of the next byte that was ever written, or `offset` if that is unknown. A hole
    reads as zeros that take no room on disk, possibly gigabytes of them."""
    return read.after_hole(offset) if isinstance(read, FileReader) else offset


@contextmanager
def opened_to_read(files: FileOperations, path: Path) -> Iterator[tuple[FileReader, int]]:
    """Yields a reader, and the file's size at this moment."""
    with opened(files, path, os.O_RDONLY) as descriptor:
        yield reader_of(files, descriptor), files.size(descriptor)


def read_beginning(files: FileOperations, path: Path, length: int) -> bytes:
    """Reads up to `length` bytes from the beginning. Raises `OSError`."""
    with opened_to_read(files, path) as (read, size):
        return read(0, min(length, size))


def write_new_file(files: FileOperations, path: Path, data: bytes | Iterable[bytes]) -> None:
    """Writes a file completely or not at all: under a temporary name, synced, then renamed. An
    existing file is replaced."""
    new_file = path.with_name(f".{path.name}.new")
    files.remove(new_file)  # left by a crash
    descriptor = files.open(new_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        try:
            write_blocks(files, descriptor, [data] if isinstance(data, bytes) else data)
            files.sync(descriptor)
        finally:
            files.close(descriptor)
        files.rename(new_file, path)
    except Exception:
        files.remove(new_file)
        raise
    files.sync_directory(path.parent)


_NO_SECOND_NAME: Final = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)


def give_second_name(disk: Disk, source: Path, target: Path, part: Path) -> None:
    """Links the file under a second name. If the disk does not support hard links, it is copied,
    under the name `part` until the copy is on disk."""
    with opened_to_read(disk, source) as (read, size):  # it is a file of ours
        try:
            disk.link(source, target)
        except OSError as error:
            if error.errno not in _NO_SECOND_NAME:
                raise
            with opened(disk, part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as new:
                write_blocks(disk, new, read_blocks(read, 0, size))
                disk.sync(new)
            disk.rename(part, target)


# ------------------------------------------------------------------------------
# The data directory and its lock
#
#     <data_dir>/
#         lock            locked (flock) by the one server that uses the directory
#         catalog.sqlite  the index for lists and search; can be rebuilt
#         seen.jsonl      up to which entry the users have seen their conversations
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
        """Creates missing directories and takes the lock. Raises `DataDirectoryInUse`."""
        disk = Disk(self.path)
        try:
            for directory in (self.history, self.files, self.trash):
                disk.make_directory(directory)
            lock = open_lock(self.path, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise StorageUnavailable(
                f"the data directory {self.path} can't be used: {error.strerror}"
            ) from error
        lock_directory(lock, self.path)
        self._lock = lock
        # Attachments that were on their way in when the last server died.
        for name in disk.names_in(self.files):
            folder = self.files / name
            with suppress(OSError):
                parts = [part for part in disk.names_in(folder) if part.endswith(".part")]
                for part in parts:
                    disk.remove(folder / part)
                if parts:
                    disk.remove_directory(folder)  # if nothing else is in it

    def give_back(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def open_lock(directory: Path, flags: int) -> int:
    """Raises `NotOurs`, or another `OSError`."""
    try:
        return FileOperations(directory).open(directory / "lock", flags)
    except NotOurs as error:
        raise NotOurs(f"lock: {error.strerror}") from error


def lock_directory(descriptor: int, directory: Path) -> None:
    """Takes the lock, or closes the descriptor and raises `DataDirectoryInUse`."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise DataDirectoryInUse(directory) from error


# ------------------------------------------------------------------------------
# Directories


class Disk(FileOperations):
    def names_in(self, directory: Path, *, with_part: str = "") -> list[str]:
        """Sorted names that have that part; empty if there is no such directory of ours. The memory
        needed is that of these names, however many others there are."""
        try:
            with self._listed(directory) as descriptor, os.scandir(descriptor) as entries:
                return sorted(entry.name for entry in entries if with_part in entry.name)
        except (FileNotFoundError, NotADirectoryError, NotOurs):
            return []

    def found(self, path: Path) -> FoundFile:
        return FoundFile.of(path.name, self.status(path))

    def status(self, path: Path) -> os.stat_result:
        """The status of the file; a link is not followed."""
        with self._inside(path.parent, path) as (folder, _):
            return os.stat(path.name, dir_fd=folder, follow_symlinks=False)

    def why_not_ours(self, path: Path) -> str | None:
        """The reason why the file is refused; `None` if it is a regular file of ours, a directory,
        or does not exist."""
        with (
            suppress(FileNotFoundError),
            self._inside(path.parent, path) as (folder, owners),
        ):
            status = os.stat(path.name, dir_fd=folder, follow_symlinks=False)
            if not stat.S_ISDIR(status.st_mode):
                try:
                    _check(status, owners)
                except NotOurs as reason:
                    return reason.strerror
        return None

    def is_file(self, path: Path) -> bool:
        try:
            return stat.S_ISREG(self.status(path).st_mode) and self.why_not_ours(path) is None
        except OSError:
            return False

    def is_directory(self, path: Path) -> bool:
        try:
            return stat.S_ISDIR(self.status(path).st_mode)
        except OSError:
            return False

    def found_in(self, directory: Path) -> list[FoundFile]:
        """The files, sorted by name. Anything but a regular file has a size of -1."""
        found: list[FoundFile] = []
        with self._listed(directory) as descriptor, os.scandir(descriptor) as entries:
            for entry in entries:
                there = FoundFile(name=entry.name, size=-1, mtime_ns=0, inode=0)
                with suppress(OSError):  # it may be gone since it was listed
                    if entry.is_file(follow_symlinks=False):
                        there = FoundFile.of(entry.name, entry.stat(follow_symlinks=False))
                found.append(there)
        return sorted(found, key=lambda there: there.name)

    def make_directory(self, directory: Path) -> None:
        """Creates a private directory durably, if it does not exist."""
        if directory.parent != directory and not directory.parent.is_dir():
            self.make_directory(directory.parent)
        with self._inside(directory.parent, directory) as (folder, _):
            try:
                os.mkdir(directory.name, _PRIVATE_DIRECTORY, dir_fd=folder)
            except FileExistsError:
                if directory != self.root:  # which may be a link
                    os.close(_open_folder(directory.name, folder))
                return
        self.sync_directory(directory.parent)

    def remove_directory(self, directory: Path) -> None:
        """Removes an empty directory; raises `OSError` if it is not empty."""
        with self._inside(directory.parent, directory) as (folder, _):
            os.rmdir(directory.name, dir_fd=folder)

    def remove_tree(self, directory: Path) -> None:
        """Removes the directory and everything in it, if it exists. A link is removed without
        touching its target."""
        import shutil

        with suppress(OSError), self._inside(directory.parent, directory) as (folder, _):
            try:
                os.unlink(directory.name, dir_fd=folder)
            except OSError:  # as a rule it is a directory
                shutil.rmtree(directory.name, ignore_errors=True, dir_fd=folder)

    def link(self, source: Path, target: Path) -> None:
        """Gives the file a second name."""
        with (
            self._inside(source.parent, source) as (before, _),
            self._inside(target.parent, target) as (after, _),
        ):
            there = {"src_dir_fd": before, "dst_dir_fd": after}
            os.link(source.name, target.name, **there, follow_symlinks=False)

    def free_bytes(self, directory: Path) -> int:
        status = os.statvfs(directory)
        return status.f_bavail * status.f_frsize
