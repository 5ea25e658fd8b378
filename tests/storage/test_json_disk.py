"""The disk in memory does what the real one does: what is tried on it counts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.storage.disk_fakes import MemoryDisk

from nplt_storage.file_system import Disk


@pytest.fixture(params=["system", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Disk, Path]:
    if request.param == "system":
        return Disk(), tmp_path
    disk = MemoryDisk()
    disk.put(Path("data/keep"), b"")
    disk.remove(Path("data/keep"))
    return disk, Path("data")


def _write(disk: Disk, path: Path, data: bytes) -> None:
    descriptor = disk.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    disk.write(descriptor, data, 0)
    disk.close(descriptor)


def test_what_is_in_a_directory(place: tuple[Disk, Path]) -> None:
    disk, root = place
    _write(disk, root / "b", b"12345")
    _write(disk, root / "a", b"")
    disk.make_directory(root / "c")
    assert disk.names_in(root) == ["a", "b", "c"]
    assert [(found.name, found.size) for found in disk.found_in(root)] == [
        ("a", 0),
        ("b", 5),
        ("c", -1),
    ]
    assert disk.found(root / "b") == disk.found_in(root)[1]
    assert disk.names_in(root / "nowhere") == []
    with pytest.raises(FileNotFoundError):
        disk.found(root / "nowhere")


def test_a_replaced_file_is_another_one(place: tuple[Disk, Path]) -> None:
    disk, root = place
    _write(disk, root / "a", b"1")
    _write(disk, root / "b", b"2")
    before = disk.found(root / "a")
    disk.rename(root / "b", root / "a")
    assert disk.found(root / "a").inode != before.inode


def test_a_directory_moves_with_all_that_is_in_it(place: tuple[Disk, Path]) -> None:
    disk, root = place
    disk.make_directory(root / "a")
    disk.make_directory(root / "a")
    _write(disk, root / "a" / "x", b"1")
    disk.rename(root / "a", root / "b")
    assert (disk.names_in(root), disk.names_in(root / "b")) == (["b"], ["x"])
    disk.make_directory(root / "c")
    with pytest.raises(OSError, match="not empty"):
        disk.rename(root / "c", root / "b")
    with pytest.raises(FileNotFoundError):
        disk.rename(root / "a", root / "d")


def test_a_tree_is_removed_if_it_is_there(place: tuple[Disk, Path]) -> None:
    disk, root = place
    disk.make_directory(root / "a")
    _write(disk, root / "a" / "x", b"1")
    disk.remove_tree(root / "a")
    disk.remove_tree(root / "a")
    assert disk.names_in(root) == []


def test_there_is_room(place: tuple[Disk, Path]) -> None:
    disk, root = place
    assert disk.free_bytes(root) > 0
