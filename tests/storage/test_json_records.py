"""The writer of a conversation: full disks, giant results, running answers, erased words."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import anyio
import pytest
from tests.storage.conversations import START, Pen, answer, chat, file_bytes, prompt
from tests.storage.disk_fakes import WatchedDisk
from tests.storage.file_fakes import Trouble
from tests.storage.json_stores import all_entries, open_store, row_of, rows, write

from nplt_storage import (
    BadEntry,
    ConversationExists,
    ConversationHistory,
    ConversationNotFound,
    ConversationReadOnly,
    FileSettings,
    JsonFileStore,
    PageQuery,
    PartialAnswer,
    SearchQuery,
    StorageUnavailable,
)
from nplt_storage.file_system import Disk

MIB = 1024 * 1024


class SmallDisk(Disk):
    """Says how much room there is, whatever there is."""

    free = 10**12
    asked = 0

    def free_bytes(self, directory: Path) -> int:
        self.asked += 1
        return self.free


@pytest.fixture
def disk() -> SmallDisk:
    return SmallDisk()


@pytest.fixture
def trouble() -> Trouble:
    return Trouble()


@pytest.fixture
def seconds() -> list[float]:
    return [0.0]


@pytest.fixture
async def store(
    tmp_path: Path, disk: SmallDisk, trouble: Trouble, seconds: list[float]
) -> AsyncIterator[JsonFileStore]:
    settings = FileSettings(disk=WatchedDisk(disk, trouble), seconds=lambda: seconds[0])
    opened = await open_store(tmp_path, settings)
    yield opened
    await opened.close()


def _names(data_dir: Path) -> list[str]:
    return sorted(path.name for path in (data_dir / "history").iterdir())


# Room on the disk


async def test_below_the_reserve_nothing_is_written_and_all_can_be_read(
    store: JsonFileStore, disk: SmallDisk, seconds: list[float]
) -> None:
    record, pen = await store.create("s1", user="ada"), Pen()
    await record.append(pen.write(prompt("t1")))
    disk.free, seconds[0] = 64 * MIB - 1, 1.0
    reason = "less than 64 MiB are free"
    with pytest.raises(ConversationReadOnly, match=reason):
        await record.append(pen.stamped(answer("t1")))
    with pytest.raises(ConversationReadOnly, match=reason):
        await record.keep_blob(b"x")
    with pytest.raises(ConversationReadOnly, match=reason):
        await store.create("s2", user="ada")
    assert reason in (store.read_only_reason or "")
    assert len((await store.page("s1", PageQuery())).messages) == 1
    disk.free, seconds[0] = 64 * MIB, 2.0
    await record.append(pen.stamped(answer("t1")))
    assert store.read_only_reason is None


async def test_the_disk_is_asked_once_a_second_at_most(
    store: JsonFileStore, disk: SmallDisk, seconds: list[float]
) -> None:
    record = await store.create("s1", user="ada")
    for entry in chat(10):
        await record.append(entry)
    assert disk.asked == 1
    seconds[0] = 1.0
    assert store.read_only_reason is None
    assert store.read_only_reason is None
    await record.close()
    while disk.asked < 2:
        await anyio.lowlevel.checkpoint()


async def test_a_reader_gets_the_storage_error_too(
    store: JsonFileStore, disk: SmallDisk, seconds: list[float]
) -> None:
    disk.free = 0
    while store.read_only_reason is None:
        seconds[0] += 1.0
        await anyio.lowlevel.checkpoint()
    disk.free = 10**9
    while store.read_only_reason is not None:
        seconds[0] += 1.0
        await anyio.lowlevel.checkpoint()


# The first append


async def test_a_first_append_that_fails_leaves_no_conversation(
    store: JsonFileStore, trouble: Trouble, tmp_path: Path
) -> None:
    record, entry = await store.create("s1", user="ada"), Pen().stamped(prompt("t1"))
    for operation in ("write", "sync_data"):
        trouble.lasting = {operation: errno.ENOSPC}
        with pytest.raises(StorageUnavailable):
            await record.append(entry)
        assert await store.row("s1") is None
        assert await rows(store, "ada") == []
        assert _names(tmp_path) == []
        with pytest.raises(ConversationNotFound):
            await store.page("s1", PageQuery())
        with pytest.raises(ConversationExists):
            await store.create("s1", user="bob")
        trouble.lasting = {}
    await record.append(entry)
    assert (await row_of(store, "s1")).head_seq == 1
    assert (tmp_path / "history" / _names(tmp_path)[0]).read_bytes() == file_bytes(
        [entry], user="ada"
    )


async def test_a_second_append_that_fails_leaves_the_first(
    store: JsonFileStore, trouble: Trouble
) -> None:
    record, pen = await store.create("s1", user="ada"), Pen()
    await record.append(pen.write(prompt("t1")))
    trouble.lasting = {"write": errno.ENOSPC}
    with pytest.raises(StorageUnavailable):
        await record.append(pen.stamped(answer("t1")))
    assert (await row_of(store, "s1")).head_seq == 1


async def test_one_that_was_taken_back_and_closed_was_never_there(
    store: JsonFileStore, trouble: Trouble, tmp_path: Path
) -> None:
    record = await store.create("s1", user="ada")
    trouble.lasting = {"write": errno.ENOSPC}
    with pytest.raises(StorageUnavailable):
        await record.append(Pen().stamped(prompt("t1")))
    trouble.lasting = {}
    await record.close()
    assert _names(tmp_path) == []
    await store.create("s1", user="bob")


async def test_a_bad_first_entry_does_not_take_the_conversation_back(store: JsonFileStore) -> None:
    record, pen = await store.create("s1", user="ada"), Pen()
    pen.write(prompt("t1"))
    with pytest.raises(BadEntry):
        await record.append(pen.stamped(answer("t1")))
    assert (await row_of(store, "s1")).head_seq == 0


# What is said while it runs


def _crashed_copy(data_dir: Path, target: Path) -> Path:
    """What would be found if the process died now."""
    (target / "history").mkdir(parents=True)
    for path in (data_dir / "history").iterdir():
        (target / "history" / path.name).write_bytes(path.read_bytes())
    return target


async def test_a_partial_answer_from_before_a_crash_is_kept_until_its_entry_exists(
    store: JsonFileStore, tmp_path: Path
) -> None:
    record, history = await store.create("s1", user="local"), ConversationHistory("s1")
    await write(record, history, prompt("t1"))
    record.journal_delta("t1", 0, "reasoning", "hm")
    record.journal_delta("t1", 0, "text", "Hello, ")
    record.journal_delta("t1", 0, "text", "wor")
    partial = PartialAnswer(turn_id="t1", call=0, text="Hello, wor", reasoning="hm")
    crashed = _crashed_copy(tmp_path, tmp_path / "crashed")
    for _ in range(2):
        again = await open_store(crashed)
        opened = await again.open("s1")
        assert opened.partial_answer == partial
        await again.close()
    again = await open_store(crashed)
    opened = await again.open("s1")
    await write(opened.record, opened.history, answer("t1", "Hello, wor"))
    await opened.record.close()
    assert (await again.open("s1")).partial_answer is None
    await again.close()
    assert _names(crashed) == ["session_20260102_s1.json"]


async def test_a_stale_live_journal_gives_no_partial_answer_after_a_crash(
    store: JsonFileStore, tmp_path: Path
) -> None:
    record, history = await store.create("s1", user="local"), ConversationHistory("s1")
    await write(record, history, prompt("t1"))
    record.journal_delta("t1", 0, "text", "Hello")
    await write(record, history, answer("t1", "Hello"))
    crashed = _crashed_copy(tmp_path, tmp_path / "crashed")
    again = await open_store(crashed)
    assert (await again.open("s1")).partial_answer is None
    await again.close()


# Erased words


def _bytes_of(directory: Path) -> Iterator[bytes]:
    for path in directory.rglob("*"):
        if path.is_file():
            yield path.read_bytes()


async def test_redacted_words_are_in_no_byte_of_the_directory(
    store: JsonFileStore, tmp_path: Path
) -> None:
    record, history = await store.create("s1", user="ada"), ConversationHistory("s1")
    (tmp_path / "history" / "session_20260102_s1.json.orig").write_bytes(b"xyzzyplugh")
    await write(record, history, prompt("t1", "xyzzyplugh is secret"))
    record.journal_delta("t1", 0, "text", "xyzzyplugh it is")
    await write(record, history, answer("t1", "xyzzyplugh it is"))
    assert len((await store.search("ada", SearchQuery(text="xyzzyplugh"))).hits) == 2
    tombstone = await record.redact(1, at=START)
    await record.redact(2, at=START)
    assert not any(b"xyzzyplugh" in data for data in _bytes_of(tmp_path))
    assert (await store.search("ada", SearchQuery(text="xyzzyplugh"))).hits == ()
    row = await row_of(store, "s1")
    assert (row.name, row.preview) == ("[redacted]", "[redacted]")
    await write(record, history, prompt("t2", "go on"))
    assert (await all_entries(store, "s1"))[0] == tombstone
    assert (await row_of(store, "s1")).head_seq == 3


async def test_a_redaction_that_fails_leaves_all_as_it_was(
    store: JsonFileStore, trouble: Trouble
) -> None:
    record, pen = await store.create("s1", user="ada"), Pen()
    await record.append(pen.write(prompt("t1", "a secret")))
    trouble.lasting = {"sync": errno.EIO}
    with pytest.raises(StorageUnavailable):
        await record.redact(1, at=START)
    trouble.lasting = {}
    with pytest.raises(BadEntry, match="there is no entry 2"):
        await record.redact(2, at=START)
    await record.append(pen.write(answer("t1")))
    assert await all_entries(store, "s1") == list(pen.history.entries)


async def test_pages_can_be_read_while_words_are_erased(store: JsonFileStore) -> None:
    record = await store.create("s1", user="ada")
    for entry in chat(10):
        await record.append(entry)
    done = anyio.Event()

    async def read() -> None:
        while not done.is_set():
            page = await store.page("s1", PageQuery(limit=200, bytes_max=10**9))
            assert len(page.messages) == 23

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        for seq in range(1, 11):
            await record.redact(seq, at=START)
        done.set()
    assert not (await row_of(store, "s1")).damaged


# Descriptors


async def test_nothing_is_left_open(store: JsonFileStore) -> None:
    def count() -> int:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208

    # What the store keeps open for all of its conversations.
    other = await store.create("s0", user="ada")
    await write(other, ConversationHistory("s0"), prompt("t0"))
    await other.close()
    before = count()
    record, history = await store.create("s1", user="ada"), ConversationHistory("s1")
    await write(record, history, prompt("t1"))
    record.journal_delta("t1", 0, "text", "x")
    await record.keep_blob(b"x")
    await record.redact(1, at=START)
    await write(record, history, answer("t1"))
    await record.close()
    await store.page("s1", PageQuery())
    await store.delete("s1")
    assert count() == before
