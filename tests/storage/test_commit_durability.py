"""always, interval, never: when a sync comes, and what is done when it fails."""

from __future__ import annotations

import errno
import json
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Semaphore, Timer

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.storage.conversations import START, Pen, counting_ids, file_bytes, prompt
from tests.storage.file_fakes import MemoryFiles, Trouble, WatchedFiles
from tests.storage.json_stores import loaded

from nplt_storage import ConversationDamaged, Durability, StorageError, StorageUnavailable
from nplt_storage.entries import Entry
from nplt_storage.file_system import FileOperations
from nplt_storage.files import append
from nplt_storage.files.append import Appender, Committer, SyncSchedule
from nplt_storage.files.commit_threads import CommitThreads
from nplt_storage.files.conversation_file import JsonFile
from nplt_storage.files.format import Header

PATH = Path("history/session_20260102_s1.json")


class CachedFiles(MemoryFiles):
    """A disk behind a cache that forgets: after a sync that failed, what it should
    have written counts as written, though it never was."""

    def __init__(self) -> None:
        super().__init__()
        self.on_disk: dict[int, bytearray] = {}
        self.syncs_to_fail = 0
        self._written: dict[int, list[tuple[int, bytes]]] = {}

    def write(self, descriptor: int, data: bytes | memoryview, offset: int) -> int:
        self._written.setdefault(self._key(descriptor), []).append((offset, bytes(data)))
        return super().write(descriptor, data, offset)

    def sync_data(self, descriptor: int) -> None:
        disk = self.on_disk.setdefault(self._key(descriptor), bytearray())
        written = self._written.pop(self._key(descriptor), [])
        if self.syncs_to_fail:
            self.syncs_to_fail -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        for offset, data in written:
            disk.extend(bytes(max(0, offset - len(disk))))
            disk[offset : offset + len(data)] = data
        del disk[self.size(descriptor) :]

    def sync(self, descriptor: int) -> None:
        self.sync_data(descriptor)

    def after_power_cut(self) -> MemoryFiles:
        survived = MemoryFiles()
        for path, file in self.contents.items():
            survived.put(path, bytes(self.on_disk.get(id(file), b"")))
        return survived

    def lose_the_cache(self) -> None:
        """What the system would read now comes from the disk."""
        file = self.contents[PATH]
        file[:] = self.on_disk[id(file)]

    def _key(self, descriptor: int) -> int:
        return id(self.open_files[descriptor])


def _file(files: FileOperations, path: Path = PATH) -> JsonFile:
    return JsonFile(path, "s1", files=files, new_id=counting_ids())


def _loaded(files: FileOperations) -> list[Entry]:
    return loaded(_file(files))[1]


def _appender(files: FileOperations, due: list[Callable[[], None]]) -> Appender:
    file = _file(files)
    descriptor = file.create(Header(session_id="s1", created_at=START))
    return Appender(file, descriptor, sync_later=due.append)


@pytest.fixture
def disk() -> CachedFiles:
    return CachedFiles()


@pytest.fixture
def trouble() -> Trouble:
    return Trouble()


@pytest.fixture
def due() -> list[Callable[[], None]]:
    return []


def _say(appender: Appender, pen: Pen, content: str = "hello") -> Entry:
    entry = pen.stamped(prompt(f"t{pen.history.head_seq}", content))
    appender.append(entry)
    pen.history.add(entry)
    return entry


# When


def test_an_append_that_is_synced_later_writes_once_and_asks_for_the_sync_once(
    disk: CachedFiles, trouble: Trouble, due: list[Callable[[], None]]
) -> None:
    appender, pen = _appender(WatchedFiles(disk, trouble), due), Pen()
    trouble.seen.clear()
    for _ in range(3):
        _say(appender, pen)
    assert trouble.seen == ["write"] * 3
    assert len(due) == 1
    due.pop()()
    assert trouble.seen == ["write"] * 3 + ["sync_data"]
    _say(appender, pen)
    assert len(due) == 1, "what came after the sync needs another"


def test_what_was_not_synced_yet_is_what_a_power_cut_may_take(
    disk: CachedFiles, due: list[Callable[[], None]]
) -> None:
    appender, pen = _appender(disk, due), Pen()
    entries = [_say(appender, pen), _say(appender, pen)]
    assert _loaded(disk.after_power_cut()) == []
    due.pop()()
    assert _loaded(disk.after_power_cut()) == entries


def test_closing_syncs_what_is_due(disk: CachedFiles, due: list[Callable[[], None]]) -> None:
    appender, pen = _appender(disk, due), Pen()
    entries = [_say(appender, pen), _say(appender, pen)]
    appender.close()
    assert _loaded(disk.after_power_cut()) == entries
    assert not disk.open_files
    due.pop()()  # the one that was asked for finds nothing to do


