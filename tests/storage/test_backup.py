"""A back-up: whole conversations, whatever the server does meanwhile."""

from __future__ import annotations

import random
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from tests.storage.care_samples import (
    FILE_ID,
    LONG_RESULT,
    all_entries,
    attachment,
    file_store,
    put,
    put_attachment,
    the_file,
    with_long_result,
)
from tests.storage.conversations import answer, chat, file_bytes

from nplt_storage import JsonFileStore
from nplt_storage.attachments import mark_copy
from nplt_storage.entries import Entry
from nplt_storage.maintenance.backup import BackedUp, CannotBackUp, back_up
from nplt_storage.maintenance.doctor import examine_directory


def copied(data_dir: Path, target: Path) -> BackedUp:
    return back_up(data_dir, target, progress=lambda done, total: None)


def wrong(data_dir: Path) -> list[str]:
    report = examine_directory(data_dir, progress=lambda done, total: None)
    return [finding.message for finding in report.findings if finding.is_wrong]


async def test_all_of_it_is_in_the_copy_which_is_a_data_directory(tmp_path: Path) -> None:
    data_dir, target = tmp_path / "data", tmp_path / "copy"
    async with file_store(data_dir) as store:
        await put(store, chat(3))
        more: list[Entry] = [attachment(b"bytes"), answer("t1", call=1)]
        await put(store, with_long_result(*more), "s2", blobs=[LONG_RESULT])
        put_attachment(data_dir, "s2", b"bytes")
        put_attachment(data_dir, "kept-elsewhere", b"of a conversation in Redis")
        await put(store, chat(1), "s3")
        await store.delete("s3")
        done = await anyio.to_thread.run_sync(copied, data_dir, target)
        assert (done.conversations, done.deleted) == (2, 1)
    assert wrong(target) == []
    assert {path.name for path in target.iterdir()} == {"history", "files", "trash", "restored"}
    assert target.stat().st_mode & 0o777 == 0o700
    assert the_file(target).stat().st_mode & 0o777 == 0o600
    assert (target / "files" / "kept-elsewhere" / FILE_ID).exists()
    async with file_store(target) as restored, file_store(data_dir) as original:
        for session_id in ("s1", "s2"):
            assert await all_entries(restored, session_id) == await all_entries(
                original, session_id
            )
        await restored.undelete("s3")
        assert len(await all_entries(restored, "s3")) == 2


async def test_a_conversation_is_whole_whatever_happens_to_it_meanwhile(tmp_path: Path) -> None:
    data_dir, chance = tmp_path / "data", random.Random(7)
    entries = chat(200)
    async with file_store(data_dir) as store:
        for number in range(4):
            await put(store, chat(20), f"other{number}")
        record = await store.create("s1", user="local")
        written = 0
        copies: list[tuple[int, Path]] = []

        async def keep_copying() -> None:
            for number in range(8):
                target = tmp_path / f"copy{number}"
                copies.append((written, target))
                await anyio.to_thread.run_sync(copied, data_dir, target)
            tasks.cancel_scope.cancel()

        async def keep_changing() -> None:
            while True:
                await _change_something(store, chance)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(keep_copying)
            tasks.start_soon(keep_changing)
            for entry in entries:
                await record.append(entry)
                written = entry.seq
        with anyio.CancelScope(shield=True):
            await record.close()
    for acknowledged, target in copies:
        assert wrong(target) == []
        ids = {path.name.split("_")[2] for path in (target / "history").glob("*.json")}
        ids |= {path.name.split("_")[1] for path in (target / "trash").glob("2*")}
        assert {each.removesuffix(".json") for each in ids} == {
            *("s1", "other0", "other1", "other2", "other3")
        }
        async with file_store(target) as restored:
            assert len(await all_entries(restored)) >= acknowledged


async def _change_something(store: JsonFileStore, chance: random.Random) -> None:
    """Deletes it and brings it back, or erases something in it."""
    session_id = f"other{chance.randrange(4)}"
    if chance.random() < 0.5:
        await store.delete(session_id)
        await store.undelete(session_id)
    else:
        opened = await store.open(session_id)
        at = opened.history.entries[0].timestamp
        await opened.record.redact(chance.choice((1, 2, 3)), at=at)
        await opened.record.close()


async def test_damaged_and_foreign_files_are_copied_as_they_are(tmp_path: Path) -> None:
    history = tmp_path / "data" / "history"
    history.mkdir(parents=True)
    files = {
        "session_20260102_s1.json": file_bytes(chat(3)).replace(b"word 1", b"word 7"),
        "session_20260102_old.json": b'{"messages": [{"role": "user", "content": "hi"}]}',
        "session_20260102_noise.json": b"\0\1\2",
    }
    for name, data in files.items():
        (history / name).write_bytes(data)
    (history / ".session_20260102_s2.json.new").write_bytes(b"on its way")
    copied(tmp_path / "data", tmp_path / "copy")
    found = {path.name: path.read_bytes() for path in (tmp_path / "copy" / "history").iterdir()}
    assert found == files


async def test_a_copy_never_writes_over_anything_and_leaves_nothing_half_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data_dir, target = tmp_path / "data", tmp_path / "copy"
    async with file_store(data_dir) as store:
        await put(store, chat(3))
    target.mkdir()
    (target / "mine").write_text("hello")
    for place in (target, data_dir, data_dir / "files" / "copy"):
        with pytest.raises(CannotBackUp):
            copied(data_dir, place)
    with pytest.raises(CannotBackUp, match="no data directory"):
        copied(tmp_path / "nothing", tmp_path / "other")

    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        copied(data_dir, tmp_path / "other")
    assert {path.name for path in tmp_path.iterdir()} == {"data", "copy"}


async def test_what_a_fork_has_on_its_way_is_left_out(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    async with file_store(data_dir) as store:
        await put(store, chat(1))
    mark_copy(data_dir / "files", "fork")
    put_attachment(data_dir, "fork", b"bytes")
    copied(data_dir, tmp_path / "copy")
    assert list((tmp_path / "copy" / "files").iterdir()) == []
