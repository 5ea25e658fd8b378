"""Conversations as files in a data directory: what is where, and whose."""

from __future__ import annotations

import gc
import json
import os
import stat
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from pathlib import Path

import pytest
from tests.storage.conversations import (
    START,
    Pen,
    answer,
    chat,
    file_bytes,
    prompt,
)
from tests.storage.json_stores import open_store, row_of, rows, write

from nplt_storage import (
    ConversationDamaged,
    ConversationExists,
    ConversationHistory,
    ConversationNotFound,
    ConversationReadOnly,
    DataDirectoryInUse,
    JsonFileStore,
    PageQuery,
    SearchQuery,
    StorageUnavailable,
)
from nplt_storage.attachments import AttachmentFiles
from nplt_storage.entries import EpochEntry
from nplt_storage.files.conversation_file import JsonFile
from nplt_storage.index.updates import FileStamp
from nplt_storage.index.worker import ConversationIndex


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "data"


@pytest.fixture
async def store(data_dir: Path) -> AsyncIterator[JsonFileStore]:
    opened = await open_store(data_dir)
    yield opened
    await opened.close()


@pytest.fixture
def history_dir(data_dir: Path) -> Path:
    """A directory that was filled before anyone opened it."""
    directory = data_dir / "history"
    directory.mkdir(parents=True)
    return directory


def _only_file(data_dir: Path) -> Path:
    (path,) = (data_dir / "history").iterdir()
    return path


async def test_everything_is_private_to_its_owner(store: JsonFileStore, data_dir: Path) -> None:
    await store.create("s1", user="ada")
    for directory in (data_dir, *(data_dir / name for name in ("history", "files", "trash"))):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    for file in (data_dir / "lock", _only_file(data_dir)):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


async def test_a_second_store_on_the_same_directory_is_refused(
    store: JsonFileStore, data_dir: Path
) -> None:
    with pytest.raises(DataDirectoryInUse, match="in use by another server"):
        await open_store(data_dir)
    await store.close()
    second = await open_store(data_dir)
    await second.close()


async def test_a_conversation_deleted_while_it_is_listed_does_no_harm(
    store: JsonFileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await (await store.create("s1", user="local")).close()
    await (await store.create("s2", user="local")).close()
    stamps = ConversationIndex.stamps

    async def stamps_and_a_deletion(
        index: ConversationIndex, ids: Sequence[str] | None = None
    ) -> dict[str, FileStamp]:
        found = await stamps(index, ids)
        await store.delete("s1")
        return found

    monkeypatch.setattr(ConversationIndex, "stamps", stamps_and_a_deletion)
    assert "s2" in [row.session_id for row in await rows(store)]
    monkeypatch.undo()
    assert [row.session_id for row in await rows(store)] == ["s2"]


async def test_a_data_directory_that_can_not_be_created_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageUnavailable, match="can't be used"):
        await open_store(tmp_path / "file" / "data")


async def test_a_file_is_named_for_its_utc_day_and_id(store: JsonFileStore, data_dir: Path) -> None:
    await store.create("abc", user="local")
    assert _only_file(data_dir).name == "session_20260102_abc.json"


async def test_an_empty_conversation_is_a_valid_document(
    store: JsonFileStore, data_dir: Path
) -> None:
    await store.create("s1", user="ada")
    assert json.loads(_only_file(data_dir).read_bytes()) == {
        "session_id": "s1",
        "format": 1,
        "created_at": "2026-01-02T03:04:05.000006+00:00",
        "user": "ada",
        "crc": "a8918fd3",
        "messages": [],
        "updated_at": "2026-01-02T03:04:05.000006+00:00",
        "head_seq": 0,
        "message_count": 0,
        "epoch_offset": 121,
    }


async def test_the_file_is_a_whole_json_document_between_any_two_appends(
    store: JsonFileStore, data_dir: Path
) -> None:
    record = await store.create("s1", user="local")
    path = _only_file(data_dir)
    before = path.read_bytes()
    for entry in chat(10):
        await record.append(entry)
        now = path.read_bytes()
        document = json.loads(now)
        assert document["head_seq"] == entry.seq == len(document["messages"])
        assert document["updated_at"] == document["messages"][-1]["timestamp"]
        closing = before.rindex(b"]")
        assert now[:closing] == before[:closing], "no byte of a line changes again"
        before = now
    assert before == file_bytes(chat(10))


