"""Disks that refuse, fill up, lie or die in the middle: what was acknowledged stays."""

from __future__ import annotations

import errno
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.storage.conversations import START, Pen, counting_ids, file_bytes, prompt
from tests.storage.file_fakes import (
    AlmostFullFiles,
    ForgetfulFiles,
    MemoryFiles,
    PowerCut,
    Trouble,
    WatchedFiles,
)
from tests.storage.json_stores import loaded

from nplt_storage import (
    BadEntry,
    ConversationDamaged,
    ConversationReadOnly,
    StorageError,
    StorageUnavailable,
)
from nplt_storage.entries import Entry, ModelInputEntry
from nplt_storage.file_system import FileOperations
from nplt_storage.files.append import Appender
from nplt_storage.files.conversation_file import JsonFile
from nplt_storage.files.format import Header

PATH = Path("history/session_20260102_s1.json")
OPERATIONS = ("open", "write", "truncate", "sync_data", "sync", "sync_directory", "rename")


def _file(files: FileOperations) -> JsonFile:
    return JsonFile(PATH, "s1", files=files, new_id=counting_ids())


def _open_with(files: FileOperations, entries: list[Entry], disk: MemoryFiles) -> Appender:
    disk.put(PATH, file_bytes(entries))
    file = _file(files)
    descriptor, found = loaded(file)
    assert found == entries
    return Appender(file, descriptor)


@pytest.fixture
def disk() -> MemoryFiles:
    return MemoryFiles()


@pytest.fixture
def trouble() -> Trouble:
    return Trouble()


def test_a_write_that_fails_leaves_the_file_as_it_was(disk: MemoryFiles, trouble: Trouble) -> None:
    pen = Pen()
    entries = [pen.write(prompt("t1"))]
    appender = _open_with(WatchedFiles(disk, trouble), entries, disk)
    trouble.once["write"] = [errno.EIO]
    with pytest.raises(StorageUnavailable):
        appender.append(pen.stamped(prompt("t2")))
    assert bytes(disk.contents[PATH]) == file_bytes(entries)
    appender.append(pen.stamped(prompt("t2")))
    assert len(json.loads(disk.contents[PATH])["messages"]) == 2


@pytest.mark.parametrize("room", range(0, 700, 7))
def test_a_full_disk_keeps_what_was_there_and_takes_more_when_there_is_room(room: int) -> None:
    disk, pen = MemoryFiles(), Pen()
    entries = [pen.write(prompt("t1"))]
    files = AlmostFullFiles(disk, room)
    appender = _open_with(files, entries, disk)
    draft = prompt("t2", "x" * 600)
    with pytest.raises(StorageUnavailable, match="No space"):
        appender.append(pen.stamped(draft))
    assert bytes(disk.contents[PATH]) == file_bytes(entries)
    files.room = 10_000
    entry = pen.write(draft)
    appender.append(entry)
    assert bytes(disk.contents[PATH]) == file_bytes([*entries, entry])
    assert len(disk.contents) == 1, "nothing is set aside for a full disk"


def test_after_a_failed_sync_nothing_is_taken_until_the_file_is_made_whole(
    disk: MemoryFiles, trouble: Trouble
) -> None:
    pen = Pen()
    entries = [pen.write(prompt("t1"))]
    appender = _open_with(WatchedFiles(disk, trouble), entries, disk)
    trouble.lasting["sync_data"] = errno.EIO
    with pytest.raises(StorageUnavailable, match="did not confirm"):
        appender.append(pen.stamped(prompt("t2")))
    assert not disk.open_files, "a descriptor whose sync failed is not used again"
    with pytest.raises(ConversationReadOnly):
        appender.append(pen.stamped(prompt("t2")))
    trouble.lasting.clear()
    entry = pen.write(prompt("t2", "at last"))
    appender.append(entry)
    assert bytes(disk.contents[PATH]) == file_bytes([*entries, entry])


