"""Large files cost no more to open, read and append to than small ones.

Counted in bytes and calls that go through the port, not in seconds.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.storage.conversations import START, counting_ids
from tests.storage.disk_fakes import WatchedDisk
from tests.storage.file_fakes import WatchedFiles

from nplt_storage import PageQuery, encode_line
from nplt_storage.codec import crc_suffix
from nplt_storage.entries import ModelInputEntry
from nplt_storage.file_system import Disk, FileOperations
from nplt_storage.files.append import Appender
from nplt_storage.files.conversation_file import JsonFile, open_at_end
from nplt_storage.files.format import Header, advance, empty_tail, encode_closing, encode_header
from nplt_storage.pages import WindowSize, read_page
from nplt_storage.rows import new_row

LINES = 100_000
FEW = 128 * 1024


def _entry(seq: int) -> ModelInputEntry:
    return ModelInputEntry(
        seq=seq, id=f"e{seq}", timestamp=START, turn_id=f"t{seq}", content=f"prompt {seq}"
    )


def _lines(count: int) -> Iterator[bytes]:
    """As `encode_line` would write them, ten times as fast."""
    pattern = encode_line(_entry(1))[: -len(crc_suffix(b""))].replace(b"1,", b"%d,", 1)
    for name in (b'"e1"', b'"t1"', b"prompt 1"):
        pattern = pattern.replace(name, name.replace(b"1", b"%d"))
    for seq in range(1, count + 1):
        body = pattern % (seq, seq, seq, seq)
        yield body + crc_suffix(body)


@pytest.fixture(scope="module")
def large_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large") / "session_20260102_s1.json"
    header = Header(session_id="s1", created_at=START)
    first = encode_header(header)
    closing = empty_tail(START, len(first)).closing
    parts = [first]
    for seq, line in enumerate(_lines(LINES), 1):
        parts += [b"," if seq > 1 else b"", line, b"\n"]
        closing = advance(closing, "model_input", at=START, offset=0)
    path.write_bytes(b"".join(parts) + encode_closing(closing))
    return path


@pytest.fixture
def calls() -> list[str]:
    return []


@pytest.fixture
def files(calls: list[str]) -> WatchedFiles:
    return WatchedFiles(FileOperations(), lambda operation, length: calls.append(operation))


@pytest.fixture
def file(large_file: Path, files: WatchedFiles) -> JsonFile:
    return JsonFile(large_file, "s1", files=files, new_id=counting_ids())


def _appender(file: JsonFile, descriptor: int | None = None) -> Appender:
    return Appender(file, descriptor)


def test_the_fast_lines_are_the_real_ones() -> None:
    assert list(_lines(12)) == [encode_line(_entry(seq)) for seq in range(1, 13)]


def test_the_newest_page_reads_the_end_of_the_file_only(
    file: JsonFile, files: WatchedFiles
) -> None:
    assert file.path.stat().st_size > 15 * 1024 * 1024
    with file.reading() as entries:
        page = read_page(PageQuery(), entries)
    assert [message["seq"] for message in page.messages] == list(range(LINES - 19, LINES + 1))
    assert files.bytes_read < FEW


@pytest.mark.parametrize("seq", [2, 777, LINES // 2, LINES - 30])
@pytest.mark.parametrize("cursor", ["before", "after", "around"])
def test_a_page_deep_inside_reads_little_more(
    file: JsonFile, files: WatchedFiles, seq: int, cursor: str
) -> None:
    file.settle()
    files.bytes_read = 0
    with file.reading() as entries:
        page = read_page(PageQuery(**{cursor: seq}), entries)  # type: ignore[arg-type]
    seqs = [message["seq"] for message in page.messages]
    assert seqs == list(range(page.before, page.after + 1))
    match cursor:
        case "before":
            assert page.after == seq - 1
        case "after":
            assert page.before == seq + 1
        case _:
            assert seq in seqs
    assert files.bytes_read < FEW


def test_a_single_text_is_found_in_few_reads(file: JsonFile, calls: list[str]) -> None:
    file.settle()
    calls.clear()
    with file.reading() as entries:
        entry = next(entries.after(LINES // 3 - 1))
    assert entry == _entry(LINES // 3)
    assert calls.count("read") < 40


def test_an_append_reads_nothing_and_writes_once(
    large_file: Path, files: WatchedFiles, calls: list[str], tmp_path: Path
) -> None:
    path = tmp_path / large_file.name
    shutil.copy(large_file, path)
    file = JsonFile(path, "s1", files=files, new_id=counting_ids())
    file.settle()
    appender = _appender(file)
    appender.commit(appender.prepare(_entry(LINES + 1)))  # the first one opens the file
    calls.clear()
    files.bytes_read = 0
    appender.commit(appender.prepare(_entry(LINES + 2)))
    assert calls == ["write", "sync_data"]
    assert files.bytes_read == 0
    appender.close()


def test_a_line_of_megabytes_does_not_hide_its_neighbours(tmp_path: Path) -> None:
    path = tmp_path / "session_20260102_s1.json"
    file = JsonFile(path, "s1", files=FileOperations(), new_id=counting_ids())
    appender = _appender(file, file.create(Header(session_id="s1", created_at=START)))
    for seq in range(1, 41):
        content = "long " * 500_000 if seq % 10 == 5 else f"prompt {seq}"
        entry = ModelInputEntry(
            seq=seq, id=f"e{seq}", timestamp=START, turn_id=f"t{seq}", content=content
        )
        appender.commit(appender.prepare(entry))
    appender.close()
    for seq in range(1, 41):
        with file.reading() as entries:
            assert next(entries.after(seq - 1)).seq == seq
            assert next(entries.before(seq + 1)).seq == seq


def test_opening_to_go_on_reads_the_end_of_the_file_only(large_file: Path) -> None:
    disk = WatchedDisk(Disk(), lambda operation, length: None)
    file = JsonFile(large_file, "s1", files=disk, new_id=counting_ids())
    row = replace(new_row("s1", user="local", created_at=START), head_seq=LINES)
    opened = open_at_end(disk, file, row)
    disk.close(opened.descriptor)
    kept = [entry.seq for entry in opened.entries]
    assert kept == list(range(kept[0], LINES + 1))
    assert 1_000 < len(kept) <= WindowSize().entries
    assert disk.bytes_read < 2 * 1024 * 1024 < large_file.stat().st_size / 7


@pytest.mark.parametrize("through", [1, 2, 777, LINES - 1, LINES])
def test_a_file_is_read_as_it_stood_when_an_entry_was_its_last(
    large_file: Path, through: int
) -> None:
    file = JsonFile(large_file, "s1", files=FileOperations(), new_id=counting_ids())
    with file.reading(through) as entries:
        assert entries.head_seq == through
        assert next(entries.before(through + 1)).seq == through
        assert [entry.seq for entry in entries.after(through - 1)] == [through]