async def test_the_closing_line_points_at_the_last_epoch(
    store: JsonFileStore, data_dir: Path
) -> None:
    record = await store.create("s1", user="local")
    history = ConversationHistory("s1")
    await write(record, history, prompt("t1"), EpochEntry(reason="budget"), answer("t1"))
    data = _only_file(data_dir).read_bytes()
    offset = json.loads(data)["epoch_offset"]
    assert data[offset:].startswith(b',{"seq":2,')


async def test_rows_are_the_same_when_they_are_built_again(
    store: JsonFileStore, data_dir: Path
) -> None:
    for number in range(5):
        record = await store.create(f"s{number}", user="ada")
        for entry in chat(number):
            await record.append(entry)
    before = await rows(store, "ada")
    await store.close()
    (data_dir / "catalog.sqlite").unlink()
    again = await open_store(data_dir)
    assert await rows(again, "ada") == before
    await again.close()


async def test_a_damaged_file_is_listed_and_left_alone(history_dir: Path, data_dir: Path) -> None:
    damaged = bytearray(file_bytes(chat(4), "bad"))
    damaged[300] ^= 1
    (history_dir / "session_20260102_bad.json").write_bytes(damaged)
    (history_dir / "session_20260103_noise.json").write_bytes(os.urandom(1000))
    (history_dir / "session_20260104_empty.json").write_bytes(b"")
    (history_dir / "session_20260102_good.json").write_bytes(file_bytes(chat(2), "good"))
    (history_dir / "session_20260105_dir.json").mkdir()
    store = await open_store(data_dir)
    assert {row.session_id: row.damaged for row in await rows(store)} == {
        "bad": True,
        "noise": True,
        "empty": True,
        "dir": True,
        "good": False,
    }
    for session_id in ("bad", "noise", "empty", "dir"):
        with pytest.raises(ConversationDamaged):
            await store.open(session_id)
    for session_id in ("noise", "empty", "dir"):
        with pytest.raises(ConversationDamaged):
            await store.page(session_id, PageQuery())
    assert len((await store.page("bad", PageQuery())).messages) == 8, "all but the damaged one"
    assert (history_dir / "session_20260102_bad.json").read_bytes() == damaged
    assert len((await store.page("good", PageQuery())).messages) == 4
    await store.close()


async def test_a_damaged_conversation_is_still_its_users(history_dir: Path, data_dir: Path) -> None:
    data = bytearray(file_bytes(chat(3), "s1", user="ada"))
    for line in (-4, -3):  # more than a crash can tear
        data[data.index(data.split(b"\n")[line]) + 30] ^= 1
    (history_dir / "session_20260102_s1.json").write_bytes(data)
    store = await open_store(data_dir)
    (row,) = await rows(store, "ada")
    assert row.damaged
    assert await rows(store, "local") == []
    await store.close()


async def test_a_damaged_conversation_can_be_deleted(history_dir: Path, data_dir: Path) -> None:
    (history_dir / "session_20260103_noise.json").write_bytes(b"noise")
    store = await open_store(data_dir)
    await store.delete("noise")
    (trashed,) = (data_dir / "trash").iterdir()
    assert (trashed / "session_20260103_noise.json").read_bytes() == b"noise"
    assert await rows(store, "local") == []
    await store.close()


async def test_damage_found_while_reading_sets_the_conversation_apart(
    history_dir: Path, data_dir: Path
) -> None:
    path = history_dir / "session_20260102_s1.json"
    path.write_bytes(file_bytes(chat(100), "s1"))
    store = await open_store(data_dir)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)
    assert len((await store.page("s1", PageQuery())).messages) == 20, "far from the damage"
    everything = PageQuery(limit=200, bytes_max=10**9)
    assert len((await store.page("s1", everything)).messages) >= 197, "all around the damage"
    row = await row_of(store, "s1")
    assert row.damaged
    with pytest.raises(ConversationDamaged):
        await store.open("s1")
    assert path.read_bytes() == data
    await store.close()
    assert [each.name for each in history_dir.iterdir()] == [path.name]


