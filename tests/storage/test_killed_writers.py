"""A writer killed at any moment has lost nothing that it acknowledged."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.storage.json_stores import all_entries, open_store, rows

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).with_name("append_until_killed.py")
KILLS = 20


@pytest.fixture
def writers(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(SCRIPT), str(tmp_path), "s1"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def _run_and_kill(writers: subprocess.Popen[str], after: int) -> list[str]:
    """The acknowledged entries as `seq id`: all that came before the kill took effect."""
    assert writers.stdin is not None
    assert writers.stdout is not None
    writers.stdin.write("another\n")
    writers.stdin.flush()
    writer = int(writers.stdout.readline())
    acknowledged = [writers.stdout.readline() for _ in range(after)]
    os.kill(writer, signal.SIGKILL)
    while (line := writers.stdout.readline()) != "gone\n":
        acknowledged.append(line)
    return [line.strip() for line in acknowledged]


async def test_killing_the_writer_loses_nothing_acknowledged(
    writers: subprocess.Popen[str], tmp_path: Path
) -> None:
    chance = random.Random(2026)
    acknowledged: list[str] = []
    for _ in range(KILLS):
        acknowledged += _run_and_kill(writers, chance.randrange(1, 60))
    store = await open_store(tmp_path)
    stored = [f"{entry.seq} {entry.id}" for entry in await all_entries(store, "s1")]
    assert set(acknowledged) <= set(stored)
    assert len(set(acknowledged)) == len(acknowledged)
    assert len(stored) - len(acknowledged) <= KILLS, "at most one unacknowledged each time"
    (path,) = (tmp_path / "history").glob("*.json")
    assert len(json.loads(path.read_bytes())["messages"]) == len(stored)
    kept_up = await rows(store)
    await store.close()
    for index in tmp_path.glob("catalog.sqlite*"):
        index.unlink()
    store = await open_store(tmp_path)
    assert await rows(store) == kept_up, "the index kept up through all of it"
    await store.close()
