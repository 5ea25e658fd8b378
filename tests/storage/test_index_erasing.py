"""What was redacted is gone from the bytes of the index, not only from sight."""

from __future__ import annotations

import os
import signal
import threading
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from msgspec.structs import replace
from tests.storage.conversations import Pen, answer, prompt
from tests.storage.surveyed_files import SurveyedFile, SurveyedFiles

from nplt_storage import SearchHit, SearchQuery
from nplt_storage.entries import Entry, ModelInputEntry
from nplt_storage.index import full_text
from nplt_storage.index.worker import ConversationIndex
from nplt_storage.search import hit_without_snippet, searched_text

SECRET = "hunter2swordfish"
TRACE = b"swordfish"
"""A word's beginning is left out where its neighbour in the index has the same."""


def bytes_in(directory: Path) -> bytes:
    return b"".join(file.read_bytes() for file in directory.iterdir())


def messages(count: int, *, secret_at: int) -> list[Entry]:
    def content(number: int) -> str:
        # Now and then one that is long enough to be packed.
        words = f"word{number} other{number * 7} " * (200 if number % 10 == 0 else 3)
        return f"my password is {SECRET} {words}" if number == secret_at else words

    pen = Pen()
    return [
        entry
        for number in range(count)
        for entry in pen.write_all([prompt(f"t{number}", content(number)), answer(f"t{number}")])
    ]


def without_secret(entries: list[Entry]) -> list[Entry]:
    return [
        replace(entry, content="")
        if isinstance(entry, ModelInputEntry) and SECRET in entry.content
        else entry
        for entry in entries
    ]


@pytest.fixture
def files() -> SurveyedFiles:
    files = SurveyedFiles()
    for number in range(3):
        files.add(f"s{number}").add(*messages(60, secret_at=0 if number == 1 else -1))
    return files


@pytest.fixture
async def index(tmp_path: Path, files: SurveyedFiles) -> AsyncIterator[ConversationIndex]:
    index = ConversationIndex(tmp_path / "catalog.sqlite", survey=files.survey)
    await index.catch_up()
    yield index
    await index.close()


def redact(file: SurveyedFile) -> int:
    """Its number."""
    (seq,) = [
        entry.seq
        for entry in file.entries
        if isinstance(entry, ModelInputEntry) and SECRET in entry.content
    ]
    file.rewrite(without_secret(file.entries))
    assert SECRET not in repr(file.row)
    return seq


async def test_redacted_words_leave_the_files_at_once(
    index: ConversationIndex, files: SurveyedFiles, tmp_path: Path
) -> None:
    file = files.by_id["s1"]
    packed = zlib.compress(searched_text(file.entries[0]).encode(), 1)[:40]
    assert TRACE in bytes_in(tmp_path)
    assert packed in bytes_in(tmp_path)
    seq = redact(file)
    await index.redact(file.row, file.stamp, seq)
    assert TRACE not in bytes_in(tmp_path)
    assert packed not in bytes_in(tmp_path)
    assert (await index.search("ada", SearchQuery(text=SECRET))).hits == ()
    found = await index.search("ada", SearchQuery(text="word59"))
    assert len(found.hits) == 3, "all else can be found"


async def test_a_message_redacted_during_a_search_does_not_fail_the_search(
    index: ConversationIndex, files: SurveyedFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_found, is_redacted = threading.Event(), threading.Event()

    def pause(*message: Any) -> SearchHit:
        is_found.set()
        is_redacted.wait(30)
        return hit_without_snippet(*message)

    monkeypatch.setattr(full_text, "hit_without_snippet", pause)
    file = files.by_id["s1"]
    seq = redact(file)
    async with anyio.create_task_group() as tasks:

        async def search() -> None:
            found = await index.search("ada", SearchQuery(text=SECRET))
            assert [SECRET in hit.snippet for hit in found.hits] == [True]

        tasks.start_soon(search)
        await anyio.to_thread.run_sync(is_found.wait)
        tasks.start_soon(index.redact, file.row, file.stamp, seq)
        await anyio.wait_all_tasks_blocked()
        await index.known("s1")  # the message is removed by then
        is_redacted.set()
    assert (await index.search("ada", SearchQuery(text=SECRET))).hits == ()


async def test_a_word_redacted_as_soon_as_it_was_noted_leaves_too(
    index: ConversationIndex, files: SurveyedFiles, tmp_path: Path
) -> None:
    file = files.add("s9")
    file.add(*messages(1, secret_at=0))
    index.note(file.row, file.stamp, *file.entries)
    seq = redact(file)
    await index.redact(file.row, file.stamp, seq)
    redacted = files.by_id["s1"]
    seq = redact(redacted)
    await index.redact(redacted.row, redacted.stamp, seq)
    assert TRACE not in bytes_in(tmp_path)


async def test_words_of_a_file_that_was_replaced_leave_as_well(
    index: ConversationIndex, files: SurveyedFiles, tmp_path: Path
) -> None:
    redact(files.by_id["s1"])
    await index.catch_up()
    await index.redact(files.by_id["s0"].row, files.by_id["s0"].stamp, 2)
    assert TRACE not in bytes_in(tmp_path)


async def test_an_erasure_that_was_cut_off_is_finished_at_the_next_start(
    tmp_path: Path, files: SurveyedFiles
) -> None:
    async def begin_and_die() -> None:
        index = ConversationIndex(tmp_path / "catalog.sqlite", survey=files.survey)
        await index.catch_up()
        file = files.by_id["s1"]
        seq = redact(file)
        with anyio.move_on_after(0):
            await index.redact(file.row, file.stamp, seq)
        await index.row("s1")
        os.kill(os.getpid(), signal.SIGKILL)

    process = os.fork()
    if process == 0:
        try:
            anyio.run(begin_and_die)
        finally:
            os._exit(1)
    _, status = os.waitpid(process, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    redact(files.by_id["s1"])
    index = ConversationIndex(tmp_path / "catalog.sqlite", survey=files.survey)
    await index.catch_up()
    await index.redact(files.by_id["s0"].row, files.by_id["s0"].stamp, 2)
    assert TRACE not in bytes_in(tmp_path)
    await index.close()
