"""What fails half way leaves nothing that can't be used, and nothing that can't be explained."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from pathlib import Path

import anyio
import pytest
from tests.storage.conversations import START, Pen, answer, counting_ids, file_bytes, prompt
from tests.storage.disk_fakes import WatchedDisk
from tests.storage.file_fakes import MemoryFiles, Trouble
from tests.storage.json_stores import all_entries, open_store, row_of, rows

import nplt_storage.files.record
import nplt_storage.files.store
from nplt_storage import (
    ConversationHistory,
    ConversationNotFound,
    ConversationReadOnly,
    ConversationStore,
    FileSettings,
    JsonFileStore,
    Origin,
    SearchQuery,
    StorageUnavailable,
)
from nplt_storage.entries import Entry
from nplt_storage.file_system import Disk, FoundFile
from nplt_storage.files.conversation_file import JsonFile
from nplt_storage.files.format import Header
from nplt_storage.files.record import redact_entry

SECRET = "xyzzy"
PATH = Path("history/session_20260102_s1.json")


@pytest.fixture
def trouble() -> Trouble:
    return Trouble()


@pytest.fixture
async def store(tmp_path: Path, trouble: Trouble) -> AsyncIterator[JsonFileStore]:
    opened = await open_store(tmp_path, _settings(trouble))
    yield opened
    trouble.once.clear()
    trouble.lasting.clear()
    await opened.close()


def _settings(trouble: Trouble) -> FileSettings:
    return FileSettings(disk=WatchedDisk(Disk(), trouble))


def _turn(*words: str) -> list[Entry]:
    drafts: list[Entry] = [prompt("t1", words[0]), answer("t1", *words[1:])]
    return Pen().write_all(drafts)


async def _write(store: ConversationStore, session_id: str, *words: str) -> None:
    record = await store.create(session_id, user="local")
    for entry in _turn(*words):
        await record.append(entry)
    await record.close()


async def _hits(store: ConversationStore, word: str) -> int:
    return len((await store.search("local", SearchQuery(text=word))).hits)


# Making one


async def test_a_creation_the_disk_did_not_confirm_can_be_repeated(
    store: JsonFileStore, trouble: Trouble, tmp_path: Path
) -> None:
    trouble.once["sync_directory"] = [errno.EIO]
    with pytest.raises(StorageUnavailable):
        await store.create("s1", user="local")
    assert list((tmp_path / "history").iterdir()) == []
    await _write(store, "s1", "hello")


async def test_a_creation_whose_file_can_not_be_looked_at_can_be_repeated(tmp_path: Path) -> None:
    class Blind(Disk):
        is_blind = True

        def found(self, path: Path) -> FoundFile:
            if self.is_blind:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return super().found(path)

    disk = Blind()
    store = await open_store(tmp_path, FileSettings(disk=disk))
    with pytest.raises(StorageUnavailable):
        await store.create("s1", user="local")
    disk.is_blind = False
    await _write(store, "s1", "hello")
    await store.close()


def test_a_reader_who_comes_late_does_not_write_to_a_file_that_is_being_made() -> None:
    written_by: list[threading.Thread] = []

    class Files(MemoryFiles):
        def write(self, descriptor: int, data: bytes | memoryview, offset: int) -> int:
            written_by.append(threading.current_thread())
            return super().write(descriptor, data, offset)

        def sync_directory(self, directory: Path) -> None:
            if threading.current_thread() is not reader:
                reader.start()
                reader.join(timeout=0.1)  # it may do what it can do now

    file = JsonFile(PATH, "s1", files=Files(), new_id=counting_ids())
    reader = threading.Thread(target=file.settle)
    file.create(Header(session_id="s1", created_at=START))
    reader.join()
    assert reader not in written_by


async def test_one_that_was_built_is_there_though_the_index_failed(
    store: JsonFileStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*_: object) -> None:
        raise StorageUnavailable("the index is not well")

    with monkeypatch.context() as patch:
        patch.setattr(store._directory.index, "learn", fail)
        async with store.build("s1", Origin(user="local", created_at=START)) as builder:
            await builder.add(_turn("hello"))
    assert "not in lists yet: the index is not well" in caplog.text
    assert (await row_of(store, "s1")).head_seq == 2
    assert await all_entries(store, "s1") == _turn("hello")
    assert await _hits(store, "hello") == 1


# Opening one


async def test_a_file_that_can_not_be_read_now_is_not_damaged_and_is_read_when_asked_for(
    tmp_path: Path, trouble: Trouble
) -> None:
    (tmp_path / PATH).parent.mkdir()
    (tmp_path / PATH).write_bytes(file_bytes(_turn("hello"), user="ada"))
    trouble.lasting["open"] = errno.EMFILE
    store = await open_store(tmp_path, _settings(trouble))
    assert [row.damaged for row in await rows(store)] == [False]
    for _ in range(2):
        with pytest.raises(StorageUnavailable):
            await store.open("s1")
    trouble.lasting.clear()
    askers = [all_entries(store, "s1") for _ in range(3)]
    assert await asyncio.gather(*askers) == [_turn("hello")] * 3
    assert [row.head_seq for row in await rows(store, "ada")] == [2]
    await (await store.open("s1")).record.close()
    await store.close()


async def test_what_was_known_of_a_file_that_can_not_be_read_now_stays_known(
    tmp_path: Path, trouble: Trouble
) -> None:
    store = await open_store(tmp_path)
    await _write(store, "s1", "hello")
    before = await row_of(store, "s1")
    await store.close()
    os.utime(tmp_path / PATH, ns=(0, 0))
    trouble.lasting["open"] = errno.EMFILE
    store = await open_store(tmp_path, _settings(trouble))
    assert await rows(store) == [before]
    assert await _hits(store, "hello") == 1
    trouble.lasting.clear()
    assert await all_entries(store, "s1") == _turn("hello")
    assert await _hits(store, "hello") == 1
    await store.close()


async def test_a_history_is_not_made_on_the_event_loop(
    store: JsonFileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _write(store, "s1", "hello")
    made_in: list[threading.Thread] = []

    class Watched(ConversationHistory):
        def __init__(self, *args: object, **options: object) -> None:
            made_in.append(threading.current_thread())
            super().__init__(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(nplt_storage.files.store, "ConversationHistory", Watched)
    await store.open("s1")
    assert made_in != []
    assert threading.current_thread() not in made_in


# Erasing


async def test_a_begun_redaction_is_finished_when_its_caller_is_cancelled(
    store: JsonFileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _write(store, "s1", SECRET)
    record = (await store.open("s1")).record
    scope = anyio.CancelScope()

    def give_up_meanwhile(*args: object, **options: object) -> object:
        anyio.from_thread.run_sync(scope.cancel)
        return redact_entry(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(nplt_storage.files.record, "redact_entry", give_up_meanwhile)
    with scope:
        await record.redact(1, at=START)
    assert scope.cancel_called
    assert (await row_of(store, "s1")).name == "[redacted]"
    assert await _hits(store, SECRET) == 0
    await store.close()
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or SECRET.encode() not in path.read_bytes(), path


async def test_a_redaction_that_the_index_missed_is_indexed_at_the_next_start(
    store: JsonFileStore, trouble: Trouble, tmp_path: Path
) -> None:
    await _write(store, "s1", SECRET)
    record = (await store.open("s1")).record
    trouble.once["sync_directory"] = [0, errno.EIO]  # the file is another one; then it fails
    with pytest.raises(StorageUnavailable):
        await record.redact(1, at=START)
    assert SECRET.encode() not in (tmp_path / PATH).read_bytes()
    await store.close()
    again = await open_store(tmp_path)
    assert (await row_of(again, "s1")).name == "[redacted]"
    assert await _hits(again, SECRET) == 0
    await again.close()


async def test_a_redaction_that_was_refused_gives_the_next_start_nothing_to_read(
    store: JsonFileStore, tmp_path: Path
) -> None:
    await _write(store, "s1", SECRET)
    record = (await store.open("s1")).record
    with pytest.raises(Exception, match="there is no entry 9"):
        await record.redact(9, at=START)
    await store.close()
    disk = WatchedDisk(Disk(), lambda operation, length: None)
    again = await open_store(tmp_path, FileSettings(disk=disk))
    assert disk.bytes_read == 0
    await again.close()


# Deleting


async def test_a_deletion_the_disk_did_not_confirm_is_one_all_the_same(
    store: JsonFileStore, trouble: Trouble
) -> None:
    await _write(store, "s1", "hello")
    trouble.once["sync_directory"] = [errno.EIO]
    with pytest.raises(StorageUnavailable):
        await store.delete("s1")
    assert await rows(store) == []
    for question in (store.open, store.delete):
        with pytest.raises(ConversationNotFound):
            await question("s1")
    await store.undelete("s1")
    assert await all_entries(store, "s1") == _turn("hello")


async def test_a_deletion_that_moved_nothing_is_none(
    store: JsonFileStore, trouble: Trouble
) -> None:
    await _write(store, "s1", "hello")
    trouble.once["rename"] = [errno.EIO]
    with pytest.raises(StorageUnavailable):
        await store.delete("s1")
    assert await all_entries(store, "s1") == _turn("hello")


async def test_the_trash_is_emptied_while_the_store_is_in_use_too(tmp_path: Path) -> None:
    now = START

    def clock() -> datetime:
        return now

    store = await open_store(tmp_path, clock=clock)
    for days in range(33):
        now = START + timedelta(days=days)
        await _write(store, f"s{days}", "hello")
        await store.delete(f"s{days}")
    left = {path.name[16:] for path in (tmp_path / "trash").iterdir()} - {""}
    assert left == {f"s{days}" for days in range(2, 33)}  # counted from the first full day
    await store.close()


async def test_what_can_not_be_swept_away_does_not_keep_the_store_from_opening(
    tmp_path: Path,
) -> None:
    (tmp_path / "history" / ".session_20260102_s1.json.new").mkdir(parents=True)
    store = await open_store(tmp_path)
    assert await rows(store) == []
    await store.close()


@pytest.mark.parametrize("disturb", ["replaced", "removed", "shortened", "lengthened"])
async def test_nothing_is_acknowledged_in_a_file_another_program_has_changed(
    tmp_path: Path, disturb: str
) -> None:
    store = await open_store(tmp_path)
    pen = Pen()
    record = await store.create("s1", user="local")
    await record.append(pen.write(prompt("t1")))
    (path,) = (tmp_path / "history").glob("session_*.json")
    data = path.read_bytes()
    match disturb:
        case "replaced":
            edited = path.with_name("edited")
            edited.write_bytes(data)
            edited.rename(path)
        case "removed":
            path.unlink()
        case "shortened":
            path.write_bytes(data[:-10])
        case _:
            path.write_bytes(data + b"\n")
    with pytest.raises(ConversationReadOnly, match="another program"):
        await record.append(pen.stamped(prompt("t2")))
    await store.close()
