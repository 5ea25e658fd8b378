"""A prompt is found by its sender's name for it without reading a long record, and
where what is known of it is lost or wrong, by reading it."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.storage.conversations import Pen, answer, fault, prompt
from tests.storage.json_stores import open_store, row_of, write
from tests.storage.store_makers import MemoryMaker
from tests.support.redis_server import RedisServer

from nplt_storage import ConversationHistory, JsonFileStore, RedisStore, StorageUnavailable
from nplt_storage.entries import ModelInputEntry
from nplt_storage.files import store as resent
from nplt_storage.files.directory import INDEX_NAME
from nplt_storage.sent_before import sent_before
from nplt_storage.testing.rules import Writer, ticking_clock

prefixes = count()


def named(number: int) -> ModelInputEntry:
    return replace(prompt(f"t{number}", f"ask {number}"), message_id=f"m{number}")


@given(st.data())
def test_the_state_of_a_turn_is_the_same_with_and_without_the_whole_history(
    data: st.DataObject,
) -> None:
    pen = Pen()
    for number in range(data.draw(st.integers(1, 12))):
        running = [entry.turn_id or "" for entry in pen.history.unfinished_turns()]
        what = data.draw(st.sampled_from(["prompt", "end", "end", "rollback"]))
        if what == "end" and running:
            turn_id = data.draw(st.sampled_from(running))
            pen.write(answer(turn_id) if data.draw(st.booleans()) else fault(turn_id))
        elif what == "rollback" and not running and pen.history.head_seq > 1:
            to_seq = data.draw(st.integers(1, pen.history.head_seq - 1))
            pen.write(pen.history.rollback_to(to_seq))
        else:
            pen.write(named(number))
    history = pen.history
    for entry in history.active:
        if isinstance(entry, ModelInputEntry):
            found = sent_before(history.entries[entry.seq - 1 :], hidden=history.hidden)
            assert found is not None
            assert (found.seq, found.text) == (entry.seq, entry.content)
            assert found.state == history.turn_state(found.turn_id)


# Files


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[JsonFileStore]:
    store = await open_store(tmp_path)
    record = await store.create("s1", user="local")
    history = ConversationHistory("s1")
    for number in range(1, 6):
        await write(record, history, named(number), answer(f"t{number}"))
    yield store
    await store.close()


async def seqs(store: JsonFileStore | RedisStore) -> list[int | None]:
    found = [await store.prompt_by_message_id("s1", f"m{number}") for number in (1, 3, 5, 7)]
    return [None if each is None else each.seq for each in found]


async def test_the_file_is_not_read_through_for_what_the_index_knows(
    store: JsonFileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(resent, "all_prompts")
    assert await seqs(store) == [1, 5, 9, None]


def _harm(tmp_path: Path, change: str) -> None:
    database = sqlite3.connect(tmp_path / INDEX_NAME)
    with database:
        assert database.execute(change).rowcount > 0
    database.close()


@pytest.mark.parametrize(
    "change",
    [
        "DELETE FROM prompts_known",
        "UPDATE prompts_known SET through = 8",
        "UPDATE prompts SET seq = seq + 2",
        "UPDATE prompts SET seq = 99",
    ],
)
async def test_what_the_index_knows_wrong_or_in_part_the_file_knows(
    store: JsonFileStore, tmp_path: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await row_of(store, "s1")  # all that was noted is in the database
    _harm(tmp_path, change)
    if "prompts_known" in change:
        _harm(tmp_path, "DELETE FROM prompts")
    assert await seqs(store) == [1, 5, 9, None]
    monkeypatch.delattr(resent, "all_prompts")  # it has learned from that
    assert await seqs(store) == [1, 5, 9, None]


async def test_a_gap_in_what_was_noted_is_noticed(
    store: JsonFileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.close()
    store = await open_store(store.directory.path)
    opened = await store.open("s1")
    pen = Pen(opened.history)
    note = store._directory.index.note
    monkeypatch.setattr(store._directory.index, "note", lambda *_: None)
    await write(opened.record, pen.history, named(6))
    monkeypatch.setattr(store._directory.index, "note", note)
    await write(opened.record, pen.history, answer("t6"), named(7))
    found = [await store.prompt_by_message_id("s1", f"m{number}") for number in (6, 7, 8)]
    assert [each and each.seq for each in found] == [11, 13, None]
    await store.close()


async def test_an_index_that_can_t_be_asked_is_not_needed(
    store: JsonFileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(session_id: str, message_id: str) -> None:
        raise StorageUnavailable("no")

    monkeypatch.setattr(store._directory.index, "prompt", broken)
    assert await seqs(store) == [1, 5, 9, None]


async def test_the_names_of_what_was_deleted_leave_the_index(
    store: JsonFileStore, tmp_path: Path
) -> None:
    await store.delete("s1")
    database = sqlite3.connect(tmp_path / INDEX_NAME)
    question = "SELECT (SELECT count(*) FROM prompts) + (SELECT count(*) FROM prompts_known)"
    with anyio.move_on_after(60):  # the index learns of it beside us
        while database.execute(question).fetchone() != (0,):
            await store.count("local")
    assert database.execute(question).fetchone() == (0,)
    database.close()


# Redis


@pytest.fixture
async def redis_store(redis_server: RedisServer) -> AsyncIterator[RedisStore]:
    store = await RedisStore.open_url(
        redis_server.url, clock=ticking_clock(), key_prefix=f"sent{next(prefixes)}:"
    )
    writer = await Writer.create(MemoryMaker(), store)
    for number in range(1, 6):
        await writer.write(named(number), answer(f"t{number}"))
    yield store
    await store.close()


async def test_a_stream_is_not_read_through_for_a_name(
    redis_store: RedisStore, lines_decoded: list[bytes]
) -> None:
    lines_decoded.clear()
    assert await seqs(redis_store) == [1, 5, 9, None]
    assert len(lines_decoded) == 3 * 2  # the prompt and its answer


async def test_names_that_redis_evicted_are_noted_again(
    redis_store: RedisStore, redis_server: RedisServer
) -> None:
    key = redis_store._keyspace.of("s1").prompts
    await redis_store.close()
    with redis_server.client() as client:
        assert client.delete(key) == 1
    again = await RedisStore.open_url(
        redis_server.url, clock=ticking_clock(), key_prefix=redis_store._keyspace.prefix
    )
    writer = Writer.of(MemoryMaker(), await again.open("s1"))
    await writer.write(named(6))  # so that there is one name, and not the others
    assert await seqs(again) == [1, 5, 9, None]
    with redis_server.client() as client:
        assert client.hlen(key) == 6
    await again.close()
