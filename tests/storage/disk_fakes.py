"""Stand-ins for a whole directory on disk: in memory, forgetful, watched.

`MemoryDisk` passes the same checks as the real one (test_json_disk). It knows
which names and bytes were synced, so that the power can go at any moment.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.storage.file_fakes import PowerCut, WatchedFiles

from nplt_storage.file_system import Disk, FileId, FoundFile


@dataclass(slots=True, eq=False)
class File:
    data: bytearray = field(default_factory=bytearray)
    on_disk: bytes = b""


@dataclass(slots=True, eq=False)
class Folder:
    names: dict[str, File | Folder] = field(default_factory=dict)
    on_disk: dict[str, File | Folder] = field(default_factory=dict)


class MemoryDisk(Disk):
    """With `lies` it only says that it synced: a check of the checks."""

    def __init__(self, *, lies: bool = False) -> None:
        self.open_files: dict[int, File] = {}
        self.free = 10**12
        self._root = Folder()
        self._lies = lies
        self._next = 100

    # For tests

    def put(self, path: Path, data: bytes) -> None:
        """There, and on disk."""
        folder = self._root
        for part in path.parts[:-1]:
            node = folder.names.setdefault(part, Folder())
            assert isinstance(node, Folder)
            folder = node
        folder.names[path.name] = File(bytearray(data), bytes(data))
        self._settle(self._root)

    @property
    def contents(self) -> dict[Path, bytes]:
        return dict(_walk(self._root, Path(), on_disk=False))

    def after_power_cut(self) -> MemoryDisk:
        """The worst case: nothing reached the disk that was not synced."""
        survived = MemoryDisk()
        for path, data in _walk(self._root, Path(), on_disk=True):
            survived.put(path, data)
        return survived

    def copy(self) -> MemoryDisk:
        again = MemoryDisk()
        for path, data in self.contents.items():
            again.put(path, data)
        return again

    def _settle(self, folder: Folder) -> None:
        folder.on_disk = dict(folder.names)
        for node in folder.names.values():
            if isinstance(node, Folder):
                self._settle(node)

    # Files

    def open(self, path: Path, flags: int) -> int:
        folder = self._folder(path.parent)
        node = folder.names.get(path.name)
        if node is not None and flags & os.O_CREAT and flags & os.O_EXCL:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        if node is None:
            if not flags & os.O_CREAT:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            node = folder.names[path.name] = File()
        if isinstance(node, Folder):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        self._next += 1
        self.open_files[self._next] = node
        return self._next

    def close(self, descriptor: int) -> None:
        del self.open_files[descriptor]

    def size(self, descriptor: int) -> int:
        return len(self.open_files[descriptor].data)

    def file_id(self, descriptor: int) -> FileId:
        return 0, id(self.open_files[descriptor])

    def find(self, path: Path) -> tuple[FileId, int] | None:
        node = self._folder(path.parent).names.get(path.name)
        return ((0, id(node)), len(node.data)) if isinstance(node, File) else None

    def read(self, descriptor: int, length: int, offset: int) -> bytes:
        return bytes(self.open_files[descriptor].data[offset : offset + length])

    def after_hole(self, descriptor: int, offset: int) -> int:
        return offset

    def write(self, descriptor: int, data: bytes | memoryview, offset: int) -> int:
        file = self.open_files[descriptor].data
        file.extend(bytes(max(0, offset - len(file))))
        file[offset : offset + len(data)] = data
        return len(data)

    def truncate(self, descriptor: int, size: int) -> None:
        file = self.open_files[descriptor].data
        file.extend(bytes(max(0, size - len(file))))
        del file[size:]

    def sync_data(self, descriptor: int) -> None:
        file = self.open_files[descriptor]
        if not self._lies:
            file.on_disk = bytes(file.data)

    def sync(self, descriptor: int) -> None:
        self.sync_data(descriptor)

    def sync_directory(self, directory: Path) -> None:
        folder = self._folder(directory)
        if not self._lies:
            folder.on_disk = dict(folder.names)

    def rename(self, source: Path, target: Path) -> None:
        before = self._folder(source.parent)
        if source.name not in before.names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        there = self._folder(target.parent).names.get(target.name)
        if isinstance(there, Folder) and there.names:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))
        self._folder(target.parent).names[target.name] = before.names.pop(source.name)

    def remove(self, path: Path) -> None:
        self._folder(path.parent).names.pop(path.name, None)

    # Directories

    def names_in(self, directory: Path, *, with_part: str = "") -> list[str]:
        try:
            return sorted(name for name in self._folder(directory).names if with_part in name)
        except FileNotFoundError:
            return []

    def found(self, path: Path) -> FoundFile:
        node = self._folder(path.parent).names.get(path.name)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        size = len(node.data) if isinstance(node, File) else -1
        return FoundFile(name=path.name, size=size, mtime_ns=0, inode=id(node))

    def found_in(self, directory: Path) -> list[FoundFile]:
        return [self.found(directory / name) for name in self.names_in(directory)]

    def make_directory(self, directory: Path) -> None:
        parent = self._folder(directory.parent)
        if directory.name not in parent.names:
            parent.names[directory.name] = Folder()
            self.sync_directory(directory.parent)

    def remove_tree(self, directory: Path) -> None:
        self._folder(directory.parent).names.pop(directory.name, None)

    def free_bytes(self, directory: Path) -> int:
        return self.free

    def _folder(self, path: Path) -> Folder:
        folder = self._root
        for part in path.parts:
            node = folder.names.get(part)
            if not isinstance(node, Folder):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            folder = node
        return folder


def _walk(folder: Folder, path: Path, *, on_disk: bool) -> list[tuple[Path, bytes]]:
    found: list[tuple[Path, bytes]] = []
    for name, node in (folder.on_disk if on_disk else folder.names).items():
        if isinstance(node, Folder):
            found += _walk(node, path / name, on_disk=on_disk)
        else:
            found.append((path / name, node.on_disk if on_disk else bytes(node.data)))
    return found


class WatchedDisk(WatchedFiles, Disk):
    """Passes everything on; `before` sees each call that changes something first."""

    def __init__(self, disk: Disk, before: Callable[[str, int], None]) -> None:
        super().__init__(disk, before)
        self._disk = disk
        self._asked = before

    def names_in(self, directory: Path, *, with_part: str = "") -> list[str]:
        return self._disk.names_in(directory, with_part=with_part)

    def found(self, path: Path) -> FoundFile:
        return self._disk.found(path)

    def found_in(self, directory: Path) -> list[FoundFile]:
        return self._disk.found_in(directory)

    def make_directory(self, directory: Path) -> None:
        self._asked("make_directory", 0)
        self._disk.make_directory(directory)

    def remove_tree(self, directory: Path) -> None:
        self._asked("remove_tree", 0)
        self._disk.remove_tree(directory)

    def free_bytes(self, directory: Path) -> int:
        return self._disk.free_bytes(directory)


class StopAt:
    """The machine stops before the n-th call, and nothing happens after that."""

    def __init__(self, call: int) -> None:
        self._left = call
        self.has_stopped = False

    def __call__(self, operation: str, length: int) -> None:
        self._left -= 1
        if self._left <= 0:
            self.has_stopped = True
            raise PowerCut
