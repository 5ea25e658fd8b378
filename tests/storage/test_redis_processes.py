"""Real processes on one Redis: they contend, they are killed, and the record is sound."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.storage.store_makers import MemoryMaker
from tests.support.contending import contending
from tests.support.redis_server import RedisServer
from tests.support.server_process import clean_environment

from nplt_storage import ConversationReadOnly, RedisStore
from nplt_storage.testing.rules import Writer, entries_of, row_of, ticking_clock, without_gaps

PROGRAM = Path(__file__).parent / "redis_writer.py"
MAKE = MemoryMaker()
"""Only for its clock."""
prefixes = count()


class Process:
    def __init__(
        self, server: RedisServer, prefix: str, name: str, turns: int, *options: str
    ) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAM), server.url, prefix, name, str(turns), *options],
            stdout=subprocess.PIPE,
            text=True,
            env=clean_environment(),
        )

    def acknowledged(self, *, at_most: int | None = None) -> Iterator[str]:
        """Ids as they come, until it waits."""
        assert self._process.stdout is not None
        for place, line in enumerate(self._process.stdout, 1):
            if line.strip() == "waiting":
                return
            yield line.strip()
            if place == at_most:
                return

    def acknowledged_before(self, word: str) -> list[str]:
        assert self._process.stdout is not None
        return [line.strip() for line in iter(self._process.stdout.readline, f"{word}\n")]

    def stop(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> list[str]:
        """Gives the ids it had told nobody asked for yet."""
        self._process.kill()
        assert self._process.stdout is not None
        # Not `communicate`: it would pass over what was read ahead of the last line.
        rest = self._process.stdout.read()
        self._process.stdout.close()
        self._process.wait(timeout=30)
        return [line for line in rest.splitlines() if line != "waiting"]


@pytest.fixture
def prefix() -> str:
    return f"processes{next(prefixes)}:"


async def opened(server: RedisServer, prefix: str) -> RedisStore:
    return await RedisStore.open_url(server.url, clock=ticking_clock(), key_prefix=prefix)


async def test_two_processes_that_contend_lose_and_mix_nothing(
    redis_server: RedisServer, prefix: str
) -> None:
    store = await opened(redis_server, prefix)
    record = await store.create("s1", user="ada")
    await record.close()
    processes = [Process(redis_server, prefix, name, 20, "shares") for name in ("a", "b")]
    kept = [id_ for process in processes for id_ in process.acknowledged()]
    for process in processes:
        process.kill()
    found = await entries_of(store)
    assert without_gaps(found)
    assert sorted(entry.id for entry in found) == sorted(kept)
    assert len(kept) == 40
    assert (await row_of(store)).head_seq == 40
    for name in ("a", "b"):
        own = [entry.turn_id for entry in found if (entry.turn_id or "").startswith(name)]
        assert own == [f"{name}{number}" for number in range(20)]
    await store.close()


async def test_a_killed_writer_loses_no_acknowledged_entry(
    redis_server: RedisServer, prefix: str
) -> None:
    store = await opened(redis_server, prefix)
    record = await store.create("s1", user="ada")
    await record.close()
    process = Process(redis_server, prefix, "a", 100_000)
    acknowledged_ids = [*process.acknowledged(at_most=25), *process.kill()]
    found = await entries_of(store)
    assert without_gaps(found)
    # One more may be there: it was killed before it could say so.
    assert [entry.id for entry in found][: len(acknowledged_ids)] == acknowledged_ids
    assert len(found) - len(acknowledged_ids) in (0, 1)
    # It was a process of this machine: no need to wait until its lease has lapsed.
    writer = Writer.of(MAKE, await store.open("s1"))
    await writer.turns(1, 1)
    await store.close()


async def test_what_a_stopped_process_holds_is_anothers_after_its_lease_and_it_writes_no_more(
    redis_server: RedisServer, prefix: str
) -> None:
    store = await opened(redis_server, prefix)
    record = await store.create("s1", user="ada")
    await record.close()
    process = Process(redis_server, prefix, "a", 100_000, "1.0")
    acknowledged_ids = list(process.acknowledged(at_most=25))
    process.stop()
    deadline = time.monotonic() + 60
    while True:
        try:
            writer = Writer.of(MAKE, await store.open("s1"))
            break
        except ConversationReadOnly:
            assert time.monotonic() < deadline
    head_seq = writer.history.head_seq
    process.go_on()
    acknowledged_ids += process.acknowledged_before("refused")
    await writer.turns(1, 3)
    process.kill()
    found = await entries_of(store)
    assert without_gaps(found)
    assert [entry.id for entry in found][: len(acknowledged_ids)] == acknowledged_ids
    assert head_seq - len(acknowledged_ids) in (0, 1)
    assert found[head_seq:] == list(writer.history.entries)[-len(found) + head_seq :]
    await store.close()


async def test_what_a_killed_writer_was_saying_is_there(
    redis_server: RedisServer, prefix: str
) -> None:
    store = await opened(redis_server, prefix)
    record = await store.create("s1", user="ada")
    await record.close()
    process = Process(redis_server, prefix, "a", 2)
    assert len(list(process.acknowledged())) == 2
    process.kill()
    redis_server.pass_time(60, prefix=prefix)
    opened_again = await store.open("s1")
    assert opened_again.partial_answer is not None
    assert opened_again.partial_answer.turn_id == "a1"
    assert opened_again.partial_answer.text == "a was saying"
    await store.close()


@pytest.mark.parametrize(
    ("processes", "conversations"),
    [(5, 20), pytest.param(50, 1000, marks=pytest.mark.long)],
)
async def test_of_many_processes_one_gets_each_conversation(
    redis_server: RedisServer, prefix: str, processes: int, conversations: int
) -> None:
    store = await opened(redis_server, prefix)
    ids = [f"s{number}" for number in range(conversations)]
    for session_id in ids:
        await (await store.create(session_id, user="ada")).close()
    with contending(
        redis_server.url, prefix, processes=processes, conversations=conversations
    ) as wins:
        won = list(wins)
        with redis_server.client() as client:
            tokens: list[Any] = [client.hget(f"{prefix}{{{each}}}:meta", "token") for each in ids]
    assert sorted(won) == sorted(ids)
    assert all(token.startswith(b"2:") for token in tokens)
    await store.close()
