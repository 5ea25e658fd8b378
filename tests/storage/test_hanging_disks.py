"""A disk that does not answer costs the append its deadline, not the conversation."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from tests.storage.conversations import START, Pen, counting_ids, file_bytes, prompt
from tests.storage.file_fakes import MemoryFiles, WatchedFiles

from nplt_storage.entries import Entry
from nplt_storage.errors import ConversationReadOnly, StorageUnavailable
from nplt_storage.json_appender import Appender
from nplt_storage.json_file import JsonFile
from nplt_storage.json_layout import Header
from nplt_storage.json_record import JsonRecord

PATH = Path("history/session_20260102_s1.json")


class HangingDisk:
    """Syncs hang from `stop` until `go_on`."""

    def __init__(self) -> None:
        self.files = MemoryFiles()
        self._may_pass = threading.Event()
        self._may_pass.set()

    def __call__(self, operation: str, length: int) -> None:
        if operation == "sync_data":
            assert self._may_pass.wait(timeout=30)

    def stop(self) -> None:
        self._may_pass.clear()

    def go_on(self) -> None:
        self._may_pass.set()


@pytest.fixture
def disk() -> Iterator[HangingDisk]:
    disk = HangingDisk()
    yield disk
    disk.go_on()


@pytest.fixture
def appended() -> list[Entry]:
    return []


def _record(disk: HangingDisk, appended: list[Entry], *, seconds: float) -> JsonRecord:
    files = WatchedFiles(disk.files, disk)
    file = JsonFile(PATH, "s1", files=files, new_id=counting_ids())
    return JsonRecord(
        Appender(file, file.create(Header(session_id="s1", created_at=START))),
        appended=appended.append,
        closed=lambda: None,
        threads=anyio.CapacityLimiter(2),
        commit_seconds_max=seconds,
    )


async def _append_when_possible(record: JsonRecord, entry: Entry) -> None:
    while True:
        try:
            await record.append(entry)
            return
        except ConversationReadOnly:
            await anyio.lowlevel.checkpoint()


async def test_an_append_that_hangs_fails_and_is_not_counted_later(
    disk: HangingDisk, appended: list[Entry]
) -> None:
    record, pen = _record(disk, appended, seconds=0.05), Pen()
    disk.stop()
    with pytest.raises(StorageUnavailable, match="no answer from the disk"):
        await record.append(pen.stamped(prompt("t1", "too late")))
    with pytest.raises(ConversationReadOnly, match="has not answered yet"):
        await record.append(pen.stamped(prompt("t1")))
    disk.go_on()
    record._commit_seconds_max = 30
    entry = pen.write(prompt("t1", "in time"))
    await _append_when_possible(record, entry)
    assert appended == [entry]
    assert bytes(disk.files.contents[PATH]) == file_bytes([entry])


async def test_cancelling_does_not_reach_into_a_commit(
    disk: HangingDisk, appended: list[Entry]
) -> None:
    record, pen = _record(disk, appended, seconds=30), Pen()
    entry = pen.write(prompt("t1"))
    disk.stop()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(record.append, entry)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
        disk.go_on()
    assert appended == [entry]
    assert bytes(disk.files.contents[PATH]) == file_bytes([entry])


async def test_a_record_closed_while_its_disk_hangs_gives_its_descriptor_back(
    disk: HangingDisk, appended: list[Entry]
) -> None:
    record, pen = _record(disk, appended, seconds=0.05), Pen()
    disk.stop()
    with pytest.raises(StorageUnavailable):
        await record.append(pen.stamped(prompt("t1")))
    await record.close()
    disk.go_on()
    while disk.files.open_files:
        await anyio.lowlevel.checkpoint()
    with pytest.raises(ConversationReadOnly, match="closed"):
        await record.append(pen.stamped(prompt("t1")))


async def test_nobody_opens_the_file_while_an_append_hangs_in_it(disk: HangingDisk) -> None:
    files = WatchedFiles(disk.files, disk)
    file = JsonFile(PATH, "s1", files=files, new_id=counting_ids())
    appender = Appender(file, file.create(Header(session_id="s1", created_at=START)))
    entry = Pen().stamped(prompt("t1"))
    disk.stop()

    async def append() -> None:
        await anyio.to_thread.run_sync(appender.append, entry)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(append)
        await anyio.wait_all_tasks_blocked()
        while not file.writing.locked():
            await anyio.lowlevel.checkpoint()
        with pytest.raises(ConversationReadOnly, match="has not answered yet"):
            file.load()
        disk.go_on()
    _, entries = file.load()
    assert entries == [entry]