def test_what_a_failed_sync_left_is_set_aside_not_acknowledged(
    disk: MemoryFiles, trouble: Trouble
) -> None:
    pen = Pen()
    disk.put(PATH, file_bytes([pen.write(prompt("t1"))]))
    file = _file(WatchedFiles(disk, trouble))
    appender = Appender(file, loaded(file)[0])
    trouble.once["sync_data"] = [errno.EIO]
    with pytest.raises(StorageUnavailable):
        appender.append(pen.stamped(prompt("t2", "never said")))
    with file.reading() as source:
        assert [entry.seq for entry in source.after(0)] == [1]
    appender.append(pen.write(prompt("t2", "said")))
    (broken,) = [data for path, data in disk.contents.items() if ".broken-" in path.name]
    assert b"never said" in broken
    assert b"never said" not in disk.contents[PATH]


def test_a_failed_write_that_can_not_be_undone_makes_the_conversation_read_only(
    disk: MemoryFiles, trouble: Trouble
) -> None:
    pen = Pen()
    entries = [pen.write(prompt("t1"))]
    appender = _open_with(WatchedFiles(disk, trouble), entries, disk)
    trouble.lasting["write"] = errno.EIO
    with pytest.raises(StorageUnavailable):
        appender.append(pen.stamped(prompt("t2")))
    with pytest.raises(ConversationReadOnly):
        appender.append(pen.stamped(prompt("t2")))
    trouble.lasting.clear()
    entry = pen.write(prompt("t2"))
    appender.append(entry)
    assert bytes(disk.contents[PATH]) == file_bytes([*entries, entry])


def test_a_file_that_lost_its_last_line_meanwhile_is_not_written_to(
    disk: MemoryFiles, trouble: Trouble
) -> None:
    pen = Pen()
    appender = _open_with(WatchedFiles(disk, trouble), [pen.write(prompt("t1"))], disk)
    trouble.once["sync_data"] = [errno.EIO]
    with pytest.raises(StorageUnavailable):
        appender.append(pen.stamped(prompt("t2")))
    changed = disk.contents[PATH] = bytearray(b"\0" * len(disk.contents[PATH]))
    with pytest.raises(ConversationDamaged):
        appender.append(pen.stamped(prompt("t2")))
    assert not any(changed)


def test_an_entry_that_can_not_be_written_does_not_touch_the_file(
    disk: MemoryFiles, trouble: Trouble
) -> None:
    pen = Pen()
    appender = _open_with(WatchedFiles(disk, trouble), [pen.write(prompt("t1"))], disk)
    trouble.seen.clear()
    stamp: dict[str, Any] = {"id": "e2", "timestamp": START, "turn_id": "t2"}
    unstamped = ModelInputEntry(content="x", turn_id="t2")
    too_far = ModelInputEntry(seq=3, content="x", **stamp)
    half_a_character = ModelInputEntry(seq=2, content="\ud800", **stamp)
    for bad in (unstamped, too_far, half_a_character):
        with pytest.raises(BadEntry):
            appender.append(bad)
    assert trouble.seen == []


def test_every_call_of_a_commit_is_a_safe_place_to_fail(disk: MemoryFiles) -> None:
    for operation in OPERATIONS:
        for place in range(1, 5):
            pen, trouble = Pen(), Trouble()
            entries = [pen.write(prompt("t1"))]
            disk = MemoryFiles()
            appender = _open_with(WatchedFiles(disk, trouble), entries, disk)
            trouble.once[operation] = [0] * (place - 1) + [errno.EIO]
            for number in range(2, 6):
                entry = pen.stamped(prompt(f"t{number}", f"x{number}"))
                try:
                    appender.append(entry)
                except StorageError:
                    continue
                pen.history.add(entry)
                entries.append(entry)
            assert len(entries) >= 4
            _, found = loaded(_file(disk))
            assert found[: len(entries)] == entries
            assert len(found) <= len(entries) + 1, "one that failed last may be there"


