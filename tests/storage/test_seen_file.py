"""The file of marks: what survives, and when it is rewritten."""

from __future__ import annotations

from pathlib import Path

import pytest

from nplt_storage.errors import StorageUnavailable
from nplt_storage.file_system import Disk
from nplt_storage.files.seen_file import NAME, SeenFile


def marks_in(path: Path, *known: str) -> SeenFile:
    file = SeenFile(Disk(path), path / NAME, known=known or ("s1", "s2"))
    file.load()
    return file


def test_marks_are_read_again_and_the_last_line_of_a_conversation_counts(tmp_path: Path) -> None:
    file = marks_in(tmp_path)
    for session_id, seq in (("s1", 3), ("s2", 5), ("s1", 7)):
        file.note(session_id, seq)
        file.write()
    assert marks_in(tmp_path).marks == {"s2": 5, "s1": 7}
    assert len((tmp_path / NAME).read_bytes().splitlines()) == 3


@pytest.mark.parametrize("end", [b'{"session_id":"s2","se', b"\x00\xff\n", b'{"seen_seq":1}\n'])
def test_a_torn_or_foreign_line_is_ignored_and_replaced(tmp_path: Path, end: bytes) -> None:
    file = marks_in(tmp_path)
    file.note("s1", 3)
    file.write()
    path = tmp_path / NAME
    path.write_bytes(path.read_bytes() + end)
    again = marks_in(tmp_path)
    assert again.marks == {"s1": 3}
    again.note("s2", 4)
    again.write()
    assert path.read_bytes() == (
        b'{"session_id":"s1","seen_seq":3}\n{"session_id":"s2","seen_seq":4}\n'
    )


def test_a_file_full_of_old_lines_is_rewritten_without_conversations_that_are_gone(
    tmp_path: Path,
) -> None:
    file = marks_in(tmp_path, "s1")
    file.note("gone", 1)
    for seq in range(1_100):
        file.note("s1", seq)
        file.write(sync=False)
    assert len((tmp_path / NAME).read_bytes().splitlines()) < 200
    assert marks_in(tmp_path).marks == {"s1": 1_099}


def test_the_marks_of_deleted_conversations_are_forgotten(tmp_path: Path) -> None:
    known: set[str] = set()
    file = SeenFile(Disk(tmp_path), tmp_path / NAME, known=known)
    for number in range(2_100):
        known.add(f"s{number}")
        file.begin(f"s{number}", 0)
        known.remove(f"s{number}")
    assert len(file.marks) < 1_100
    assert len((tmp_path / NAME).read_bytes().splitlines()) < 1_100


class FullDisk(Disk):
    is_full = False

    def write(self, descriptor: int, data: bytes | memoryview, offset: int) -> int:
        if self.is_full:
            raise OSError(28, "No space left on device")
        return super().write(descriptor, data, offset)


def test_a_mark_that_could_not_be_written_is_written_with_the_next_one(tmp_path: Path) -> None:
    disk = FullDisk(tmp_path)
    file = SeenFile(disk, tmp_path / NAME, known=("s1", "s2"))
    file.note("s1", 1)
    file.write()
    disk.is_full = True
    file.note("s2", 2)
    with pytest.raises(StorageUnavailable, match="No space left"):
        file.write()
    disk.is_full = False
    file.note("s1", 3)
    file.write()
    assert marks_in(tmp_path).marks == {"s2": 2, "s1": 3}


def test_a_mark_beyond_the_head_is_set_back_when_the_conversation_is_opened(tmp_path: Path) -> None:
    file = marks_in(tmp_path)
    file.note("s1", 9)
    file.begin("s1", 4)
    file.begin("s2", 6)
    assert file.marks == {"s1": 4, "s2": 6}
    assert marks_in(tmp_path).marks == file.marks