async def test_a_damaged_conversation_is_repaired_while_others_are_served(
    history_dir: Path, data_dir: Path
) -> None:
    path = history_dir / "session_20260102_s1.json"
    path.write_bytes(file_bytes(chat(4), "s1").replace(b"word 1", b"word 7"))
    store = await open_store(data_dir)
    listed = await row_of(store, "s1")
    assert (listed.damaged, listed.name, listed.message_count) == (True, "word 0", 8)
    await store.page("s1", PageQuery())
    done = await store.repair("s1")
    assert (done.kept, done.lost, done.original) == (9, ((3, 3),), f"{path.name}.before-repair-1")
    assert not (await row_of(store, "s1")).damaged
    opened = await store.open("s1")
    with pytest.raises(ConversationReadOnly):
        await store.repair("s1")
    await opened.record.close()
    assert (await store.repair("s1")).says == ()
    assert len(list(history_dir.iterdir())) == 2
    await store.close()


@pytest.mark.parametrize("layout", ["indented", "in one line", "sorted"])
async def test_a_file_that_another_program_reformatted_is_imported_again(
    history_dir: Path, data_dir: Path, layout: str
) -> None:
    path = history_dir / "session_20260102_s1.json"
    good = file_bytes(chat(4), "s1", user="ada")
    document = json.loads(good)
    indent, is_sorted = (2 if layout == "indented" else None), layout == "sorted"
    laid_out = json.dumps(document, indent=indent, sort_keys=is_sorted).replace(
        '"duration": 0.0', '"duration": 0'
    )
    path.write_text(laid_out)
    store = await open_store(data_dir)
    row = await row_of(store, "s1")
    assert (row.damaged, row.user, row.message_count) == (False, "ada", 9)
    opened = await store.open("s1")
    await opened.record.close()
    await store.close()
    assert path.read_bytes() == good
    assert path.with_name(f"{path.name}.orig").read_text() == laid_out


async def test_an_unlisted_file_is_not_overwritten(store: JsonFileStore, data_dir: Path) -> None:
    path = data_dir / "history" / "session_20260102_s1.json"
    path.write_bytes(b"mine")
    with pytest.raises(ConversationExists):
        await store.create("s1", user="ada")
    assert path.read_bytes() == b"mine"


async def test_two_files_for_one_conversation_are_damage(history_dir: Path, data_dir: Path) -> None:
    for day in ("20260102", "20260103"):
        path = history_dir / f"session_{day}_s1.json"
        path.write_bytes(file_bytes(chat(1), "s1"))
    store = await open_store(data_dir)
    row = await row_of(store, "s1")
    assert row.damaged
    await store.close()


async def test_files_that_are_not_conversations_are_passed_over(
    history_dir: Path, data_dir: Path
) -> None:
    for name in (
        "notes.txt",
        "session_20260102_s1.json.broken-1",
        "session_20260102_s1.json.orig",
        ".session_20260102_s1.json.new",
        "session_2026_s1.json",
        "session_20260102_-.json",
    ):
        (history_dir / name).write_bytes(b"")
    store = await open_store(data_dir)
    assert await rows(store, "local") == []
    await store.close()


async def test_a_torn_file_is_made_whole_before_it_is_read(
    history_dir: Path, data_dir: Path
) -> None:
    path = history_dir / "session_20260102_s1.json"
    whole = file_bytes(chat(4), "s1")
    path.write_bytes(whole[:-300])
    store = await open_store(data_dir)
    row = await row_of(store, "s1")
    assert not row.damaged
    assert not list(history_dir.glob("*.broken-*")), "listing does not write"
    page = await store.page("s1", PageQuery())
    assert page.after == row.head_seq
    assert json.loads(path.read_bytes())["head_seq"] == row.head_seq
    assert len(list(history_dir.glob("*.broken-1"))) == 1
    await store.close()


async def test_a_deleted_conversation_comes_back_with_all_it_had(
    store: JsonFileStore, data_dir: Path
) -> None:
    record = await store.create("s1", user="ada")
    await write(record, ConversationHistory("s1"), prompt("t1", "where is it?"))
    blob = await record.keep_blob(b"giant")
    async with AttachmentFiles(store.directory.files).receive("s1", size=3) as upload:
        await upload.write(b"abc")
        stored = await upload.finish()
    (data_dir / "history" / "session_20260102_s1.json.broken-1").write_bytes(b"torn")
    before = await row_of(store, "s1")
    await store.delete("s1")
    assert await store.row("s1") is None
    assert await rows(store, "ada") == []
    assert (await store.search("ada", SearchQuery(text="where"))).hits == ()
    assert list((data_dir / "history").iterdir()) == []
    assert not (data_dir / "files" / "s1").exists()
    await store.undelete("s1")
    assert await row_of(store, "s1") == before
    assert len((await store.search("ada", SearchQuery(text="where"))).hits) == 1
    assert await store.blob("s1", blob.blob_id, 0, 10) == b"giant"
    assert (data_dir / "files" / "s1" / stored.file_id).read_bytes() == b"abc"
    assert (data_dir / "history" / "session_20260102_s1.json.broken-1").read_bytes() == b"torn"
    with pytest.raises(ConversationExists):
        await store.undelete("s1")
    await (await store.open("s1")).record.close()