def test_every_call_of_creating_appending_and_recovering_is_a_safe_place_to_die() -> None:
    """The machine stops before the n-th call, for every n; then the file is
    opened by a new process, which is stopped in turn."""
    for first_stop in range(1, 40):
        acknowledged, disk = _live_until(first_stop)
        if PATH not in disk.contents:
            assert acknowledged == []
            continue
        for second_stop in range(1, 12):
            again = MemoryFiles()
            again.contents = {path: bytearray(data) for path, data in disk.contents.items()}
            with suppress(PowerCut):
                loaded(_file(WatchedFiles(again, _stop_at(second_stop))))
            _, found = loaded(_file(again))
            assert found[: len(acknowledged)] == acknowledged
            assert len(found) <= len(acknowledged) + 1
            json.loads(again.contents[PATH])


def _live_until(stop: int, disk: MemoryFiles | None = None) -> tuple[list[Entry], MemoryFiles]:
    disk, pen = disk or MemoryFiles(), Pen()
    acknowledged: list[Entry] = []
    file = _file(WatchedFiles(disk, _stop_at(stop)))
    try:
        appender = Appender(file, file.create(Header(session_id="s1", created_at=START)))
        for number in range(8):
            entry = pen.write(prompt(f"t{number}"))
            appender.append(entry)
            acknowledged.append(entry)
    except PowerCut:
        pass
    return acknowledged, disk


def _lost_in_power_cuts(*, lies: bool) -> int:
    """How many acknowledged entries are missing after a cut before each call."""
    lost = 0
    for stop in range(1, 40):
        disk = ForgetfulFiles(lies=lies)
        acknowledged, _ = _live_until(stop, disk)
        survived = disk.after_power_cut()
        found = loaded(_file(survived))[1] if PATH in survived.contents else []
        assert found == acknowledged[: len(found)]
        lost += len(acknowledged) - len(found)
    return lost


def test_what_was_acknowledged_was_synced_before() -> None:
    assert _lost_in_power_cuts(lies=False) == 0


def test_a_disk_that_lies_about_syncs_is_found_out_by_that_check() -> None:
    assert _lost_in_power_cuts(lies=True) > 0


class _stop_at:  # noqa: N801
    def __init__(self, call: int) -> None:
        self._left = call

    def __call__(self, operation: str, length: int) -> None:
        self._left -= 1
        if self._left <= 0:
            raise PowerCut


def test_a_file_whose_last_line_has_changed_meanwhile_is_not_written_to_again() -> None:
    disk = MemoryFiles()
    disk.put(PATH, file_bytes(Pen().write_all([prompt("t1", "one"), prompt("t2", "two")])))
    file = _file(disk)
    disk.close(file.open_for_appending())
    changed = bytes(disk.contents[PATH]).replace(b"two", b"owt")
    disk.put(PATH, changed)
    with pytest.raises(ConversationDamaged):
        file.open_for_appending()
    assert disk.contents == {PATH: changed}


def test_a_power_cut_while_a_torn_end_is_set_aside_takes_none_of_it() -> None:
    whole, torn = file_bytes([Pen().stamped(prompt("t1"))]), b',{"seq":2,"a torn line'
    outcomes: set[int] = set()
    for stop in range(1, 20):
        disk = ForgetfulFiles()
        disk.put(PATH, whole.removesuffix(whole.splitlines(keepends=True)[-1]) + torn)
        disk.sync_data(disk.open(PATH, os.O_RDWR))
        disk.sync_directory(PATH.parent)
        calls: list[str] = []

        def cut(operation: str, length: int, calls: list[str] = calls, stop: int = stop) -> None:
            calls.append(operation)
            if operation != "read" and len(calls) == stop:
                raise PowerCut

        with suppress(PowerCut):
            _file(WatchedFiles(disk, cut)).open_for_appending()
        survived = disk.after_power_cut().contents
        assert any(torn in data for data in survived.values())
        outcomes.add(len(survived))
    assert outcomes == {1, 2}


def test_a_file_that_can_not_be_opened_is_closed_again(disk: MemoryFiles) -> None:
    whole = file_bytes([Pen().stamped(prompt("t1"))])
    disk.put(PATH, whole.replace(b'"seq":1', b'"seq":5'))
    with pytest.raises(ConversationDamaged):
        _file(disk).open_for_appending()
    assert not disk.open_files
