"""Stand-ins for the operating system's files: in memory, counting, failing.

`MemoryFiles` passes the same checks as the real ones (test_file_operations),
so that tens of thousands of crashes can be tried without a disk.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

from nplt_storage.file_system import FileId, FileOperations
from nplt_storage.files.seen_file import NAME as SEEN_NAME


class MemoryFiles(FileOperations):
    def __init__(self) -> None:
        self.contents: dict[Path, bytearray] = {}
        self.open_files: dict[int, bytearray] = {}
        self._next = 100

    def put(self, path: Path, data: bytes) -> None:
        self.contents[path] = bytearray(data)

    def open(self, path: Path, flags: int) -> int:
        if flags & os.O_CREAT:
            if path in self.contents and flags & os.O_EXCL:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
            self.contents.setdefault(path, bytearray())
        if path not in self.contents:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        self._next += 1
        self.open_files[self._next] = self.contents[path]
        return self._next

    def close(self, descriptor: int) -> None:
        del self.open_files[descriptor]

    def size(self, descriptor: int) -> int:
        return len(self.open_files[descriptor])

    def file_id(self, descriptor: int) -> FileId:
        return 0, id(self.open_files[descriptor])

    def find(self, path: Path) -> tuple[FileId, int] | None:
        file = self.contents.get(path)
        return None if file is None else ((0, id(file)), len(file))

    def read(self, descriptor: int, length: int, offset: int) -> bytes:
        return bytes(self.open_files[descriptor][offset : offset + length])

    def after_hole(self, descriptor: int, offset: int) -> int:
        return offset

    def write(self, descriptor: int, data: bytes | memoryview, offset: int) -> int:
        file = self.open_files[descriptor]
        file.extend(bytes(max(0, offset - len(file))))
        file[offset : offset + len(data)] = data
        return len(data)

    def truncate(self, descriptor: int, size: int) -> None:
        file = self.open_files[descriptor]
        file.extend(bytes(max(0, size - len(file))))
        del file[size:]

    def sync_data(self, descriptor: int) -> None:
        assert descriptor in self.open_files

    def sync(self, descriptor: int) -> None:
        assert descriptor in self.open_files

    def sync_directory(self, directory: Path) -> None:
        pass

    def rename(self, source: Path, target: Path) -> None:
        self.contents[target] = self.contents.pop(source)

    def remove(self, path: Path) -> None:
        self.contents.pop(path, None)


class ForgetfulFiles(MemoryFiles):
    """A disk behind a cache: what was not synced when the power goes may be lost.

    With `lies` it only says that it synced: a check of the checks.
    """

    def __init__(self, *, lies: bool = False) -> None:
        super().__init__()
        self._lies = lies
        self._on_disk: dict[int, bytes] = {}
        self._names_on_disk: dict[Path, bytearray] = {}

    def sync_data(self, descriptor: int) -> None:
        file = self.open_files[descriptor]
        if not self._lies:
            self._on_disk[id(file)] = bytes(file)

    def sync(self, descriptor: int) -> None:
        self.sync_data(descriptor)

    def sync_directory(self, directory: Path) -> None:
        if not self._lies:
            self._names_on_disk = dict(self.contents)

    def after_power_cut(self) -> MemoryFiles:
        """The worst case: nothing reached the disk that was not synced."""
        survived = MemoryFiles()
        for path, file in self._names_on_disk.items():
            survived.put(path, self._on_disk.get(id(file), b""))
        return survived


class PowerCut(BaseException):
    """Nothing after this happens: no handler, no clean-up that counts."""


class WatchedFiles(FileOperations):
    """Passes everything on; `before` sees each call first, and may raise."""

    def __init__(self, files: FileOperations, before: Callable[[str, int], None]) -> None:
        self._files = files
        self._before = before
        self.bytes_read = 0
        """Those of conversations: the marks of what was seen are read at every start."""
        self._marks: set[int] = set()
        """The descriptors of the file of marks."""

    def open(self, path: Path, flags: int) -> int:
        self._before("open", 0)
        descriptor = self._files.open(path, flags)
        self._marks.discard(descriptor)
        if path.name == SEEN_NAME:
            self._marks.add(descriptor)
        return descriptor

    def close(self, descriptor: int) -> None:
        self._files.close(descriptor)

    def size(self, descriptor: int) -> int:
        return self._files.size(descriptor)

    def file_id(self, descriptor: int) -> FileId:
        return self._files.file_id(descriptor)

    def find(self, path: Path) -> tuple[FileId, int] | None:
        return self._files.find(path)

    def read(self, descriptor: int, length: int, offset: int) -> bytes:
        self._before("read", length)
        data = self._files.read(descriptor, length, offset)
        if descriptor not in self._marks:
            self.bytes_read += len(data)
        return data

    def after_hole(self, descriptor: int, offset: int) -> int:
        return self._files.after_hole(descriptor, offset)

    def write(self, descriptor: int, data: bytes | memoryview, offset: int) -> int:
        self._before("write", len(data))
        return self._files.write(descriptor, data, offset)

    def truncate(self, descriptor: int, size: int) -> None:
        self._before("truncate", size)
        self._files.truncate(descriptor, size)

    def sync_data(self, descriptor: int) -> None:
        self._before("sync_data", 0)
        self._files.sync_data(descriptor)

    def sync(self, descriptor: int) -> None:
        self._before("sync", 0)
        self._files.sync(descriptor)

    def sync_directory(self, directory: Path) -> None:
        self._before("sync_directory", 0)
        self._files.sync_directory(directory)

    def rename(self, source: Path, target: Path) -> None:
        self._before("rename", 0)
        self._files.rename(source, target)

    def remove(self, path: Path) -> None:
        self._before("remove", 0)
        self._files.remove(path)


class Trouble:
    """Errors to come, by operation: each is used once, or always if it is `lasting`."""

    def __init__(self) -> None:
        self.once: dict[str, list[int]] = {}
        self.lasting: dict[str, int] = {}
        self.seen: list[str] = []

    def __call__(self, operation: str, _: int) -> None:
        self.seen.append(operation)
        number = self.lasting.get(operation)
        if self.once.get(operation):
            number = self.once[operation].pop(0)
        if number:
            raise OSError(number, os.strerror(number))


class AlmostFullFiles(WatchedFiles):
    """A disk with room for so many bytes more; a write that hits the end is half done."""

    def __init__(self, files: FileOperations, room: int) -> None:
        super().__init__(files, lambda operation, length: None)
        self.room = room

    def write(self, descriptor: int, data: bytes | memoryview, offset: int) -> int:
        growth = max(0, offset + len(data) - self.size(descriptor))
        if growth <= self.room:
            self.room -= growth
            return super().write(descriptor, data, offset)
        fits = len(data) - (growth - self.room)
        if fits <= 0 or not self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.room = 0
        return super().write(descriptor, data[:fits], offset)

    def truncate(self, descriptor: int, size: int) -> None:
        self.room += max(0, self.size(descriptor) - size)
        super().truncate(descriptor, size)
