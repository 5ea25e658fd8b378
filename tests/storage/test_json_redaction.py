"""Erasing one entry's words: gone from every byte, everything else as it was."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.storage.conversations import (
    START,
    Pen,
    answer,
    answer_to,
    asking,
    call,
    counting_ids,
    file_bytes,
    prompt,
)
from tests.storage.disk_fakes import MemoryDisk, StopAt, WatchedDisk
from tests.storage.file_fakes import PowerCut, Trouble

from nplt_storage import BadEntry, ConversationReadOnly, StorageUnavailable
from nplt_storage.entries import AttachmentEntry, Entry, EpochEntry, ToolResultsEntry
from nplt_storage.file_system import Disk
from nplt_storage.files.append import Appender
from nplt_storage.files.conversation_file import JsonFile, keep_blob
from nplt_storage.files.directory import sweep
from nplt_storage.files.format import blobs_of
from nplt_storage.files.record import Redaction, redact_entry, remove_traces
from nplt_storage.redaction import REDACTED, redacted
from nplt_storage.rows import fold_all, new_row

HISTORY = Path("history")
PATH = HISTORY / "session_20260102_s1.json"
ATTACHMENTS = Path("files/s1")
FILE_ID = "b" * 32
SECRET = b"xyzzy"


def _disk() -> MemoryDisk:
    disk = MemoryDisk()
    disk.put(PATH, b"")
    disk.put(PATH, file_bytes(_entries(disk)))
    disk.put(PATH.with_name(f"{PATH.name}.orig"), SECRET)
    disk.put(PATH.with_name(f"{PATH.name}.broken-1"), SECRET)
    disk.put(HISTORY / "session_20260102_s10.json.orig", b"another's")
    disk.put(ATTACHMENTS / FILE_ID, SECRET)
    disk.put(ATTACHMENTS / ("c" * 32), b"another file")
    return disk


def _entries(disk: Disk) -> list[Entry]:
    pen = Pen()
    pen.write_all([prompt("t1", f"say {SECRET.decode()}"), asking("t1", call())])
    pen.write(_results(disk, "t1", b"shared", number=0))
    pen.write(asking("t1", call(), number=1))
    pen.write(_results(disk, "t1", SECRET * 1000, number=1))
    pen.write_all([asking("t1", call(), number=2), _results(disk, "t1", b"shared", number=2)])
    pen.write_all([answer("t1", "ok", call=3), EpochEntry(reason="budget")])
    pen.write(AttachmentEntry(file_id=FILE_ID, filename="x", size=5, sha256="0" * 64))
    return list(pen.history.entries)


def _results(disk: Disk, turn_id: str, data: bytes, *, number: int) -> ToolResultsEntry:
    blob = keep_blob(disk, blobs_of(PATH), data)
    result = replace(answer_to(call(), data[:5].decode()), blob=blob)
    return ToolResultsEntry(turn_id=turn_id, results=(result,), call=number)


@pytest.fixture
def disk() -> MemoryDisk:
    return _disk()


@pytest.fixture
def entries() -> list[Entry]:
    disk = MemoryDisk()
    disk.put(PATH, b"")
    return _entries(disk)


def _file(disk: Disk) -> JsonFile:
    return JsonFile(PATH, "s1", files=disk, new_id=counting_ids())


def _redact(disk: Disk, seq: int, file: JsonFile | None = None) -> Redaction:
    redaction = redact_entry(disk, file or _file(disk), seq, at=START)
    remove_traces(disk, PATH, redaction, attachments=ATTACHMENTS)
    return redaction


def _blobs(disk: MemoryDisk) -> set[bytes]:
    return {data for path, data in disk.contents.items() if path.parent == blobs_of(PATH)}


def test_a_tombstone_stands_there_and_every_other_line_is_as_it_was(
    disk: MemoryDisk, entries: list[Entry]
) -> None:
    before = disk.contents[PATH].split(b"\n")
    redaction = _redact(disk, 1)
    assert redaction.tombstone == redacted(entries[0], START)
    assert disk.contents[PATH] == file_bytes([redaction.tombstone, *entries[1:]])
    after = disk.contents[PATH].split(b"\n")
    changed = [number for number, line in enumerate(before) if line != after[number]]
    assert changed == [1, len(before) - 2], "the entry's line and the closing line"


def test_copies_that_may_hold_the_words_are_removed_and_others_stay(disk: MemoryDisk) -> None:
    _redact(disk, 1)
    assert disk.names_in(HISTORY) == [
        blobs_of(PATH).name,
        PATH.name,
        "session_20260102_s10.json.orig",
    ]


def test_a_blob_goes_with_the_last_entry_that_names_it(disk: MemoryDisk) -> None:
    _redact(disk, 5)
    assert _blobs(disk) == {b"shared"}
    _redact(disk, 3)
    assert _blobs(disk) == {b"shared"}, "another entry names it"
    _redact(disk, 7)
    assert _blobs(disk) == set()


def test_a_blob_kept_for_an_entry_to_come_is_spared(disk: MemoryDisk) -> None:
    kept = keep_blob(disk, blobs_of(PATH), b"for later").blob_id
    redaction = redact_entry(disk, _file(disk), 5, at=START)
    remove_traces(disk, PATH, redaction, attachments=ATTACHMENTS, blobs_kept={kept})
    assert _blobs(disk) == {b"shared", b"for later"}


def test_an_attachment_goes_with_its_entry(disk: MemoryDisk) -> None:
    _redact(disk, 10)
    assert disk.names_in(ATTACHMENTS) == ["c" * 32]


def test_redaction_rewrites_the_row_without_the_text(
    disk: MemoryDisk, entries: list[Entry]
) -> None:
    redaction = _redact(disk, 1)
    row = new_row("s1", user="local", created_at=START)
    assert redaction.row == fold_all(row, [redaction.tombstone, *entries[1:]])
    assert redaction.row.name == REDACTED


def test_a_rollback_that_quotes_the_words_is_rewritten_too() -> None:
    pen, disk = Pen(), MemoryDisk()
    pen.write_all([prompt("t1"), answer("t1", SECRET.decode()), prompt("t2"), answer("t2")])
    pen.write(pen.history.rollback_to(2))
    disk.put(PATH, file_bytes(pen.history.entries))
    assert disk.contents[PATH].count(SECRET) == 2
    assert _redact(disk, 2).row.preview == REDACTED
    assert SECRET not in disk.contents[PATH]


def test_appending_and_reading_go_on_in_the_new_file(
    disk: MemoryDisk, entries: list[Entry]
) -> None:
    file = _file(disk)
    file.settle()
    redaction = _redact(disk, 1, file)
    pen = Pen(new_id=counting_ids("later"))
    for entry in entries:
        pen.history.add(entry)
    more = pen.write(prompt("t2"))
    appender = Appender(file)
    appender.commit(appender.prepare(more))
    with file.reading() as source:
        assert list(source.after(0)) == [redaction.tombstone, *entries[1:], more]
    assert disk.contents[PATH] == file_bytes([redaction.tombstone, *entries[1:], more])


def test_a_reader_who_began_before_reads_to_its_end(disk: MemoryDisk, entries: list[Entry]) -> None:
    file = _file(disk)
    with file.reading() as source:
        walk = source.after(0)
        first = next(walk)
        _redact(disk, 1, file)
        assert [first, *walk] == entries


def test_redacting_a_missing_or_empty_entry_is_refused(disk: MemoryDisk) -> None:
    before = disk.contents
    for seq in (0, -1, 11, 9):
        with pytest.raises(BadEntry):
            redact_entry(disk, _file(disk), seq, at=START)
    assert disk.contents == before
    assert not disk.open_files


def test_nothing_is_rewritten_under_an_append(disk: MemoryDisk) -> None:
    file = _file(disk)
    with file.writing, pytest.raises(ConversationReadOnly):
        redact_entry(disk, file, 1, at=START)


def test_a_full_disk_leaves_the_old_file(disk: MemoryDisk) -> None:
    before = disk.contents
    for operation in ("write", "sync", "rename"):
        trouble = Trouble()
        file = _file(WatchedDisk(disk, trouble))
        file.settle()
        trouble.lasting[operation] = 28
        with pytest.raises(StorageUnavailable):
            redact_entry(WatchedDisk(disk, trouble), file, 1, at=START)
        assert disk.contents == before


@pytest.mark.parametrize("seq", [1, 5, 10])
@pytest.mark.parametrize("survivor", [MemoryDisk.copy, MemoryDisk.after_power_cut])
def test_every_call_is_a_safe_place_to_die(
    survivor: Callable[[MemoryDisk], MemoryDisk], seq: int, entries: list[Entry]
) -> None:
    tombstone = redacted(entries[seq - 1], START)
    old = file_bytes(entries)
    new = file_bytes([*entries[: seq - 1], tombstone, *entries[seq:]])
    outcomes = set()
    for stop in range(1, 80):
        disk, watch = _disk(), StopAt(stop)
        with suppress(PowerCut):
            _redact(WatchedDisk(disk, watch), seq)
        after = survivor(disk)
        sweep(after, HISTORY)
        assert after.contents[PATH] in (old, new)
        outcomes.add(after.contents[PATH] == new)
        if watch.has_stopped:
            _redact(after, seq)
        assert after.contents[PATH] == new
        traces = [path for path, data in after.contents.items() if SECRET * 2 in data]
        assert (blobs_of(PATH) in [path.parent for path in traces]) == (seq != 5)
        assert (ATTACHMENTS / FILE_ID in after.contents) == (seq != 10)
        assert not [name for name in after.names_in(HISTORY) if name.startswith(f"{PATH.name}.")]
    assert outcomes == {True, False}
