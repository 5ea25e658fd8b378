"""The stand-in for files behaves as the system's do, as far as this room uses them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.storage.file_fakes import MemoryFiles, WatchedFiles

from nplt_storage.file_system import (
    FileOperations,
    read_all,
    write_all,
    write_new_file,
)


@pytest.fixture(params=[FileOperations, MemoryFiles])
def files(request: pytest.FixtureRequest) -> FileOperations:
    made: FileOperations = request.param()
    return made


def test_bytes_are_written_and_read_at_their_place(files: FileOperations, tmp_path: Path) -> None:
    descriptor = files.open(tmp_path / "a", os.O_RDWR | os.O_CREAT | os.O_EXCL)
    write_all(files, descriptor, b"hello", 3)
    assert files.size(descriptor) == 8
    assert read_all(files, descriptor, 100, 0) == b"\0\0\0hello"
    write_all(files, descriptor, b"JE", 3)
    files.truncate(descriptor, 5)
    files.sync_data(descriptor)
    assert read_all(files, descriptor, 100, 3) == b"JE"
    assert read_all(files, descriptor, 100, 50) == b""
    files.close(descriptor)


def test_files_are_made_found_renamed_and_removed(files: FileOperations, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        files.open(tmp_path / "a", os.O_RDONLY)
    write_new_file(files, tmp_path / "a", b"one")
    with pytest.raises(FileExistsError):
        files.open(tmp_path / "a", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    files.rename(tmp_path / "a", tmp_path / "b")
    write_new_file(files, tmp_path / "b", b"two")
    descriptor = files.open(tmp_path / "b", os.O_RDONLY)
    assert read_all(files, descriptor, 9, 0) == b"two"
    files.close(descriptor)
    files.remove(tmp_path / "b")
    files.remove(tmp_path / "b")
    with pytest.raises(FileNotFoundError):
        files.open(tmp_path / "b", os.O_RDONLY)


def test_a_system_that_does_things_by_halves_is_asked_again(tmp_path: Path) -> None:
    class Grudging(WatchedFiles):
        def read(self, descriptor: int, length: int, offset: int) -> bytes:
            return super().read(descriptor, min(length, 3), offset)

        def write(self, descriptor: int, data: bytes | memoryview, offset: int) -> int:
            return super().write(descriptor, data[:2], offset)

    files = Grudging(FileOperations(), lambda operation, length: None)
    descriptor = files.open(tmp_path / "a", os.O_RDWR | os.O_CREAT)
    write_all(files, descriptor, b"0123456789", 0)
    assert read_all(files, descriptor, 10, 0) == b"0123456789"
    assert read_all(files, descriptor, 99, 1) == b"123456789"
    files.close(descriptor)


def test_a_new_file_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    def full(operation: str, length: int) -> None:
        if operation == "sync":
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        write_new_file(WatchedFiles(FileOperations(), full), tmp_path / "a", b"x")
    assert list(tmp_path.iterdir()) == []
