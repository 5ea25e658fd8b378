"""What is too large for a line stands beside the file, whole or not at all."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

import pytest
from tests.storage.disk_fakes import MemoryDisk, StopAt, WatchedDisk
from tests.storage.file_fakes import PowerCut, Trouble

from nplt_storage import BadEntry
from nplt_storage.entries import BlobReference
from nplt_storage.file_system import Disk
from nplt_storage.files.conversation_file import keep_blob, read_blob, remove_blobs_except

BLOBS = Path("history/session_20260102_s1.blobs")
DATA = b"a giant result " * 1000
ID = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def disk() -> MemoryDisk:
    return _disk()


def _disk(*, lies: bool = False) -> MemoryDisk:
    disk = MemoryDisk(lies=lies)
    disk.put(Path("history/other"), b"")
    return disk


def test_a_blob_is_named_by_what_it_holds_and_read_in_pieces(disk: MemoryDisk) -> None:
    assert keep_blob(disk, BLOBS, DATA) == BlobReference(blob_id=ID, size=len(DATA), sha256=ID)
    assert disk.contents[BLOBS / ID] == DATA
    assert read_blob(disk, BLOBS, ID, 0, 10**9) == DATA
    assert read_blob(disk, BLOBS, ID, 5, 7) == DATA[5:12]
    for offset, length in ((len(DATA), 5), (10**12, 5), (3, 0)):
        assert read_blob(disk, BLOBS, ID, offset, length) == b""
    for offset, length in ((-1, 5), (0, -1)):
        with pytest.raises(BadEntry, match="range"):
            read_blob(disk, BLOBS, ID, offset, length)


def test_an_empty_one_is_one_too(disk: MemoryDisk) -> None:
    reference = keep_blob(disk, BLOBS, b"")
    assert read_blob(disk, BLOBS, reference.blob_id, 0, 10) == b""


def test_the_same_bytes_are_kept_once(disk: MemoryDisk) -> None:
    keep_blob(disk, BLOBS, DATA)
    trouble = Trouble()
    keep_blob(WatchedDisk(disk, trouble), BLOBS, DATA)
    assert "write" not in trouble.seen


def test_one_that_lost_bytes_is_written_again(disk: MemoryDisk) -> None:
    disk.put(BLOBS / ID, DATA[:-1])
    keep_blob(disk, BLOBS, DATA)
    assert disk.contents[BLOBS / ID] == DATA


@pytest.mark.parametrize(
    "blob_id", ["", "..", "../../etc/passwd", ID[:-1], ID.upper(), "0" * 64, f"{ID}\n", f"/{ID}"]
)
def test_what_is_no_blob_here_is_refused(disk: MemoryDisk, blob_id: str) -> None:
    keep_blob(disk, BLOBS, DATA)
    with pytest.raises(BadEntry, match="no blob"):
        read_blob(disk, BLOBS, blob_id, 0, 1)


def test_private_files_in_a_private_folder(tmp_path: Path) -> None:
    keep_blob(Disk(), tmp_path / "x.blobs", DATA)
    assert (tmp_path / "x.blobs").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "x.blobs" / ID).stat().st_mode & 0o777 == 0o600


def _kept_after_power_cuts(*, lies: bool) -> list[bool]:
    """For a cut before each call: whether the blob is there. Never half of it."""
    kept = []
    for stop in range(1, 20):
        disk, watch = _disk(lies=lies), StopAt(stop)
        with suppress(PowerCut):
            keep_blob(WatchedDisk(disk, watch), BLOBS, DATA)
        there = disk.after_power_cut().contents.get(BLOBS / ID)
        assert there in (None, DATA)
        if not watch.has_stopped:
            kept.append(there is not None)
    return kept


def test_once_kept_it_survives_a_power_cut() -> None:
    kept = _kept_after_power_cuts(lies=False)
    assert kept
    assert all(kept)


def test_a_disk_that_lies_about_syncs_is_found_out_by_that_check() -> None:
    assert not any(_kept_after_power_cuts(lies=True))


def test_unreferenced_blobs_are_removed_and_others_stay(disk: MemoryDisk) -> None:
    keep_blob(disk, BLOBS, DATA)
    other = keep_blob(disk, BLOBS, b"other").blob_id
    remove_blobs_except(disk, BLOBS, {other})
    assert disk.names_in(BLOBS) == [other]
    remove_blobs_except(disk, Path("history/nothing.blobs"), set())
