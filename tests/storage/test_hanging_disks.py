"""A disk that does not answer costs the append its deadline, not the conversation."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import pytest
from tests.storage.conversations import START, Pen, counting_ids, file_bytes, prompt
from tests.storage.file_fakes import MemoryFiles, WatchedFiles
from tests.storage.json_stores import loaded

from nplt_storage import ConversationReadOnly, StorageUnavailable
from nplt_storage.entries import Entry
from nplt_storage.files.append import Appender, Committer, SyncLater
from nplt_storage.files.commit_threads import CommitThreads
from nplt_storage.files.conversation_file import JsonFile
from nplt_storage.files.format import Header

PATH = Path("history/session_20260102_s1.json")


class HangingDisk:
    """Syncs hang from `stop` until `go_on`."""

    def __init__(self) -> None:
        self.files = MemoryFiles()
        self.is_waited_for = False
        self._may_pass = threading.Event()
        self._may_pass.set()

    def __call__(self, operation: str, length: int) -> None:
        if operation == "sync_data":
            self.is_waited_for = not self._may_pass.is_set()
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


def _record(
    disk: HangingDisk,
    appended: list[Entry],
    *,
    seconds: float,
    threads: CommitThreads | None = None,
    sync_later: SyncLater | None = None,
) -> Committer[None]:
    files = WatchedFiles(disk.files, disk)
    file = JsonFile(PATH, "s1", files=files, new_id=counting_ids())
    descriptor = file.create(Header(session_id="s1", created_at=START))
    return Committer(
        Appender(file, descriptor, sync_later=sync_later),
        appended=appended.append,
        threads=threads or CommitThreads(),
        commit_seconds_max=seconds,
    )


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():
        await anyio.lowlevel.checkpoint()


async def _append_when_possible(record: Committer[None], entry: Entry) -> None:
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


async def test_a_file_with_a_hanging_append_can_not_be_opened(disk: HangingDisk) -> None:
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
            loaded(file)
        disk.go_on()
    _, entries = loaded(file)
    assert entries == [entry]


async def test_a_disk_that_hangs_for_one_conversation_is_not_in_the_way_of_others(
    disk: HangingDisk,
) -> None:
    threads, well = CommitThreads(), HangingDisk()
    hanging = _record(disk, [], seconds=30, threads=threads)
    entries = list[Entry]()
    record, pen = _record(well, entries, seconds=30, threads=threads), Pen()
    disk.stop()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(hanging.append, Pen().write(prompt("t1")))
        await anyio.wait_all_tasks_blocked()
        for number in range(20):
            await record.append(pen.write(prompt(f"t{number}")))
        disk.go_on()
    assert bytes(well.files.contents[PATH]) == file_bytes(entries)
    assert len(entries) == 20


async def test_an_append_that_never_got_a_thread_fails_and_is_never_written(
    disk: HangingDisk, appended: list[Entry]
) -> None:
    threads, well = CommitThreads(1), HangingDisk()
    record, pen = _record(well, appended, seconds=0.05, threads=threads), Pen()
    disk.stop()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(
            _record(disk, [], seconds=30, threads=threads).append, Pen().write(prompt("t1"))
        )
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(StorageUnavailable, match="no answer from the disk"):
            await record.append(pen.stamped(prompt("t1", "never")))
        disk.go_on()
    record._commit_seconds_max = 30
    entry = pen.write(prompt("t1", "said"))
    await record.append(entry)
    assert appended == [entry]
    assert bytes(well.files.contents[PATH]) == file_bytes([entry])
    assert list(well.files.contents) == [PATH], "there was nothing to set aside"


async def _record_whose_append_hung(
    disk: HangingDisk, appended: list[Entry], threads: CommitThreads, pen: Pen
) -> Committer[None]:
    """A scheduled sync hangs, and the append behind it has been given up."""
    due = list[Callable[[], None]]()
    record = _record(disk, appended, seconds=0.05, threads=threads, sync_later=due.append)
    await record.append(pen.write(prompt("t1")))
    disk.stop()
    threads.start(due.pop())
    await _until(lambda: disk.is_waited_for)
    with pytest.raises(StorageUnavailable, match="no answer from the disk"):
        await record.append(pen.stamped(prompt("t2", "too late")))
    return record


async def test_a_later_sync_that_hangs_costs_the_next_append_its_deadline(
    disk: HangingDisk, appended: list[Entry]
) -> None:
    threads, pen = CommitThreads(), Pen()
    record = await _record_whose_append_hung(disk, appended, threads, pen)
    disk.go_on()
    record._commit_seconds_max = 30
    entry = pen.write(prompt("t2", "in time"))
    await _append_when_possible(record, entry)
    assert bytes(disk.files.contents[PATH]) == file_bytes(appended)
    assert appended[-1] == entry


async def test_closing_waits_for_a_sync_that_hangs_no_longer_than_for_an_append(
    disk: HangingDisk, appended: list[Entry]
) -> None:
    due = list[Callable[[], None]]()
    record = _record(disk, appended, seconds=0.05, sync_later=due.append)
    await record.append(Pen().write(prompt("t1")))
    disk.stop()
    await record.close()
    assert disk.files.open_files, "the thread that hangs there gives it back"
    disk.go_on()
    await _until(lambda: not disk.files.open_files)


async def test_an_append_that_hung_while_its_file_was_reopened_writes_nothing(
    disk: HangingDisk, appended: list[Entry]
) -> None:
    threads, pen = CommitThreads(), Pen()
    record = await _record_whose_append_hung(disk, appended, threads, pen)
    await record.close()
    file = record._appender._file
    file.files = disk.files  # another way to the disk, which is well
    again = Appender(file, loaded(file)[0])
    again.append(pen.write(prompt("t2", "in time")))
    disk.go_on()
    await _until(lambda: threads.busy == 0)
    again.close()
    assert bytes(disk.files.contents[PATH]) == file_bytes(pen.history.entries)
    assert not disk.files.open_files
