"""Commits whose syncs are made by the kernel: no thread, and the same promises."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.storage.conversations import START, Pen, counting_ids, prompt

from nplt_storage import StorageUnavailable, decode_line
from nplt_storage.entries import Entry
from nplt_storage.file_system import FileOperations
from nplt_storage.files import append, commit_threads
from nplt_storage.files.append import Appender, Committer
from nplt_storage.files.commit_threads import CommitThreads, Done, KernelSync, SyncRefused
from nplt_storage.files.conversation_file import JsonFile
from nplt_storage.files.format import Header


@pytest.fixture
async def kernel(monkeypatch: pytest.MonkeyPatch) -> KernelSync:
    """All commits are made by the kernel."""
    monkeypatch.setattr(commit_threads, "FEW_COMMITS", 0)
    kernel = KernelSync.start()
    if kernel is None:
        pytest.skip("this system has no asynchronous I/O")
    return kernel


@pytest.fixture
def threads() -> Iterator[CommitThreads]:
    threads = CommitThreads()
    yield threads
    threads.close()


class Files(FileOperations):
    """Writes of the system, the next of which may fail halfway."""

    fails_next = False

    def write(self, descriptor: int, data: bytes | memoryview, offset: int) -> int:
        if self.fails_next:
            self.fails_next = False
            os.pwrite(descriptor, data[: len(data) // 2], offset)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(descriptor, data, offset)


class Conversation:
    """One file, and those who append to it."""

    def __init__(self, path: Path, threads: CommitThreads) -> None:
        self.files = Files()
        self.file = JsonFile(path, "s1", files=self.files, new_id=counting_ids())
        self.appended: list[Entry] = []
        self._pen = Pen()
        self._threads = threads
        descriptor = self.file.create(Header(session_id="s1", created_at=START))
        self.append_within(30.0, descriptor)

    def append_within(self, seconds: float, descriptor: int | None) -> None:
        self._committer = Committer(
            Appender(self.file, descriptor),
            appended=self.appended.append,
            threads=self._threads,
            commit_seconds_max=seconds,
        )

    async def say(self, turn_id: str) -> None:
        entry = self._pen.stamped(prompt(turn_id))
        await self._committer.append(entry)
        self._pen.history.add(entry)

    @property
    def stored(self) -> list[Entry]:
        """What another program finds in the file, apart from its closing line."""
        lines = self.file.path.read_bytes().splitlines()[1:-1]
        return [decode_line(line.removeprefix(b",")) for line in lines]


def _held() -> tuple[list[str], int]:
    """The open descriptors, and how many contexts of asynchronous I/O there are."""
    descriptors = sorted(path.name for path in Path("/proc/self/fd").iterdir())
    return descriptors, Path("/proc/self/maps").read_text().count("[aio]")


def _refuse(self: KernelSync, descriptor: int, done: Done) -> None:
    raise SyncRefused(errno.EAGAIN, "no")


def _no_thread(self: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


@pytest.fixture
def conversation(tmp_path: Path, threads: CommitThreads) -> Conversation:
    return Conversation(tmp_path / "session_20260102_s1.json", threads)


async def test_many_files_are_synced_at_once(kernel: KernelSync, tmp_path: Path) -> None:
    loop, ended = asyncio.get_running_loop(), []
    all_ended = loop.create_future()

    def done(number: int, error: OSError | None) -> None:
        ended.append((number, error))
        if len(ended) == 100:
            all_ended.set_result(None)

    descriptors = [os.open(tmp_path / str(n), os.O_RDWR | os.O_CREAT) for n in range(100)]
    for number, descriptor in enumerate(descriptors):
        os.write(descriptor, b"x" * 5_000)
        kernel.begin(descriptor, lambda error, number=number: done(number, error))  # type: ignore[misc]
    await all_ended
    kernel.close()
    for descriptor in descriptors:
        os.close(descriptor)
    assert sorted(ended) == [(number, None) for number in range(100)]


async def test_what_can_not_be_synced_is_refused_at_once(kernel: KernelSync) -> None:
    pipe = os.pipe()
    with pytest.raises(SyncRefused):
        kernel.begin(pipe[0], lambda error: None)
    kernel.close()
    for descriptor in pipe:
        os.close(descriptor)


async def test_it_takes_no_more_than_it_has_room_for(kernel: KernelSync, tmp_path: Path) -> None:
    descriptor = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    ended: list[OSError | None] = []
    begun = 0
    while kernel.has_room:
        kernel.begin(descriptor, ended.append)
        begun += 1
    while len(ended) < begun:
        await asyncio.sleep(0)
    assert kernel.has_room
    assert ended == [None] * begun
    kernel.close()
    os.close(descriptor)


async def test_the_outcome_of_a_sync_is_reported_after_closing_too(
    kernel: KernelSync, tmp_path: Path
) -> None:
    descriptor = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    ended: list[OSError | None] = []
    kernel.begin(descriptor, ended.append)
    kernel.close()
    while not ended:
        await asyncio.sleep(0)
    assert ended == [None]
    os.close(descriptor)


async def test_a_failing_callback_does_not_keep_others_from_the_outcome(
    kernel: KernelSync, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    descriptor = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    ended: list[OSError | None] = []

    def fail(error: OSError | None) -> None:
        raise ValueError("no")

    for done in (fail, ended.append, fail, ended.append):
        kernel.begin(descriptor, done)
    while len(ended) < 2 or caplog.text.count("could not be told") < 2:
        await asyncio.sleep(0)
    kernel.close()
    os.close(descriptor)


@pytest.mark.usefixtures("kernel")
async def test_a_start_that_fails_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, callback: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr(asyncio.get_running_loop(), "add_reader", refuse)
    before = _held()
    assert KernelSync.start() is None
    assert _held() == before


async def test_a_python_without_ctypes_commits_in_threads(
    conversation: Conversation, threads: CommitThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ctypes", None)
    await conversation.say("t1")
    assert threads.count == 1
    assert conversation.stored == conversation.appended


@pytest.mark.usefixtures("kernel")
async def test_commits_need_no_thread(conversation: Conversation, threads: CommitThreads) -> None:
    for number in range(3):
        await conversation.say(f"t{number}")
    assert threads.count == 0
    assert conversation.stored == conversation.appended
    assert len(conversation.stored) == 3


@pytest.mark.usefixtures("kernel")
async def test_a_line_is_acknowledged_only_when_it_is_synced(
    conversation: Conversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting: list[Done] = []
    monkeypatch.setattr(KernelSync, "begin", lambda self, descriptor, done: waiting.append(done))
    saying = asyncio.ensure_future(conversation.say("t1"))
    while not waiting:
        await asyncio.sleep(0)
    assert len(conversation.stored) == 1  # written
    assert not saying.done()
    waiting[0](None)
    await saying
    assert len(conversation.appended) == 1


@pytest.mark.usefixtures("kernel")
async def test_a_sync_that_failed_is_no_acknowledgement_and_the_next_append_mends_the_file(
    conversation: Conversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    await conversation.say("t1")
    with monkeypatch.context() as patch:
        failed = OSError(errno.EIO, "no")
        patch.setattr(KernelSync, "begin", lambda self, _, done: self.loop.call_soon(done, failed))
        with pytest.raises(StorageUnavailable, match="did not confirm"):
            await conversation.say("t2")
    await conversation.say("t3")
    await conversation.say("t4")
    assert [entry.turn_id for entry in conversation.stored] == ["t1", "t3", "t4"]
    aside = list(conversation.file.path.parent.glob("*.broken-*"))
    assert len(aside) == 1
    assert b'"t2"' in aside[0].read_bytes()


@pytest.mark.usefixtures("kernel")
async def test_a_sync_that_the_kernel_refuses_is_made_in_a_thread(
    conversation: Conversation, threads: CommitThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KernelSync, "begin", _refuse)
    for number in range(3):
        await conversation.say(f"t{number}")
    assert threads.count == 1
    assert conversation.stored == conversation.appended


@pytest.mark.usefixtures("kernel")
async def test_a_write_that_failed_halfway_is_made_again_in_a_thread(
    conversation: Conversation, threads: CommitThreads
) -> None:
    await conversation.say("t1")
    conversation.files.fails_next = True
    await conversation.say("t2")
    assert threads.count == 1
    await conversation.say("t3")
    assert [entry.turn_id for entry in conversation.stored] == ["t1", "t2", "t3"]
    assert not list(conversation.file.path.parent.glob("*.broken-*"))


@pytest.mark.usefixtures("kernel")
async def test_a_failed_sync_acknowledges_nothing_and_later_appends_succeed(
    conversation: Conversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    await conversation.say("t1")
    with monkeypatch.context() as patch:
        patch.setattr(KernelSync, "begin", _refuse)
        patch.setattr(threading.Thread, "start", _no_thread)
        with pytest.raises(StorageUnavailable):
            await conversation.say("t2")
    await conversation.say("t3")
    await conversation.say("t4")
    assert [entry.turn_id for entry in conversation.stored] == ["t1", "t3", "t4"]


@pytest.mark.usefixtures("kernel")
async def test_a_write_that_failed_halfway_leaves_the_file_as_it_was(
    conversation: Conversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    await conversation.say("t1")
    before = conversation.file.path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", _no_thread)
        conversation.files.fails_next = True
        with pytest.raises(StorageUnavailable):
            await conversation.say("t" + "2" * 5_000)
    assert conversation.file.path.read_bytes() == before
    await conversation.say("t3")
    await conversation.say("t4")
    assert [entry.turn_id for entry in conversation.stored] == ["t1", "t3", "t4"]


async def test_on_a_busy_machine_few_commits_at_a_time_are_made_in_threads_and_more_by_the_kernel(
    conversation: Conversation,
    kernel: KernelSync,
    threads: CommitThreads,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel.close()
    monkeypatch.undo()
    monkeypatch.setattr(commit_threads, "SLOW_SYNC_SECONDS", 30.0)
    await conversation.say("t1")
    assert threads.count == 0
    monkeypatch.setattr(commit_threads, "SLOW_SYNC_SECONDS", -1.0)
    await conversation.say("t2")  # by the kernel, which took too long
    assert threads.count == 0
    await conversation.say("t3")
    assert threads.count == 1
    assert conversation.stored == conversation.appended
    gate = threading.Event()

    def hang() -> None:
        gate.wait(30)

    for _ in range(2):
        assert threads.kernel_sync() is None
        threads.start(hang)
    by_kernel = threads.kernel_sync()
    gate.set()
    assert by_kernel is not None


@pytest.mark.usefixtures("kernel")
async def test_after_a_slow_write_commits_are_made_in_threads(
    conversation: Conversation, threads: CommitThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(append, "SLOW_WRITE_SECONDS", -1.0)
    await conversation.say("t1")
    assert threads.count == 0
    await conversation.say("t2")
    assert threads.count == 1
    assert conversation.stored == conversation.appended


@pytest.mark.usefixtures("kernel")
async def test_a_sync_that_takes_too_long_is_given_up_and_its_line_does_not_count(
    conversation: Conversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    await conversation.say("t0")
    conversation.append_within(0.01, os.open(conversation.file.path, os.O_RDWR))
    waiting: list[Done] = []
    with monkeypatch.context() as patch:
        patch.setattr(KernelSync, "begin", lambda self, descriptor, done: waiting.append(done))
        with pytest.raises(StorageUnavailable, match="no answer from the disk"):
            await conversation.say("t1")
    waiting[0](None)
    conversation.append_within(30.0, None)
    await conversation.say("t2")
    assert [entry.turn_id for entry in conversation.appended] == ["t0", "t2"]
    assert conversation.stored == conversation.appended


@pytest.mark.usefixtures("kernel")
async def test_closing_gives_everything_back(
    conversation: Conversation, threads: CommitThreads
) -> None:
    before = _held()
    await conversation.say("t1")
    assert _held() != before
    threads.close()
    assert _held() == before
