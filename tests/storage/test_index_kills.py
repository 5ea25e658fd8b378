"""An index whose process was killed at any moment opens, and catches up."""

from __future__ import annotations

import logging
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.storage.note_until_killed import Truth

from nplt_storage import RowQuery, SearchQuery
from nplt_storage.index.worker import ConversationIndex
from nplt_storage.rows import page_of
from nplt_storage.search import search_entries

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).with_name("note_until_killed.py")
KILLS = 20


@pytest.fixture
def writers(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(SCRIPT), str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def _run_and_kill(writers: subprocess.Popen[str], after: int) -> None:
    assert writers.stdin is not None
    assert writers.stdout is not None
    writers.stdin.write("another\n")
    writers.stdin.flush()
    writer = int(writers.stdout.readline())
    for _ in range(after):
        assert writers.stdout.readline()
    os.kill(writer, signal.SIGKILL)
    while writers.stdout.readline() != "gone\n":
        pass


async def test_a_killed_index_opens_and_is_brought_up_to_date(
    writers: subprocess.Popen[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    chance = random.Random(2026)
    for _ in range(KILLS):
        _run_and_kill(writers, chance.randrange(0, 60))
    truth = Truth(tmp_path / "truth")
    with caplog.at_level(logging.INFO):
        index = ConversationIndex(tmp_path / "catalog.sqlite", survey=truth.survey)
    assert caplog.text == "", "as it is, not made anew"
    known = await index.stamps()
    assert sum(stamp.head_seq for stamp in known.values()) > 0
    await index.catch_up()
    rows = [truth.row(name) for name in set(truth.names)]
    query = RowQuery(limit=100)
    assert await index.list("ada", query) == page_of(rows, query)
    messages = [(row, entry) for row in rows for entry in truth.entries(row.session_id)]
    search = SearchQuery(text="fox", limit=10_000)
    assert await index.search("ada", search) == search_entries(messages, search)
    await index.close()