async def test_two_files_for_one_conversation_can_be_deleted(
    history_dir: Path, data_dir: Path
) -> None:
    for day in ("20260102", "20260103"):
        (history_dir / f"session_{day}_s1.json").write_bytes(file_bytes(chat(1), "s1"))
    store = await open_store(data_dir)
    await store.delete("s1")
    assert list(history_dir.iterdir()) == []
    assert await rows(store) == []
    await store.undelete("s1")
    assert (await row_of(store, "s1")).damaged
    await store.close()


async def test_the_trash_is_emptied_after_thirty_days(data_dir: Path) -> None:
    store = await open_store(data_dir)
    await store.create("s1", user="ada")
    await store.delete("s1")
    assert await store.empty_trash() == 0
    await store.close()
    for day in range(31):
        now = START + timedelta(days=day, seconds=1)
        await (await open_store(data_dir, clock=lambda: now)).close()  # noqa: B023
        assert len(list((data_dir / "trash").glob("*_s1"))) == 1
    later = await open_store(data_dir, clock=lambda: START + timedelta(days=31, seconds=1))
    assert list((data_dir / "trash").glob("*_s1")) == []
    with pytest.raises(ConversationNotFound):
        await later.undelete("s1")
    await later.close()


async def test_a_file_taken_away_by_someone_else_is_not_found(
    store: JsonFileStore, data_dir: Path
) -> None:
    record = await store.create("s1", user="ada")
    await record.close()
    _only_file(data_dir).unlink()
    with pytest.raises(ConversationNotFound):
        await store.page("s1", PageQuery())
    with pytest.raises(ConversationNotFound):
        await store.open("s1")


async def test_descriptors_are_open_only_while_a_conversation_is(
    store: JsonFileStore,
) -> None:
    def count() -> int:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208

    # What the store keeps open for all of its conversations.
    other = await store.create("other", user="ada")
    await other.append(Pen().stamped(prompt("t1")))
    await other.close()
    before = count()
    records = [await store.create(f"s{number}", user="ada") for number in range(10)]
    assert count() == before + 10
    await records[0].append(Pen().stamped(prompt("t1")))
    for record in records:
        await record.close()
    for number in range(10):
        await store.page(f"s{number}", PageQuery())
    assert count() == before


async def test_closing_the_store_closes_what_isopen_store(store: JsonFileStore) -> None:
    record = await store.create("s1", user="ada")
    await record.append(Pen().stamped(prompt("t1")))
    await store.close()
    with pytest.raises(Exception, match="closed"):
        await record.append(Pen().stamped(prompt("t1")))


_CONVERSATIONS = 300
"""More than the store keeps to be quick."""


def _files_in_memory() -> int:
    gc.collect()
    return sum(isinstance(each, JsonFile) for each in gc.get_objects())


async def _use_many(store: JsonFileStore) -> None:
    for number in range(_CONVERSATIONS):
        record = await store.create(f"c{number}", user="local")
        await write(record, ConversationHistory(f"c{number}"), prompt("t1"))
        await record.close()


async def test_files_that_are_not_in_use_are_not_kept_in_memory(store: JsonFileStore) -> None:
    before = _files_in_memory()
    await _use_many(store)
    assert _files_in_memory() - before < _CONVERSATIONS
    for number in range(_CONVERSATIONS):
        page = await store.page(f"c{number}", PageQuery())
        assert len(page.messages) == 1
    assert _files_in_memory() - before < _CONVERSATIONS


async def test_an_open_file_is_the_same_for_its_readers_however_many_others_are_used(
    store: JsonFileStore,
) -> None:
    record, history = await store.create("used", user="local"), ConversationHistory("used")
    await write(record, history, prompt("t1"))
    await _use_many(store)
    await write(record, history, answer("t1"))
    assert len((await store.page("used", PageQuery())).messages) == 2
    await record.close()
    assert len((await store.page("used", PageQuery())).messages) == 2
