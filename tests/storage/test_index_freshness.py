"""Which files must be read again is told by their names, sizes, times and inodes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from nplt_storage.file_system import FoundFile
from nplt_storage.index.updates import FileStamp, compare_files

FILE = FoundFile(name="session_1.json", size=100, mtime_ns=5, inode=7)
STAMP = FileStamp(file=FILE, end_offset=80, head_seq=3)


def test_a_file_that_is_as_it_was_need_not_be_read() -> None:
    result = compare_files({"s1": FILE}, {"s1": STAMP})
    assert (result.grown, result.unknown, result.gone) == ([], [], [])


@pytest.mark.parametrize(
    "now",
    [
        replace(FILE, size=120, mtime_ns=9),
        replace(FILE, size=120),
    ],
)
def test_a_file_that_was_written_on_is_read_on(now: FoundFile) -> None:
    assert compare_files({"s1": now}, {"s1": STAMP}).grown == ["s1"]


def test_a_file_whose_time_was_not_known_is_read_on() -> None:
    stamp = replace(STAMP, file=replace(FILE, mtime_ns=0))
    assert compare_files({"s1": FILE}, {"s1": stamp}).grown == ["s1"]


@pytest.mark.parametrize(
    "now",
    [
        replace(FILE, size=99),
        replace(FILE, mtime_ns=9),
        replace(FILE, mtime_ns=1),
        replace(FILE, inode=8),
        replace(FILE, inode=8, size=120),
        replace(FILE, name="session_2.json"),
    ],
)
def test_a_file_that_is_another_one_or_shorter_is_read_whole(now: FoundFile) -> None:
    assert compare_files({"s1": now}, {"s1": STAMP}).unknown == ["s1"]


def test_new_files_are_read_and_lost_ones_forgotten() -> None:
    result = compare_files({"new": FILE}, {"old": STAMP})
    assert (result.unknown, result.gone) == (["new"], ["old"])
    assert result.grown == []


def test_a_found_file_has_the_size_time_and_inode_of_its_stat(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(b"12345")
    status = path.stat()
    found = FoundFile.of("x.json", status)
    assert (found.name, found.size, found.mtime_ns) == ("x.json", 5, status.st_mtime_ns)
    path.with_name("y").write_bytes(b"12345")
    path.with_name("y").rename(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert FoundFile.of("x.json", path.stat()) != found, "replaced by one that looks alike"
