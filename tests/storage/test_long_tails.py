"""Opening costs what is read, not what is there: files that end in gigabytes of zeros, or in a
line that never ends. The files are sparse; bytes read and memory are counted, never time."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.storage.care_samples import all_entries, file_store, the_file
from tests.storage.conversations import chat, counting_ids, file_bytes
from tests.storage.file_fakes import WatchedFiles
from tests.storage.json_stores import row_of

from nplt_storage import BadEntry, ConversationDamaged, encode_line
from nplt_storage.codec import LINE_BYTES_MAX
from nplt_storage.file_system import FileOperations
from nplt_storage.files.conversation_file import JsonFile
from nplt_storage.maintenance.backup import back_up
from nplt_storage.maintenance.doctor import examine_directory

GIB = 1024**3
MEMORY_MAX = 4 * LINE_BYTES_MAX
ENTRIES = chat(3)


def place(data_dir: Path, data: bytes, *, size: int, then: bytes = b"") -> Path:
    """The bytes, zeros up to the size, and what follows them."""
    path = data_dir / "history" / "session_20260102_s1.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    path.chmod(0o600)
    os.truncate(path, size)
    with path.open("r+b") as file:
        file.seek(size)
        file.write(then)
    other = path.with_name("session_20260102_s2.json")
    other.write_bytes(file_bytes(chat(1), "s2"))
    other.chmod(0o600)
    return path


def torn(turns: int = 3) -> bytes:
    """Without a closing line."""
    data = file_bytes(chat(turns))
    return data[: data.rindex(b"]")]


@contextmanager
def little_memory() -> Iterator[None]:
    tracemalloc.start(1)
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < MEMORY_MAX
    finally:
        tracemalloc.stop()


ENDS = {
    "zeros": file_bytes(ENTRIES),
    "zeros for a closing line": torn(),
    "an unfinished line": torn() + b',{"seq":11,"id":"',
}


@pytest.mark.parametrize("end", ENDS)
def test_the_search_for_the_last_sound_line_is_bounded(tmp_path: Path, end: str) -> None:
    path = place(tmp_path, ENDS[end], size=2 * GIB)
    files = WatchedFiles(FileOperations(), lambda operation, length: None)
    with little_memory(), pytest.raises(ConversationDamaged, match="64 MiB"):
        JsonFile(path, "s1", files=files, new_id=counting_ids()).settle()
    assert files.bytes_read < 2 * LINE_BYTES_MAX
    assert path.stat().st_size == 2 * GIB


@pytest.mark.parametrize("end", ENDS)
async def test_a_start_serves_the_others_and_every_sound_entry(tmp_path: Path, end: str) -> None:
    path = place(tmp_path, ENDS[end], size=GIB)
    with little_memory():
        async with file_store(tmp_path) as store:
            assert await all_entries(store, "s2") == chat(1)
            assert await all_entries(store, "s1") == ENTRIES
            assert (await row_of(store, "s1")).damaged
            assert not (await row_of(store, "s2")).damaged
            assert path.stat().st_size == GIB
            assert (await store.repair("s1")).kept == len(ENTRIES)
            assert await all_entries(store, "s1") == ENTRIES
    assert the_file(tmp_path).stat().st_size < 1024**2
    assert the_file(tmp_path).with_name(f"{path.name}.before-repair-1").stat().st_size == GIB


async def test_entries_after_a_gigabyte_of_zeros_are_found(tmp_path: Path) -> None:
    """In the middle of a file, and with no newline between the zeros and the next line."""
    data = file_bytes(ENTRIES)
    lines = data.splitlines(keepends=True)
    place(tmp_path, b"".join(lines[:4])[:-1], size=GIB, then=b"".join(lines[5:]))
    kept = [*ENTRIES[:3], *ENTRIES[4:]]
    with little_memory():
        async with file_store(tmp_path) as store:
            found = await all_entries(store, "s1")
            assert [entry for entry in found if entry in kept] == kept
            assert (await store.repair("s1")).lost == ((4, 4),)


@pytest.mark.parametrize("first", [b"", b"\n", b'{"messages": ["', b"[[["])
async def test_a_gigabyte_that_is_no_conversation_is_a_damaged_row(
    tmp_path: Path, first: bytes
) -> None:
    place(tmp_path, first, size=GIB)
    with little_memory():
        async with file_store(tmp_path) as store:
            assert (await row_of(store, "s1")).damaged
            assert not (await row_of(store, "s2")).damaged


async def test_doctor_and_back_up_take_little_memory(tmp_path: Path) -> None:
    path = place(tmp_path / "data", torn(), size=GIB)
    with little_memory():
        report = examine_directory(tmp_path / "data", progress=lambda done, total: None)
        assert [finding.code for finding in report.findings if finding.is_wrong] == ["damaged"]
        back_up(tmp_path / "data", tmp_path / "copy", progress=lambda done, total: None)
    copy = tmp_path / "copy" / "history" / path.name
    assert copy.stat().st_size == GIB
    assert copy.stat().st_blocks * 512 < 16 * 1024**2


async def test_a_live_file_of_any_size_takes_little_memory(tmp_path: Path) -> None:
    path = place(tmp_path, file_bytes(ENTRIES), size=len(file_bytes(ENTRIES)))
    live = path.with_name(f"{path.name}.live")
    live.write_bytes(b"\n" * 10_000_000)
    os.truncate(live, GIB)
    with little_memory():
        async with file_store(tmp_path) as store:
            opened = await store.open("s1")
            assert opened.partial_answer is None
            await opened.record.close()


def test_a_line_longer_than_the_search_goes_back_is_never_written() -> None:
    entry = chat(1)[0]
    fits = replace(entry, content="x" * (LINE_BYTES_MAX - 1000))
    assert len(encode_line(fits)) <= LINE_BYTES_MAX
    with pytest.raises(BadEntry, match="64 MiB"):
        encode_line(replace(entry, content="x" * LINE_BYTES_MAX))
