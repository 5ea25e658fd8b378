"""The index is a servant: whatever happens to it, the files are asked again."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.storage.conversations import START, Pen, answer, prompt
from tests.storage.surveyed_files import SurveyedFiles

from nplt_storage import RowQuery, SearchQuery, StorageUnavailable
from nplt_storage.index.tables import IndexTables
from nplt_storage.index.updates import ConversationGone, EntriesAdded, FileStamp
from nplt_storage.index.worker import ConversationIndex
from nplt_storage.rows import page_of
from nplt_storage.search import search_entries

ALL = RowQuery(limit=1000)
FOX = SearchQuery(text="fox", limit=1000)


def some_files(count: int = 5) -> SurveyedFiles:
    files = SurveyedFiles()
    for number in range(count):
        file = files.add(f"s{number}")
        question = prompt("t1", f"where is fox {number}?")
        file.add(*Pen().write_all([question, answer("t1", "a fox is everywhere")]))
    return files


async def caught_up(path: Path, files: SurveyedFiles) -> ConversationIndex:
    index = ConversationIndex(path, survey=files.survey)
    await index.catch_up()
    return index


async def assert_knows(index: ConversationIndex, files: SurveyedFiles) -> None:
    rows = [file.row for file in files.by_id.values()]
    assert await index.list("ada", ALL) == page_of(rows, ALL)
    assert await index.search("ada", FOX) == search_entries(files.messages("ada"), FOX)
    assert await index.stamps() == {file.session_id: file.stamp for file in files.by_id.values()}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "catalog.sqlite"


async def test_a_second_start_reads_nothing(path: Path) -> None:
    files = some_files()
    await (await caught_up(path, files)).close()
    assert files.entries_read == 10
    index = await caught_up(path, files)
    assert files.entries_read == 10
    await assert_knows(index, files)
    await index.close()


async def test_a_stale_index_reads_only_what_is_new(path: Path) -> None:
    files = some_files()
    await (await caught_up(path, files)).close()
    files.by_id["s1"].say("one more fox")
    files.by_id["s2"].rewrite(Pen().write_all([prompt("t1", "a dog"), answer("t1", "no")]))
    del files.by_id["s3"]
    files.add("s9").add(*Pen().write_all([prompt("t1", "a new fox")]))
    files.entries_read = 0
    index = await caught_up(path, files)
    assert files.entries_read == 4
    await assert_knows(index, files)
    await index.close()


def _lost(path: Path) -> None:
    path.unlink()


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _something_else(path: Path) -> None:
    path.write_bytes(b"no database at all" * 1000)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


def _other_version(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("UPDATE marks SET value = 'schema 0' WHERE name = 'made_by'")
    connection.execute("UPDATE conversations SET name = 'wrong', row = x'00'")
    connection.commit()
    connection.close()


def _pages_overwritten(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[3 * 4096 :] = b"\xa5" * (len(data) - 3 * 4096)
    path.write_bytes(data)


def _rows_unreadable(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("UPDATE conversations SET row = x'00'")
    connection.commit()
    connection.close()


@pytest.mark.parametrize(
    "harm",
    [_lost, _empty, _something_else, _cut, _other_version, _pages_overwritten, _rows_unreadable],
)
async def test_whatever_befell_the_database_it_is_the_same_again(
    path: Path, harm: Callable[[Path], None]
) -> None:
    files = some_files(40)
    await (await caught_up(path, files)).close()
    harm(path)
    index = await caught_up(path, files)
    await assert_knows(index, files)
    await index.close()
    index = await caught_up(path, files)
    await assert_knows(index, files)
    await index.close()


async def test_an_index_made_with_other_unicode_tables_is_built_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The words of a text may be others there, and those to be deleted must be those inserted."""
    files = some_files()
    with monkeypatch.context() as older:
        older.setattr("nplt_storage.index.database.unidata_version", "4.1.0")
        await (await caught_up(path, files)).close()
    files.entries_read = 0
    index = await caught_up(path, files)
    assert files.entries_read == 10
    await assert_knows(index, files)
    await index.close()


