"""A conversation that is taken in whole is there in one step, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from tests.storage.conversations import START, chat, file_bytes
from tests.storage.disk_fakes import MemoryDisk, StopAt, WatchedDisk
from tests.storage.file_fakes import PowerCut, Trouble

from nplt_storage import BadEntry, ConversationExists, StorageUnavailable
from nplt_storage.file_system import Disk
from nplt_storage.files.conversation_file import NewConversation
from nplt_storage.files.directory import sweep
from nplt_storage.files.format import Header, blobs_of

HISTORY = Path("history")
PATH = HISTORY / "session_20260102_s1.json"
ENTRIES = chat(6)
HEADER = Header(session_id="s1", created_at=START)


@pytest.fixture
def disk() -> MemoryDisk:
    return _disk()


def _disk() -> MemoryDisk:
    disk = MemoryDisk()
    disk.put(HISTORY / "other", b"untouched")
    return disk


def _build(disk: Disk) -> None:
    new = NewConversation(disk, PATH, HEADER)
    for number in range(0, len(ENTRIES), 4):
        new.keep_blob(b"blob %d" % number)
        new.add(ENTRIES[number : number + 4])
    new.finish()


def _build_or_abandon(disk: Disk) -> None:
    new = NewConversation(disk, PATH, HEADER)
    try:
        new.add(ENTRIES)
        new.finish()
    except BaseException:
        new.abandon()
        raise


def _sweep(disk: Disk) -> None:
    sweep(disk, HISTORY)


def test_it_is_the_file_appending_would_have_made(disk: MemoryDisk) -> None:
    _build(disk)
    assert disk.contents[PATH] == file_bytes(ENTRIES)
    assert sorted(map(bytes, _blobs(disk))) == [b"blob 0", b"blob 12", b"blob 4", b"blob 8"]
    assert disk.names_in(HISTORY) == ["other", blobs_of(PATH).name, PATH.name]


def _blobs(disk: MemoryDisk) -> list[bytes]:
    return [data for path, data in disk.contents.items() if path.parent == blobs_of(PATH)]


def test_one_without_entries_and_blobs_is_fine(disk: MemoryDisk) -> None:
    NewConversation(disk, PATH, HEADER).finish()
    assert disk.contents[PATH] == file_bytes([])
    assert disk.names_in(HISTORY) == ["other", PATH.name]


def test_a_batch_that_does_not_follow_is_refused_whole(disk: MemoryDisk) -> None:
    new = NewConversation(disk, PATH, HEADER)
    new.add(ENTRIES[:2])
    with pytest.raises(BadEntry, match="can't follow"):
        new.add([ENTRIES[2], ENTRIES[4]])
    new.add(ENTRIES[2:])
    new.finish()
    assert disk.contents[PATH] == file_bytes(ENTRIES)


def test_what_was_given_up_leaves_nothing(disk: MemoryDisk) -> None:
    before = disk.contents
    new = NewConversation(disk, PATH, HEADER)
    new.add(ENTRIES)
    new.keep_blob(b"blob")
    new.abandon()
    assert disk.contents == before
    assert not disk.open_files


@pytest.mark.parametrize("operation", ["open", "write", "sync", "rename", "sync_directory"])
def test_a_disk_error_during_creation_is_reported_and_leaves_no_conversation(
    disk: MemoryDisk, operation: str
) -> None:
    trouble = Trouble()
    trouble.lasting[operation] = 28
    with pytest.raises(StorageUnavailable):
        _build_or_abandon(WatchedDisk(disk, trouble))
    _sweep(disk)
    assert disk.names_in(HISTORY) == ["other"]


def test_a_file_that_is_there_is_not_overwritten(disk: MemoryDisk) -> None:
    disk.put(PATH, b"mine")
    with pytest.raises(ConversationExists):
        _build(disk)
    assert disk.contents[PATH] == b"mine"


@pytest.mark.parametrize("survivor", [MemoryDisk.copy, MemoryDisk.after_power_cut])
def test_every_call_is_a_safe_place_to_die(
    survivor: Callable[[MemoryDisk], MemoryDisk],
) -> None:
    outcomes = set()
    for stop in range(1, 60):
        disk, watch = _disk(), StopAt(stop)
        with suppress(PowerCut):
            _build(WatchedDisk(disk, watch))
        after = survivor(disk)
        _sweep(after)
        if PATH in after.contents:
            assert after.contents[PATH] == file_bytes(ENTRIES)
            assert len(_blobs(after)) == 4, "blobs are there before the lines that name them"
            outcomes.add("whole")
        else:
            assert watch.has_stopped
            assert set(after.names_in(HISTORY)) <= {"other", blobs_of(PATH).name}
            outcomes.add("nothing")
            _build(after)
            assert after.contents[PATH] == file_bytes(ENTRIES)
            assert len(_blobs(after)) == 4
    assert outcomes == {"whole", "nothing"}
