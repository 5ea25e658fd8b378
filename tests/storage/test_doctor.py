"""The doctor: finds whatever is wrong in a data directory, and changes nothing."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from msgspec.structs import replace
from tests.storage.care_samples import (
    FILE_ID,
    LONG_RESULT,
    attachment,
    file_store,
    put,
    put_attachment,
    reference_to,
    the_file,
    with_long_result,
)
from tests.storage.conversations import Pen, answer, chat, file_bytes, prompt

from nplt_storage.entries import Entry, RollbackEntry
from nplt_storage.files.examination import Finding
from nplt_storage.files.live_journal import encode_piece
from nplt_storage.maintenance.doctor import NoDataDirectory, Report, examine_directory
from nplt_storage.rows import row_as_bytes, row_from_bytes

CATALOGUE = "catalog.sqlite"


async def furnish(data_dir: Path) -> None:
    """Two conversations, one of them with all that can stand beside a file."""
    async with file_store(data_dir) as store:
        await put(store, chat(3))
        more: list[Entry] = [attachment(b"bytes"), answer("t1", call=1)]
        await put(store, with_long_result(*more), "s2", blobs=[LONG_RESULT])
    put_attachment(data_dir, "s2", b"bytes")


def examine(data_dir: Path) -> Report:
    return examine_directory(data_dir, progress=lambda done, total: None)


def wrong(data_dir: Path) -> list[str]:
    return [finding.code for finding in examine(data_dir).findings if finding.is_wrong]


def notes(data_dir: Path) -> list[str]:
    return [finding.code for finding in examine(data_dir).findings if not finding.is_wrong]


def snapshot(directory: Path) -> dict[str, tuple[int, int, int, bytes]]:
    """Every name, mode, size, time and byte."""
    found: dict[str, tuple[int, int, int, bytes]] = {}
    for path in sorted([directory, *directory.rglob("*")]):
        status = path.lstat()
        data = path.read_bytes() if path.is_file() else b""
        found[str(path)] = (status.st_mode, status.st_mtime_ns, status.st_ino, data)
    return found


def overwrite(path: Path, old: bytes, new: bytes) -> None:
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new, 1))


async def test_a_directory_in_order_has_no_findings(tmp_path: Path) -> None:
    await furnish(tmp_path)
    report = examine(tmp_path)
    assert report.findings == ()
    assert report.conversations == 2
    assert report.size == sum(the_file(tmp_path, id_).stat().st_size for id_ in ("s1", "s2"))


async def test_nothing_in_the_directory_changes_whatever_is_wrong_with_it(tmp_path: Path) -> None:
    await furnish(tmp_path)
    overwrite(the_file(tmp_path), b"word 1", b"word 7")
    (tmp_path / "history" / "session_20260101_torn.json").write_bytes(
        file_bytes(chat(2), "torn")[:-20]
    )
    (tmp_path / "history" / "session_20260101_old.json").write_text('{"messages": []}')
    before = snapshot(tmp_path)
    assert wrong(tmp_path) == ["damaged"]
    assert snapshot(tmp_path) == before


async def test_nothing_changes_while_a_server_has_the_directory_open(tmp_path: Path) -> None:
    async with file_store(tmp_path) as store:
        await put(store, chat(3))
        opened = await store.open("s1")
        assert (tmp_path / f"{CATALOGUE}-wal").stat().st_size > 0
        before = snapshot(tmp_path)
        assert wrong(tmp_path) == []
        assert snapshot(tmp_path) == before
        await opened.record.close()


async def test_a_conversation_that_is_written_to_meanwhile_is_never_called_wrong(
    tmp_path: Path,
) -> None:
    entries = chat(60)
    found: list[Finding] = []
    async with file_store(tmp_path) as store:
        await put(store, entries[:1])
        opened = await store.open("s1")
        is_done = False

        async def keep_looking() -> None:
            while not is_done:
                report = await anyio.to_thread.run_sync(examine, tmp_path)
                found.extend(finding for finding in report.findings if finding.is_wrong)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(keep_looking)
            for entry in entries[1:]:
                await opened.record.append(entry)
            is_done = True
        await opened.record.close()
    assert found == []


def _flip_in_the_middle(data_dir: Path) -> None:
    overwrite(the_file(data_dir), b"word 1", b"word 7")


def _flip_in_the_last_line(data_dir: Path) -> None:
    overwrite(the_file(data_dir), b"so 2", b"so 3")


def _break_the_last_newline(data_dir: Path) -> None:
    overwrite(the_file(data_dir), b'}\n],"updated_at"', b'}\x0b],"updated_at"')


def _lose_a_line(data_dir: Path) -> None:
    path = the_file(data_dir)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:3] + lines[4:]))


def _lose_the_last_line(data_dir: Path) -> None:
    path = the_file(data_dir)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-2] + lines[-1:]))


def _miscount(data_dir: Path) -> None:
    overwrite(the_file(data_dir), b'"message_count":7', b'"message_count":6')


def _break_the_header(data_dir: Path) -> None:
    overwrite(the_file(data_dir), b'"s1"', b'"s3"')


def _come_from_the_future(data_dir: Path) -> None:
    the_file(data_dir).write_bytes(
        b'{"session_id":"s1","format":2,"created_at":"2026-01-02T03:04:05+00:00","messages":[\n]}\n'
    )


def _empty(data_dir: Path) -> None:
    the_file(data_dir).write_bytes(b"")


def _rename(data_dir: Path) -> None:
    the_file(data_dir).rename(data_dir / "history" / "session_20260102_other.json")


def _have_two(data_dir: Path) -> None:
    path = the_file(data_dir)
    path.with_name("session_20251231_s1.json").write_bytes(path.read_bytes())


def _be_no_file(data_dir: Path) -> None:
    path = the_file(data_dir)
    path.unlink()
    os.mkfifo(path)


def _lose_a_blob(data_dir: Path) -> None:
    _blob(data_dir).unlink()


def _change_a_blob(data_dir: Path) -> None:
    _blob(data_dir).write_bytes(b"x" * len(LONG_RESULT))


def _blob(data_dir: Path) -> Path:
    return the_file(data_dir, "s2").with_suffix(".blobs") / reference_to(LONG_RESULT).blob_id


def _lose_an_attachment(data_dir: Path) -> None:
    (data_dir / "files" / "s2" / FILE_ID).unlink()


def _cut_an_attachment(data_dir: Path) -> None:
    (data_dir / "files" / "s2" / FILE_ID).write_bytes(b"byte")


def _put_a_pipe_in_its_place(data_dir: Path) -> None:
    (data_dir / "files" / "s2" / FILE_ID).unlink()
    os.mkfifo(data_dir / "files" / "s2" / FILE_ID)


def _lose_a_file(data_dir: Path) -> None:
    the_file(data_dir).unlink()


def _lose_the_end(data_dir: Path) -> None:
    the_file(data_dir).write_bytes(file_bytes(chat(2)))


@pytest.mark.parametrize(
    ("mishap", "codes"),
    [
        (_flip_in_the_middle, ["damaged"]),
        (_flip_in_the_last_line, ["damaged"]),
        (_break_the_last_newline, ["damaged"]),
        (_lose_a_line, ["gap"]),
        (_lose_the_last_line, ["damaged"]),
        (_miscount, ["bad_closing"]),
        (_break_the_header, ["bad_header"]),
        (_come_from_the_future, ["later_format"]),
        (_empty, ["empty"]),
        (_rename, ["file_gone", "other_id"]),
        (_have_two, ["two_files"]),
        (_be_no_file, ["unreadable"]),
        (_lose_a_blob, ["bad_blob"]),
        (_change_a_blob, ["bad_blob"]),
        (_lose_an_attachment, ["bad_attachment"]),
        (_cut_an_attachment, ["bad_attachment"]),
        (_put_a_pipe_in_its_place, ["bad_attachment"]),
        (_lose_a_file, ["file_gone"]),
        (_lose_the_end, ["entries_gone"]),
    ],
)
async def test_every_mishap_is_found(
    tmp_path: Path, mishap: Callable[[Path], None], codes: list[str]
) -> None:
    await furnish(tmp_path)
    mishap(tmp_path)
    assert wrong(tmp_path) == codes


async def test_damage_is_reported_with_its_first_byte_and_the_lost_entries(tmp_path: Path) -> None:
    await furnish(tmp_path)
    path = the_file(tmp_path)
    lines = path.read_bytes().splitlines(keepends=True)
    damaged = [line.replace(b"word", b"w0rd").replace(b"re ", b"xx ") for line in lines[2:4]]
    path.write_bytes(b"".join(lines[:2] + damaged + lines[4:]))
    (finding,) = examine(tmp_path).findings
    assert finding.file == f"history/{path.name}"
    assert finding.offset == len(lines[0] + lines[1])
    assert finding.seqs == (2, 3)
    assert "entries 2 to 3 are lost" in finding.message


async def test_what_a_crash_leaves_is_a_note_since_the_next_start_takes_care_of_it(
    tmp_path: Path,
) -> None:
    async with file_store(tmp_path) as store:
        await put(store, Pen().write_all([prompt("t1"), answer("t1"), prompt("t2")]))
    path = the_file(tmp_path)
    path.write_bytes(path.read_bytes()[:-30])
    for name in (f"{path.name}.broken-1", f".{path.name}.new"):
        path.with_name(name).write_bytes(b"x")
    path.with_name(f"{path.name}.live").write_bytes(encode_piece(("t2", 0, "text", "so fa")))
    (tmp_path / "files" / "s1").mkdir()
    (tmp_path / "files" / "s1" / f"{FILE_ID}.part").write_bytes(b"x")
    assert wrong(tmp_path) == []
    assert sorted(notes(tmp_path)) == [
        "running_answer",
        "torn_append",
        "torn_tail",
        "unfinished",
        "unfinished_turn",
        "unnamed_attachment",
    ]


async def test_the_text_of_an_answer_that_has_its_entry_is_no_note(tmp_path: Path) -> None:
    async with file_store(tmp_path) as store:
        await put(store, Pen().write_all([prompt("t1"), answer("t1")]))
    journal = the_file(tmp_path).with_name(f"{the_file(tmp_path).name}.live")
    journal.write_bytes(encode_piece(("t1", 0, "text", "all of it")))
    assert (wrong(tmp_path), notes(tmp_path)) == ([], [])


async def test_a_conversation_without_an_owner_is_a_note_of_the_doctor(tmp_path: Path) -> None:
    await furnish(tmp_path)
    history = tmp_path / "history"
    (history / "letters.txt").write_text("hello")
    (history / "session_20260101_gone.blobs").mkdir()
    (_blob(tmp_path).parent / ("0" * 64)).write_bytes(b"unnamed")
    (tmp_path / "files" / "gone").mkdir()
    assert wrong(tmp_path) == []
    assert sorted(notes(tmp_path)) == ["no_owner", "no_owner", "unknown_file", "unnamed_blob"]


async def test_another_programs_file_is_a_note(tmp_path: Path) -> None:
    await furnish(tmp_path)
    path = tmp_path / "history" / "session_20251231_old.json"
    path.write_text('{"messages": [{"role": "user", "content": "hi"}]}')
    path.chmod(0o600)
    assert (wrong(tmp_path), sorted(notes(tmp_path))) == ([], ["behind", "older_shape"])


async def test_calls_that_never_got_results_are_found(tmp_path: Path) -> None:
    entries = [entry for entry in chat(3) if entry.kind != "tool_results"]
    numbered = [replace(entry, seq=seq) for seq, entry in enumerate(entries, 1)]
    (tmp_path / "history").mkdir()
    (tmp_path / "history" / "session_20260102_s1.json").write_bytes(file_bytes(numbered))
    assert wrong(tmp_path) == ["unpaired_calls"]


async def test_calls_without_results_are_found_unless_they_were_taken_back(tmp_path: Path) -> None:
    entries = [entry for entry in chat(3) if entry.kind != "tool_results"]
    numbered = [replace(entry, seq=seq) for seq, entry in enumerate(entries, 1)]
    last = numbered[-1]
    (tmp_path / "history").mkdir()
    path = tmp_path / "history" / "session_20260102_s1.json"
    for hidden, found in (((), ["unpaired_calls"]), (((1, last.seq),), [])):
        undo = RollbackEntry(to_seq=last.seq, hidden=hidden)
        undo = replace(undo, id="undo", seq=last.seq + 1, timestamp=last.timestamp)
        path.write_bytes(file_bytes([*numbered, undo]))
        assert wrong(tmp_path) == found


def _change_row(data_dir: Path, **changes: object) -> None:
    with closing(sqlite3.connect(data_dir / CATALOGUE)) as connection, connection:
        question = "SELECT row FROM conversations WHERE session_id = 's1'"
        (data,) = connection.execute(question).fetchone()
        row = replace(row_from_bytes(data), **changes)
        connection.execute(
            "UPDATE conversations SET row = ? WHERE session_id = 's1'", (row_as_bytes(row),)
        )


async def test_a_row_that_says_something_else_than_its_file_is_found(tmp_path: Path) -> None:
    await furnish(tmp_path)
    _change_row(tmp_path, preview="something else", message_count=3)
    (finding,) = examine(tmp_path).findings
    assert (finding.file, finding.code) == (CATALOGUE, "drift")
    assert finding.message.endswith("message_count, preview")


async def test_a_row_that_is_marked_is_wrong_though_its_file_is_sound(tmp_path: Path) -> None:
    await furnish(tmp_path)
    _change_row(tmp_path, damaged=True)
    assert wrong(tmp_path) == ["held_damaged"]
    _change_row(tmp_path, damaged=False, lost=(8, 9))
    (finding,) = examine(tmp_path).findings
    assert (finding.code, finding.seqs, finding.is_wrong) == ("entries_gone", (8, 9), True)
    assert finding.message.endswith("nplt repair s1")


async def test_an_index_that_is_behind_or_missing_is_a_note(tmp_path: Path) -> None:
    await furnish(tmp_path)
    _change_row(tmp_path, head_seq=3)
    assert (wrong(tmp_path), notes(tmp_path)) == ([], ["behind"])
    for path in tmp_path.glob(f"{CATALOGUE}*"):
        path.unlink()
    assert (wrong(tmp_path), notes(tmp_path)) == ([], ["no_catalogue"])


@pytest.mark.parametrize("data", [b"", b"no database", b"SQLite format 3\0" + b"x" * 5000])
async def test_an_index_that_is_none_is_a_note(tmp_path: Path, data: bytes) -> None:
    await furnish(tmp_path)
    (tmp_path / CATALOGUE).write_bytes(data)
    before = snapshot(tmp_path)
    assert (wrong(tmp_path), notes(tmp_path)) == ([], ["no_catalogue"])
    assert snapshot(tmp_path) == before


async def test_an_index_whose_server_was_killed_is_read_with_its_journal(
    tmp_path: Path,
) -> None:
    data_dir, copy = tmp_path / "data", tmp_path / "copy"
    async with file_store(data_dir) as store:
        await put(store, chat(3))
        await store.row("s1")
        shutil.copytree(data_dir, copy)
    assert (copy / f"{CATALOGUE}-wal").stat().st_size > 0
    before = snapshot(copy)
    assert examine(copy).findings == ()
    assert snapshot(copy) == before


async def test_a_deleted_conversation_is_not_missed(tmp_path: Path) -> None:
    await furnish(tmp_path)
    before = (tmp_path / CATALOGUE).read_bytes()
    async with file_store(tmp_path) as store:
        await store.delete("s1")
    assert examine(tmp_path).findings == ()
    for path in tmp_path.glob(f"{CATALOGUE}*"):
        path.unlink()
    (tmp_path / CATALOGUE).write_bytes(before)  # as if it had been killed just then
    assert (wrong(tmp_path), notes(tmp_path)) == ([], ["behind"])


def test_the_doctor_reports_a_path_that_is_no_data_directory(tmp_path: Path) -> None:
    with pytest.raises(NoDataDirectory, match="is no data directory"):
        examine(tmp_path)


async def test_a_file_of_zeros_without_end_is_no_burden(tmp_path: Path) -> None:
    await furnish(tmp_path)
    with (tmp_path / "history" / "session_20260101_huge.json").open("wb") as huge:
        huge.truncate(1 << 40)
    assert wrong(tmp_path) == ["bad_header"]


async def test_what_others_may_read_is_a_note(tmp_path: Path) -> None:
    await furnish(tmp_path)
    the_file(tmp_path).chmod(0o644)
    (finding,) = examine(tmp_path).findings
    assert (finding.code, finding.is_wrong) == ("mode", False)
    assert finding.message == "its mode is 0644, not 0600"


@pytest.mark.parametrize("what", ["link", "directory"])
async def test_something_else_in_a_conversations_place_is_wrong(tmp_path: Path, what: str) -> None:
    await furnish(tmp_path)
    path = tmp_path / "history" / "session_20260102_s3.json"
    if what == "link":
        path.symlink_to(tmp_path / "nothing")
    else:
        path.mkdir()
    assert wrong(tmp_path) == ["unreadable"]