def test_closing_what_is_on_disk_already_syncs_nothing(
    disk: CachedFiles, trouble: Trouble, due: list[Callable[[], None]]
) -> None:
    appender = _appender(WatchedFiles(disk, trouble), due)
    _say(appender, Pen())
    due.pop()()
    trouble.seen.clear()
    appender.close()
    assert trouble.seen == []


# When it fails


def test_a_failed_later_sync_fails_the_next_append(
    disk: CachedFiles, due: list[Callable[[], None]]
) -> None:
    appender, pen = _appender(disk, due), Pen()
    acknowledged = _say(appender, pen)
    disk.syncs_to_fail = 1
    due.pop()()
    assert not disk.open_files, "a descriptor whose sync failed is not used again"
    with pytest.raises(StorageUnavailable, match="did not confirm"):
        _say(appender, pen, "refused")
    again = _say(appender, pen, "taken")
    assert len(due) == 1, "it is synced later, like any other"
    appender.close()
    assert bytes(disk.contents[PATH]) == file_bytes([acknowledged, again])


def test_all_that_no_sync_confirmed_is_written_again(
    disk: CachedFiles, due: list[Callable[[], None]]
) -> None:
    appender, pen = _appender(disk, due), Pen()
    entries = [_say(appender, pen) for _ in range(3)]
    due.pop()()
    entries += [_say(appender, pen) for _ in range(5)]
    disk.syncs_to_fail = 1
    due.pop()()
    with pytest.raises(StorageUnavailable):
        _say(appender, pen)
    entries.append(_say(appender, pen))
    appender.close()
    assert _loaded(disk.after_power_cut()) == entries


def test_acknowledged_lines_that_are_gone_are_damage_not_silence(
    disk: CachedFiles, due: list[Callable[[], None]]
) -> None:
    appender, pen = _appender(disk, due), Pen()
    _say(appender, pen)
    due.pop()()
    _say(appender, pen)
    disk.syncs_to_fail = 1
    due.pop()()
    disk.lose_the_cache()
    left = bytes(disk.contents[PATH])
    with pytest.raises(StorageUnavailable):
        _say(appender, pen)
    with pytest.raises(ConversationDamaged):
        _say(appender, pen)
    assert bytes(disk.contents[PATH]) == left, "for a person to look at"


def test_closing_logs_an_error_if_the_last_sync_failed(
    disk: CachedFiles, due: list[Callable[[], None]], caplog: pytest.LogCaptureFixture
) -> None:
    appender = _appender(disk, due)
    _say(appender, Pen())
    disk.syncs_to_fail = 1
    with caplog.at_level(logging.ERROR):
        appender.close()
    assert "may not be on disk" in caplog.text
    assert not disk.open_files


STEPS = st.lists(
    st.sampled_from(["say", "say", "sync", "no sync", "no write", "no open", "no truncate"]),
    max_size=40,
)


@given(STEPS)
def test_whatever_fails_what_was_acknowledged_is_there_and_after_a_sync_on_disk(
    steps: list[str],
) -> None:
    disk, trouble, due = CachedFiles(), Trouble(), list[Callable[[], None]]()
    appender, pen = _appender(WatchedFiles(disk, trouble), due), Pen()
    entries: list[Entry] = []
    for step in steps:
        if step == "say":
            with suppress(StorageError):
                entries.append(_say(appender, pen))
        elif step == "sync":
            for sync in due:
                sync()
            due.clear()
        elif step == "no sync":
            disk.syncs_to_fail += 1
        else:
            trouble.once.setdefault(step.removeprefix("no "), []).append(errno.EIO)
    disk.syncs_to_fail = 0
    trouble.once.clear()
    with suppress(StorageError):
        entries.append(_say(appender, pen))  # fails if a sync did
    entries.append(_say(appender, pen))
    appender.close()
    assert _loaded(disk.after_power_cut()) == entries
    assert bytes(disk.contents[PATH]) == file_bytes(entries)


# The modes


def test_each_durability_mode_describes_its_promise() -> None:
    promises = {mode: Durability(mode=mode).promise for mode in ("always", "interval", "never")}
    assert promises["always"] == "on disk (fdatasync) before it is acknowledged"
    assert "at most 1 s later" in promises["interval"]
    assert "at most 0.25 s later" in Durability(mode="interval", interval_seconds=0.25).promise
    assert "not synced" in promises["never"]
    assert all("power cut" in promises[mode] for mode in ("interval", "never"))


def test_the_default_durability_mode_is_always() -> None:
    assert Durability().mode == "always"
    assert Durability().sync_later(CommitThreads()) is None