async def test_a_database_that_breaks_while_in_use_is_filled_again(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = some_files(40)
    index = await caught_up(path, files)
    for _ in range(2):
        broken = sqlite3.connect(path)
        broken.execute("DROP TABLE messages")
        broken.execute("DROP TABLE conversations")
        broken.commit()
        broken.close()
        file = files.by_id["s7"]
        entry = file.say("a late fox")
        index.note(file.row, file.stamp, entry)
        with caplog.at_level(logging.CRITICAL):
            rows = [file.row for file in files.by_id.values()]
            assert await index.list("ada", ALL) == page_of(rows, ALL)
    await index.close()


async def test_with_no_place_for_a_file_lists_are_kept_in_memory(tmp_path: Path) -> None:
    (tmp_path / "catalog.sqlite").mkdir()
    files = some_files()
    index = await caught_up(tmp_path / "catalog.sqlite", files)
    rows = [file.row for file in files.by_id.values()]
    assert await index.list("ada", ALL) == page_of(rows, ALL)
    with pytest.raises(StorageUnavailable):
        await index.search("ada", FOX)
    await index.close()


async def test_a_full_disk_stops_neither_notes_nor_questions(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = some_files()
    index = await caught_up(path, files)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    written = path.with_name(path.name + "-wal").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (written, limits[1]))
    try:
        for number in range(5):
            file = files.by_id[f"s{number}"]
            entry = file.say("fox on a full disk " * 100)
            index.note(file.row, file.stamp, entry)
            await assert_knows(index, files)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "can't be written or read now" in caplog.text
    await assert_knows(index, files)
    await index.close()
    files.entries_read = 0
    index = await caught_up(path, files)
    assert files.entries_read == 0, "written as soon as there was room"
    await assert_knows(index, files)
    await index.close()


async def test_last_accesses_survive_a_restart(path: Path) -> None:
    files = some_files()
    index = await caught_up(path, files)
    later = START + timedelta(days=3)
    index.touch("s1", later)
    await index.close()
    index = await caught_up(path, files)
    row = await index.row("s1")
    assert row is not None
    assert row.last_accessed == later
    await index.close()


async def test_a_closed_index_says_so_and_takes_no_notes(path: Path) -> None:
    files = some_files()
    index = await caught_up(path, files)
    await index.close()
    await index.close()
    index.forget("s1")
    with pytest.raises(StorageUnavailable):
        await index.row("s1")
    assert not path.with_name(path.name + "-wal").exists()


class HeldSurvey:
    """Waits to begin, so that a test can ask something behind it."""

    def __init__(self, files: SurveyedFiles) -> None:
        self._files = files
        self.may_begin = threading.Event()

    def __call__(self, known: Mapping[str, FileStamp]) -> Iterator[EntriesAdded | ConversationGone]:
        self.may_begin.wait()
        yield from self._files.survey(known)


async def test_questions_are_answered_while_a_survey_goes_on(path: Path) -> None:
    files = some_files(150)
    survey = HeldSurvey(files)
    index = ConversationIndex(path, survey=survey)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(index.catch_up())
        count = tasks.create_task(index.count("ada"))
        await asyncio.sleep(0)
        survey.may_begin.set()
    assert 0 < count.result() < 150
    await assert_knows(index, files)
    await index.close()


async def test_closing_ends_a_survey_that_is_not_done(path: Path) -> None:
    files = some_files(150)
    survey = HeldSurvey(files)
    index = ConversationIndex(path, survey=survey)
    surveyed = asyncio.create_task(index.catch_up())
    closed = asyncio.create_task(index.close())
    await asyncio.sleep(0)
    survey.may_begin.set()
    await closed
    with pytest.raises(StorageUnavailable):
        await surveyed
    assert files.entries_read < 300
    index = await caught_up(path, files)
    await assert_knows(index, files)
    assert files.entries_read == 300, "what was read before is not read again"
    await index.close()


async def test_the_index_is_readable_by_its_owner_only(path: Path) -> None:
    index = await caught_up(path, some_files())
    assert {file.stat().st_mode & 0o777 for file in path.parent.iterdir()} == {0o600}
    await index.close()


async def test_a_search_delays_no_other_query(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = some_files()
    index = await caught_up(path, files)
    begun, may_end, search = threading.Event(), threading.Event(), IndexTables.search

    def slow(*arguments: Any, **options: Any) -> Any:
        begun.set()
        may_end.wait()
        return search(*arguments, **options)

    monkeypatch.setattr(IndexTables, "search", slow)
    searching = asyncio.create_task(index.search("ada", FOX))
    await asyncio.to_thread(begun.wait)
    assert len((await index.list("ada", ALL)).rows) == 5
    file = files.add("late")
    index.note(file.row, file.stamp)
    assert await index.row("late") is not None, "what is written meanwhile is written"
    may_end.set()
    assert len((await searching).hits) == 10
    await index.close()


async def test_a_search_that_takes_too_long_is_given_up(path: Path) -> None:
    index = await caught_up(path, some_files(300))
    with pytest.raises(StorageUnavailable, match="took longer than 0 s"):
        await index.search("ada", replace(FOX, seconds_max=0.0))
    assert len((await index.search("ada", FOX)).hits) == 600
    await index.close()


@pytest.mark.parametrize("suffix", ["", "-wal"])
async def test_a_truncated_database_is_rebuilt(path: Path, suffix: str) -> None:
    files = some_files(120)
    index = await caught_up(path, files)
    cut = path.with_name(path.name + suffix)
    os.truncate(cut, cut.stat().st_size // 2)
    await index.search("ada", FOX)
    await index.close()
    again = await caught_up(path, files)
    await assert_knows(again, files)
    await again.close()
    assert not list(path.parent.glob("*-shm")), "nothing is mapped into memory"


async def test_no_other_program_can_hold_the_database_and_one_that_does_is_left_behind(
    path: Path,
) -> None:
    files = some_files()
    await (await caught_up(path, files)).close()
    with _held_by_another_program(path) as held:
        assert held
        index = await caught_up(path, files)
        await assert_knows(index, files)
    with _held_by_another_program(path) as held:
        assert not held
        await assert_knows(index, files)
    await index.close()


@contextmanager
def _held_by_another_program(path: Path) -> Iterator[bool]:
    program = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], timeout=0, isolation_level=None)
try:
    connection.execute("BEGIN EXCLUSIVE")
    print("held", flush=True)
except sqlite3.OperationalError:
    print("refused", flush=True)
sys.stdin.read()
"""
    command = [sys.executable, "-c", program, str(path)]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline() == "held\n"
