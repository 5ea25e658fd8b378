"""What a start reads: nothing that is known, and everything that is not."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest
from tests.storage.conversations import START, Pen, answer, chat, file_bytes, prompt
from tests.storage.disk_fakes import WatchedDisk
from tests.storage.json_stores import all_entries, open_store, row_of, rows, write

from nplt_storage import (
    ConversationHistory,
    Durability,
    FileSettings,
    JsonFileStore,
    PageQuery,
    RowQuery,
    SearchQuery,
    StorageUnavailable,
)
from nplt_storage.entries import PinnedEntry, RenamedEntry
from nplt_storage.file_system import Disk
from nplt_storage.search import SearchHit


class Watch:
    """A store on a disk that counts what is read while it starts."""

    def __init__(self) -> None:
        self.disk = WatchedDisk(Disk(), lambda operation, length: None)

    async def start(self, data_dir: Path) -> JsonFileStore:
        self.disk.bytes_read = 0
        return await open_store(data_dir, FileSettings(disk=self.disk))


@pytest.fixture
def watch() -> Watch:
    return Watch()


async def _fill(data_dir: Path, *, conversations: int = 5) -> None:
    store = await open_store(data_dir)
    for number in range(conversations):
        record = await store.create(f"s{number}", user="local")
        history = ConversationHistory(f"s{number}")
        await write(record, history, prompt("t1", f"question {number}"), answer("t1"))
        await write(record, history, RenamedEntry(name=f"name {number}"))
        await write(record, history, PinnedEntry(pinned=number % 2 == 0))
    await store.close()


def _file(data_dir: Path, session_id: str) -> Path:
    return data_dir / "history" / f"session_20260102_{session_id}.json"


async def test_a_start_reads_no_file_that_is_known(tmp_path: Path, watch: Watch) -> None:
    await _fill(tmp_path)
    store = await watch.start(tmp_path)
    assert len(await rows(store)) == 5
    assert watch.disk.bytes_read == 0
    await store.close()


async def test_what_was_only_looked_at_is_known_too(tmp_path: Path, watch: Watch) -> None:
    await _fill(tmp_path)
    store = await open_store(tmp_path)
    await store.page("s1", PageQuery())  # the first look applies the opening rule
    await (await store.open("s2")).record.close()
    await store.close()
    await (await watch.start(tmp_path)).close()
    assert watch.disk.bytes_read == 0


async def test_of_a_file_that_was_written_on_the_rest_is_read(tmp_path: Path, watch: Watch) -> None:
    _file(tmp_path, "s1").parent.mkdir()
    _file(tmp_path, "s1").write_bytes(file_bytes(chat(500), "s1"))
    await (await open_store(tmp_path)).close()
    shutil.copy(tmp_path / "catalog.sqlite", tmp_path / "stale")
    store = await open_store(tmp_path)
    opened = await store.open("s1")
    await write(opened.record, opened.history, prompt("new", "a needle"), answer("new"))
    expected = await row_of(store, "s1")
    await store.close()
    shutil.move(tmp_path / "stale", tmp_path / "catalog.sqlite")
    again = await watch.start(tmp_path)
    assert await row_of(again, "s1") == expected
    assert len((await again.search("local", SearchQuery(text="needle"))).hits) == 1
    assert watch.disk.bytes_read < 60_000 < _file(tmp_path, "s1").stat().st_size
    await again.close()


async def test_a_new_file_is_read_and_one_that_is_gone_forgotten(tmp_path: Path) -> None:
    await _fill(tmp_path)
    _file(tmp_path, "s0").unlink()
    _file(tmp_path, "new").write_bytes(file_bytes(chat(3, content="thing "), "new"))
    store = await open_store(tmp_path)
    assert {row.session_id for row in await rows(store)} == {"new", "s1", "s2", "s3", "s4"}
    hits = (await store.search("local", SearchQuery(text="thing 1"))).hits
    assert [hit.session_id for hit in hits] == ["new"]
    assert not (await store.search("local", SearchQuery(text="question 0"))).hits
    await store.close()


async def test_with_a_new_file_no_known_one_is_read_at_start(tmp_path: Path, watch: Watch) -> None:
    _file(tmp_path, "s1").parent.mkdir()
    _file(tmp_path, "s1").write_bytes(file_bytes(chat(500), "s1"))
    await (await open_store(tmp_path)).close()
    _file(tmp_path, "new").write_bytes(file_bytes(chat(3), "new"))
    store = await watch.start(tmp_path)
    assert {row.session_id for row in await rows(store)} == {"new", "s1"}
    assert 0 < watch.disk.bytes_read < _file(tmp_path, "s1").stat().st_size // 2
    await store.close()


async def test_a_file_changed_by_another_program_is_read_again(tmp_path: Path) -> None:
    await _fill(tmp_path)
    pen = Pen()
    other = pen.write_all([prompt("t1", "nothing like it"), answer("t1"), prompt("t2")])
    other += pen.write_all([answer("t2", "long " * 500), prompt("t3"), answer("t3")])
    path = _file(tmp_path, "s1")
    with path.open("r+b") as file:  # the same inode, and longer
        file.write(file_bytes(other, "s1"))
    store = await open_store(tmp_path)
    assert (await row_of(store, "s1")).name == "nothing like it"
    assert await all_entries(store, "s1") == other
    assert not (await store.search("local", SearchQuery(text="question 1"))).hits
    await store.close()


@pytest.mark.parametrize("harm", ["removed", "noise", "empty", "a directory"])
async def test_a_lost_or_broken_index_is_made_again(tmp_path: Path, harm: str) -> None:
    await _fill(tmp_path)
    store = await open_store(tmp_path)
    before = await rows(store)
    await store.close()
    path = tmp_path / "catalog.sqlite"
    for left in tmp_path.glob("catalog.sqlite*"):
        left.unlink()
    match harm:
        case "noise":
            path.write_bytes(os.urandom(10_000))
        case "empty":
            path.touch()
        case "a directory":
            path.mkdir()
        case _:
            pass
    again = await open_store(tmp_path)
    assert await rows(again) == before
    if harm != "a directory":  # rows are kept in memory then, words are not
        assert len((await again.search("local", SearchQuery(text="question"))).hits) == 5
    await again.close()


async def test_a_sound_file_below_the_known_head_opens_and_its_row_says_what_is_gone(
    tmp_path: Path,
) -> None:
    await _fill(tmp_path)
    _file(tmp_path, "s1").write_bytes(_older_copy())
    for _ in range(2):
        store = await open_store(tmp_path)
        row = await row_of(store, "s1")
        assert (row.damaged, row.head_seq, row.lost) == (False, 2, (3, 4))
        assert [hit.session_id for hit in await _hits(store, "older")] == ["s1"]
        opened = await store.open("s1")
        assert opened.history.head_seq == 2
        await opened.record.close()
        await store.close()


async def test_an_older_copy_put_in_place_while_served_is_taken_as_it_is(tmp_path: Path) -> None:
    await _fill(tmp_path)
    store = await open_store(tmp_path)
    _file(tmp_path, "s1").write_bytes(_older_copy())
    page = await store.page("s1", PageQuery())
    assert [message["content"] for message in page.messages] == ["an older question", "sure"]
    assert [hit.session_id for hit in await _hits(store, "older")] == ["s1"]
    assert "s1" not in [hit.session_id for hit in await _hits(store, "question 1")]
    opened = await store.open("s1")
    assert (opened.row.head_seq, opened.row.lost) == (2, (3, 4))
    await write(opened.record, opened.history, prompt("t9", "afresh"), answer("t9"))
    await opened.record.close()
    await store.close()
    again = await open_store(tmp_path)
    row = await row_of(again, "s1")
    assert (row.head_seq, row.lost) == (4, (3, 4))
    troubled = await again.list("local", RowQuery(troubled=True))
    assert [one.session_id for one in troubled.rows] == ["s1"]
    await again.close()


async def test_an_older_copy_is_listed_as_one_without_being_opened(tmp_path: Path) -> None:
    await _fill(tmp_path)
    store = await open_store(tmp_path)
    _file(tmp_path, "s1").write_bytes(_older_copy())
    (listed,) = [row for row in await rows(store) if row.session_id == "s1"]
    assert listed.lost == (3, 4)
    await store.close()


def _older_copy() -> bytes:
    entries = Pen().write_all([prompt("t1", "an older question"), answer("t1", "sure")])
    return file_bytes(entries, "s1")


async def _hits(store: JsonFileStore, words: str) -> Sequence[SearchHit]:
    return (await store.search("local", SearchQuery(text=words))).hits


async def test_without_syncs_a_power_cut_may_shorten_a_file(tmp_path: Path) -> None:
    settings = FileSettings(durability=Durability(mode="never"))
    store = await open_store(tmp_path, settings)
    record = await store.create("s1", user="local")
    entries = Pen().write_all([prompt("t1"), answer("t1"), prompt("t2")])
    for entry in entries:
        await record.append(entry)
    await store.close()
    _file(tmp_path, "s1").write_bytes(file_bytes(entries[:2], "s1"))
    again = await open_store(tmp_path, settings)
    row = await row_of(again, "s1")
    assert (row.damaged, row.head_seq) == (False, 2)
    assert "a power cut may take" in again.description.promise
    await again.close()


async def test_a_file_that_was_put_right_is_well_at_the_next_start(tmp_path: Path) -> None:
    await _fill(tmp_path)
    whole = _file(tmp_path, "s1").read_bytes()
    _file(tmp_path, "s1").write_bytes(b"X" + whole[1:])
    store = await open_store(tmp_path)
    assert (await row_of(store, "s1")).damaged
    await store.close()
    _file(tmp_path, "s1").write_bytes(whole)
    again = await open_store(tmp_path)
    assert not (await row_of(again, "s1")).damaged
    await (await again.open("s1")).record.close()
    await again.close()


async def test_what_was_written_after_a_repair_is_known_at_the_next_start(
    tmp_path: Path, watch: Watch
) -> None:
    await _fill(tmp_path)
    whole = _file(tmp_path, "s1").read_bytes()
    _file(tmp_path, "s1").write_bytes(whole.replace(b"question 1", b"question X"))
    store = await open_store(tmp_path)
    assert (await row_of(store, "s1")).damaged
    await store.repair("s1")
    opened = await store.open("s1")
    await write(opened.record, opened.history, prompt("t9", "afresh"), answer("t9"))
    await opened.record.close()
    await store.close()
    again = await watch.start(tmp_path)
    assert not (await row_of(again, "s1")).damaged
    assert watch.disk.bytes_read == 0
    await again.close()


async def test_what_a_crash_left_on_its_way_in_is_swept_away(tmp_path: Path) -> None:
    await _fill(tmp_path, conversations=1)
    history = tmp_path / "history"
    (history / ".session_20260102_s9.json.whole.new").write_bytes(b"half")
    (history / ".session_20260102_s9.json.new").write_bytes(b"half")
    (history / ".session_20260102_s9.blobs.new").mkdir()
    (history / ".session_20260102_s9.blobs.new" / ("a" * 64)).write_bytes(b"half")
    (history / ".someone's.new").write_bytes(b"not ours")
    await (await open_store(tmp_path)).close()
    names = sorted(path.name for path in history.iterdir())
    assert names == [".someone's.new", "session_20260102_s0.json"]


async def test_an_interrupted_deletion_is_finished(tmp_path: Path) -> None:
    await _fill(tmp_path, conversations=2)
    original = _file(tmp_path, "s0").with_name("session_20260102_s0.json.orig")
    original.write_bytes(b"original")
    folder = tmp_path / "trash" / f"{START:%Y%m%dT%H%M%S}_s0"
    folder.mkdir()
    _file(tmp_path, "s0").rename(folder / _file(tmp_path, "s0").name)
    store = await open_store(tmp_path)
    assert [row.session_id for row in await rows(store)] == ["s1"]
    assert not original.exists()
    await store.undelete("s0")
    assert original.exists()
    await store.close()


async def _opened_with_sixty_unread_files(tmp_path: Path) -> JsonFileStore:
    (tmp_path / "history").mkdir()
    for number in range(60):
        session_id = f"s{number:02}"
        _file(tmp_path, session_id).write_bytes(file_bytes(chat(5), session_id))
    return await open_store(tmp_path, FileSettings(read_before_serving_bytes=0))


async def test_where_much_is_to_be_read_who_asks_for_one_need_not_wait(tmp_path: Path) -> None:
    store = await _opened_with_sixty_unread_files(tmp_path)
    last = await row_of(store, "s59")
    assert (last.name, last.head_seq) == ("word 0", 12)
    opened = await store.open("s58")
    await write(opened.record, opened.history, prompt("new"), answer("new"))
    await store.delete("s57")
    while len(await rows(store)) < 59:
        await anyio.lowlevel.checkpoint()
    assert (await row_of(store, "s58")).head_seq == 14
    assert await store.row("s57") is None
    await store.close()


async def test_a_list_says_that_there_may_be_more_while_files_are_read(tmp_path: Path) -> None:
    store = await _opened_with_sixty_unread_files(tmp_path)
    first = page = await store.list("local", RowQuery(limit=100))
    while page.incomplete:
        page = await store.list("local", RowQuery(limit=100))
    assert (first.incomplete, len(page.rows)) == (True, 60)
    await store.close()


async def test_lists_are_answered_while_a_large_file_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_read = threading.Event()

    class Slow(Disk):
        def read(self, descriptor: int, length: int, offset: int) -> bytes:
            if length > 5_000_000:
                may_read.wait(20)
            return super().read(descriptor, length, offset)

    (tmp_path / "history").mkdir()
    messages = [{"role": "user", "content": "word " * 1_000}] * 1_200
    _file(tmp_path, "a").write_text(json.dumps({"session_id": "a", "messages": messages}))
    _file(tmp_path, "b").write_bytes(file_bytes(chat(5), "b"))
    settings = FileSettings(read_before_serving_bytes=0, disk=Slow())
    store = await open_store(tmp_path, settings)
    assert not await rows(store)
    assert (await row_of(store, "b")).head_seq == 12  # though the other one comes first
    monkeypatch.setattr("nplt_storage.files.directory._WAIT_SECONDS_MAX", 0.0)
    with pytest.raises(StorageUnavailable, match="still being read"):
        await store.row("a")
    may_read.set()
    while len(await rows(store)) < 2:
        await anyio.lowlevel.checkpoint()
    await store.close()


async def test_a_start_that_was_cut_off_while_reading_goes_on_the_next_time(
    tmp_path: Path,
) -> None:
    (tmp_path / "history").mkdir()
    for number in range(60):
        session_id = f"s{number:02}"
        _file(tmp_path, session_id).write_bytes(file_bytes(chat(5), session_id))
    await (await open_store(tmp_path, FileSettings(read_before_serving_bytes=0))).close()
    store = await open_store(tmp_path)
    assert len(await rows(store)) == 60
    await store.close()


async def test_a_long_one_that_is_asked_for_while_it_is_read_is_given_whole(
    tmp_path: Path,
) -> None:
    (tmp_path / "history").mkdir()
    entries = chat(600)  # more than one piece
    _file(tmp_path, "long").write_bytes(file_bytes(entries, "long"))
    for number in range(20):
        _file(tmp_path, f"s{number}").write_bytes(file_bytes(chat(5), f"s{number}"))
    store = await open_store(tmp_path, FileSettings(read_before_serving_bytes=0))
    found: dict[str, int] = {}

    async def look(session_id: str) -> None:
        found[session_id] = (await row_of(store, session_id)).head_seq

    async with anyio.create_task_group() as tasks:
        for session_id in ("long", "s3", "s19", "long"):
            tasks.start_soon(look, session_id)
    assert found == {"long": entries[-1].seq, "s3": 12, "s19": 12}
    assert (await store.open("long")).history.head_seq == entries[-1].seq
    await store.close()


async def test_a_link_that_leads_in_circles_does_not_stop_the_start(tmp_path: Path) -> None:
    await _fill(tmp_path)
    for name in ("session_20260101_loop.json", "something"):
        link = tmp_path / "history" / name
        link.symlink_to(link.name)
    store = await open_store(tmp_path)
    assert {row.session_id for row in await rows(store)} >= {f"s{number}" for number in range(5)}
    await store.close()
