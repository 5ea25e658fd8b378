"""Large files cost no more to open, read and append to than small ones.

Counted in bytes and calls that go through the port, not in seconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.storage.conversations import START, counting_ids
from tests.storage.file_fakes import WatchedFiles

from nplt_storage.entries import ModelInputEntry
from nplt_storage.file_operations import SystemFiles
from nplt_storage.json_appender import Appender
from nplt_storage.json_file import JsonFile
from nplt_storage.json_layout import Header, advance, empty_closing, encode_closing, encode_header
from nplt_storage.lines import crc_suffix, encode_line
from nplt_storage.paging import PageQuery, read_page

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
    closing = empty_closing(header, len(first))
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
    return WatchedFiles(SystemFiles(), lambda operation, length: calls.append(operation))


@pytest.fixture
def file(large_file: Path, files: WatchedFiles) -> JsonFile:
    return JsonFile(large_file, "s1", files=files, new_id=counting_ids())


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
    file: JsonFile, files: WatchedFiles, calls: list[str]
) -> None:
    file.settle()
    appender = Appender(file)
    appender.append(_entry(LINES + 1))  # the first one opens the file
    calls.clear()
    files.bytes_read = 0
    appender.append(_entry(LINES + 2))
    assert calls == ["write", "sync_data"]
    assert files.bytes_read == 0
    appender.release()
    descriptor = SystemFiles().open(file.path, 2)
    tail = file.tail
    assert tail is not None
    SystemFiles().truncate(descriptor, tail.last)  # as it was, for the other tests
    SystemFiles().close(descriptor)


def test_a_line_of_megabytes_does_not_hide_its_neighbours(tmp_path: Path) -> None:
    path = tmp_path / "session_20260102_s1.json"
    file = JsonFile(path, "s1", files=SystemFiles(), new_id=counting_ids())
    appender = Appender(file, file.create(Header(session_id="s1", created_at=START)))
    for seq in range(1, 41):
        content = "long " * 500_000 if seq % 10 == 5 else f"prompt {seq}"
        entry = ModelInputEntry(
            seq=seq, id=f"e{seq}", timestamp=START, turn_id=f"t{seq}", content=content
        )
        appender.append(entry)
    appender.release()
    for seq in range(1, 41):
        with file.reading() as entries:
            assert next(entries.after(seq - 1)).seq == seq
            assert next(entries.before(seq + 1)).seq == seq
