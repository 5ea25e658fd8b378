"""What has no business in the data directory must not keep the server from starting."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.storage.conversations import chat, file_bytes
from tests.storage.json_stores import all_entries, open_store, rows

from nplt_storage import StorageError

NAME = "session_20261116_" + "a" * 32 + ".json"


def place_for(data_dir: Path) -> Path:
    history = data_dir / "history"
    history.mkdir(parents=True)
    return history / NAME


async def test_a_pipe_in_place_of_a_file_is_a_damaged_row(tmp_path: Path) -> None:
    os.mkfifo(place_for(tmp_path))
    store = await open_store(tmp_path)
    (row,) = await rows(store)
    assert row.damaged
    with pytest.raises(StorageError):
        await store.open(row.session_id)
    await store.close()


async def test_a_device_in_place_of_a_file_is_a_damaged_row(tmp_path: Path) -> None:
    place_for(tmp_path).symlink_to("/dev/zero")
    store = await open_store(tmp_path)
    assert [row.damaged for row in await rows(store)] == [True]
    await store.close()


async def test_a_link_that_leads_nowhere_is_a_damaged_row(tmp_path: Path) -> None:
    place = place_for(tmp_path)
    place.symlink_to("nowhere")
    store = await open_store(tmp_path)
    (row,) = await rows(store)
    assert row.damaged
    assert f"{row.created_at:%Y%m%d}" in place.name
    await store.close()


async def test_attachments_cut_off_by_a_crash_are_swept_away(tmp_path: Path) -> None:
    folder = tmp_path / "files" / "s1"
    folder.mkdir(parents=True)
    (folder / ("b" * 32)).write_bytes(b"whole")
    (folder / ("c" * 32 + ".part")).write_bytes(b"half")
    only_half = tmp_path / "files" / "s2"
    only_half.mkdir()
    (only_half / ("d" * 32 + ".part")).write_bytes(b"half")
    store = await open_store(tmp_path)
    assert [path.name for path in (tmp_path / "files").rglob("*") if path.is_file()] == ["b" * 32]
    assert not only_half.exists()
    await store.close()


@pytest.mark.parametrize("blank_lines", [1, 2, 20_000])
async def test_blank_lines_at_the_end_take_no_entry_with_them(
    tmp_path: Path, blank_lines: int
) -> None:
    """More of them than are read at a time; an entry before them is whole and stays."""
    entries = chat(3)
    lines = file_bytes(entries, "a" * 32).rpartition(b"],")[0]
    place_for(tmp_path).write_bytes(lines + b"\n" * blank_lines)
    store = await open_store(tmp_path)
    opened = await store.open("a" * 32)
    assert opened.history.head_seq == len(entries)
    await opened.record.close()
    assert await all_entries(store, "a" * 32) == entries
    await store.close()
    (left,) = (tmp_path / "history").glob("*.broken-1")
    assert left.read_bytes() == b"\n" * blank_lines