def test_an_interval_takes_time() -> None:
    with pytest.raises(ValueError, match="interval"):
        Durability(mode="interval", interval_seconds=0)


def _record(path: Path, durability: Durability, trouble: Trouble) -> Committer[None]:
    file = _file(WatchedFiles(FileOperations(), trouble), path)
    descriptor = file.create(Header(session_id="s1", created_at=START))
    threads = CommitThreads()
    appender = Appender(file, descriptor, sync_later=durability.sync_later(threads))
    trouble.seen.clear()
    return Committer(appender, appended=lambda entry: None, threads=threads)


async def test_in_an_interval_files_are_synced_without_being_closed(
    tmp_path: Path, trouble: Trouble
) -> None:
    durability = Durability(mode="interval", interval_seconds=0.01)
    record = _record(tmp_path / "s1.json", durability, trouble)
    pen = Pen()
    for number in range(3):
        await record.append(pen.write(prompt(f"t{number}")))
        while trouble.seen.count("sync_data") <= number:
            await anyio.lowlevel.checkpoint()
    await record.close()
    assert trouble.seen.count("sync_data") == 3


@pytest.mark.parametrize(
    ("durability", "syncs"),
    [
        (Durability(), 5),
        (Durability(mode="interval", interval_seconds=3600), 1),
        (Durability(mode="never"), 1),
    ],
    ids=lambda value: value.mode if isinstance(value, Durability) else str(value),
)
async def test_in_every_mode_the_file_is_the_same_when_an_append_returns(
    tmp_path: Path, trouble: Trouble, durability: Durability, syncs: int
) -> None:
    path = tmp_path / "s1.json"
    record = _record(path, durability, trouble)
    pen, entries = Pen(), list[Entry]()
    for number in range(5):
        entries.append(pen.write(prompt(f"t{number}")))
        await record.append(entries[-1])
        assert path.read_bytes() == file_bytes(entries)
    await record.close()
    assert trouble.seen.count("sync_data") == syncs


# How much


@pytest.mark.slow
def test_twenty_thousand_appends_write_in_proportion() -> None:
    written: list[int] = []

    def note(operation: str, length: int) -> None:
        if operation == "write":
            written.append(length)

    disk, pen = MemoryFiles(), Pen()
    file = _file(WatchedFiles(disk, note))
    appender = Appender(file, file.create(Header(session_id="s1", created_at=START)))
    written.clear()
    for number in range(20_000):
        appender.append(pen.write(prompt(f"t{number}", "x" * 100)))
    assert len(written) == 20_000
    assert written[-1] - written[0] < 30, "numbers have more digits later, nothing else"
    assert sum(written) < 2 * len(disk.contents[PATH])
    assert len(json.loads(disk.contents[PATH])["messages"]) == 20_000


# When the system has no thread to give


class NoThread(Timer):
    def start(self) -> None:
        raise RuntimeError("can't start new thread")


async def test_an_append_without_a_thread_fails_and_the_next_one_works(
    tmp_path: Path, trouble: Trouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, pen = _record(tmp_path / "s1.json", Durability(), trouble), Pen()
    entry = pen.stamped(prompt("t1"))
    with monkeypatch.context() as patch:
        patch.setattr(CommitThreads, "_add", _no_thread)
        with pytest.raises(StorageUnavailable):
            await record.append(entry)
    await record.append(entry)
    with monkeypatch.context() as patch:
        patch.setattr(CommitThreads, "_add", _no_thread)
        await record.close()
    assert loaded(_file(FileOperations(), tmp_path / "s1.json"))[1] == [entry]


def _no_thread(*_: object) -> None:
    raise StorageUnavailable("no thread")


async def test_what_can_not_be_synced_later_is_synced_now(
    tmp_path: Path, trouble: Trouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    mode = Durability(mode="interval", interval_seconds=3600)
    record, pen = _record(tmp_path / "s1.json", mode, trouble), Pen()
    trouble.seen.clear()
    with monkeypatch.context() as patch:
        patch.setattr(append, "Timer", NoThread)
        for number in range(2):
            await record.append(pen.write(prompt(f"t{number}")))
    assert trouble.seen == ["write", "sync_data"] * 2
    await record.append(pen.write(prompt("t3")))
    assert trouble.seen == ["write", "sync_data"] * 2 + ["write"]
    await record.close()


def test_what_is_due_and_has_no_thread_is_synced_where_it_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(CommitThreads, "_add", _no_thread)
    schedule = SyncSchedule(0.001, CommitThreads())
    done = Semaphore(0)
    for _ in range(3):
        schedule.add(lambda: done.release())
    for _ in range(3):
        assert done.acquire(timeout=30)
