"""Lists are indexes beside the conversations: whoever reads them puts right what is out of date."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import timedelta
from itertools import count
from threading import Event
from typing import Any

import pytest
import redis
from tests.storage.store_makers import MemoryMaker
from tests.support.redis_server import RedisServer

from nplt_storage import Opened, RedisStore, RowQuery, SearchQuery, StorageUnavailable
from nplt_storage.entries import PinnedEntry
from nplt_storage.redis.user_lists import UserLists
from nplt_storage.testing.rules import START, Writer, answer, ids_of, prompt

MAKE = MemoryMaker()
prefixes = count()


@pytest.fixture
def prefix() -> str:
    return f"lists{next(prefixes)}:"


@pytest.fixture
async def store(redis_server: RedisServer, prefix: str) -> AsyncIterator[RedisStore]:
    store = await RedisStore.open_url(redis_server.url, clock=MAKE.clock, key_prefix=prefix)
    yield store
    await store.close()


def places(server: RedisServer, prefix: str, user: str = "ada") -> list[bytes]:
    with server.client() as client:
        found: Any = client.zrange(f"{prefix}@user:{user}", 0, -1)
        return list(found)


async def written(store: RedisStore, *ids: str) -> list[Writer]:
    writers = [await Writer.create(MAKE, store, session_id) for session_id in ids]
    for writer in writers:
        await writer.turns(1, 1)
    return writers


async def test_a_server_that_dies_before_the_index_is_written_leaves_a_list_that_mends(
    store: RedisStore, redis_server: RedisServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *_ = await written(store, "s1", "s2", "s3")
    assert await ids_of(store) == ["s3", "s2", "s1"]
    with monkeypatch.context() as patch:
        patch.setattr(UserLists, "moved", lambda self, before, after: None)
        await first.turns(2, 2)
    assert await ids_of(store) == ["s1", "s3", "s2"]
    assert len(places(redis_server, prefix)) == 3
    page = await store.list("ada", RowQuery(limit=1))
    assert [row.session_id for row in page.rows] == ["s1"]


async def test_a_prompt_of_a_server_that_dies_before_the_index_is_written_needs_attention(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    (writer,) = await written(store, "s1")
    await store.mark_seen("s1", 99)
    query = RowQuery(attention=True)
    assert (await store.list("ada", query)).rows == ()
    monkeypatch.setattr(UserLists, "moved", lambda self, before, after: None)
    await writer.write(prompt("t2", "hello"))
    assert [row.session_id for row in (await store.list("ada", query)).rows] == ["s1"]
    await writer.write(answer("t2", "hi"))  # it is unread now, and no reader has left it out
    assert [row.session_id for row in (await store.list("ada", query)).rows] == ["s1"]


async def test_one_that_belongs_further_down_is_listed_there_and_once(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *_ = await written(store, "s1", "s2", "s3")
    await first.write(PinnedEntry(pinned=True))
    assert await ids_of(store) == ["s1", "s3", "s2"]
    with monkeypatch.context() as patch:
        patch.setattr(UserLists, "moved", lambda self, before, after: None)
        await first.write(PinnedEntry(pinned=False))
        second = Writer.of(MAKE, await reopened(store, "s2"))
    await second.turns(2, 2)
    assert await ids_of(store) == ["s2", "s1", "s3"]


async def reopened(store: RedisStore, session_id: str) -> Opened:
    writer = store._writers[session_id]
    assert writer is not None
    await writer.close()
    return await store.open(session_id)


async def test_a_conversation_whose_creation_failed_is_in_no_list(
    store: RedisStore, redis_server: RedisServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = store._connection.run

    def refused(script: str, keys: list[str], *arguments: bytes) -> object:
        raise redis.ConnectionError

    monkeypatch.setattr(store._connection, "run", refused)
    with pytest.raises(StorageUnavailable):
        await store.create("s1", user="ada")
    monkeypatch.setattr(store._connection, "run", run)
    assert await ids_of(store) == []
    assert await store.count("ada") == 0
    assert len(places(redis_server, prefix)) == 1  # it may be about to appear
    monkeypatch.setattr(store._rows, "_clock", lambda: START + timedelta(days=365))
    assert await ids_of(store) == []
    assert places(redis_server, prefix) == []


async def test_a_list_that_redis_can_not_write_now_is_written_with_the_next_entry(
    store: RedisStore, redis_server: RedisServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await written(store, "s1", "s2")

    def refused(commands: object) -> object:
        raise redis.ConnectionError

    with monkeypatch.context() as patch:
        patch.setattr(store._connection, "call_many", refused)
        await first.turns(2, 2)
        store._lists.flush()
    before = places(redis_server, prefix)
    await second.turns(2, 2)
    store._lists.flush()
    after = places(redis_server, prefix)
    assert len(before) == len(after) == 2
    assert not set(before) & set(after)


async def test_the_lists_of_many_conversations_are_written_in_one_round_trip(
    store: RedisStore, redis_server: RedisServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    writers = await written(store, "s1", "s2", "s3")
    store._lists.flush()
    call_many, may_go, sizes = store._connection.call_many, Event(), list[int]()

    def noted(commands: Iterable[Sequence[bytes | str | int]]) -> list[Any]:
        commands = list(commands)
        sizes.append(len(commands))
        return call_many(commands)

    def wait() -> None:
        may_go.wait(30)

    store._lists.post(wait)
    monkeypatch.setattr(store._connection, "call_many", noted)
    for writer in writers:
        await writer.turns(2, 2)
    may_go.set()
    store._lists.flush()
    assert len(sizes) == 1
    assert await ids_of(store) == ["s3", "s2", "s1"]
    assert len(places(redis_server, prefix)) == 3


async def test_entries_do_not_queue_up_for_a_list_that_can_not_be_written(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    (writer,) = await written(store, "s1")
    tried, is_back = Event(), Event()

    def hanging(commands: object) -> object:
        tried.set()
        is_back.wait(30)
        raise redis.TimeoutError

    monkeypatch.setattr(store._connection, "call_many", hanging)
    await writer.turns(2, 2)
    tried.wait(30)
    await writer.turns(3, 12)
    assert store._lists._jobs.qsize() <= 1
    is_back.set()


async def test_what_is_searched_is_found_at_an_older_place_too(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *_ = await written(store, "s1", "s2")
    with monkeypatch.context() as patch:
        patch.setattr(UserLists, "moved", lambda self, before, after: None)
        await first.turns(2, 2)
    page = await store.search("ada", SearchQuery(text="ask"))
    assert {hit.session_id for hit in page.hits} == {"s1", "s2"}
    assert len(page.hits) == 3


async def test_a_deleted_conversation_leaves_the_list_though_the_server_died_in_between(
    store: RedisStore, redis_server: RedisServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await written(store, "s1", "s2")
    with monkeypatch.context() as patch:
        patch.setattr(UserLists, "remove", lambda self, row: None)
        await store.delete("s1")
    assert await ids_of(store) == ["s2"]
    assert [each.row.session_id for each in await store.trash("ada")] == ["s1"]
    assert await store.count("ada") == 1


async def test_an_access_that_reaches_redis_while_the_row_is_read_is_seen(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await Writer.create(MAKE, store)
    row = await store.row("s1")
    assert row is not None
    at = row.last_accessed + timedelta(days=1)
    connection, ask = store._connection, store._connection.ask

    def ask_before_it_is_sent(*command: Any) -> Any:
        found = ask(*command)
        store._rows.send_accesses()
        return found

    monkeypatch.setattr(store._sender, "post", lambda send: None)
    store.touch("s1", at)
    monkeypatch.setattr(connection, "ask", ask_before_it_is_sent)
    seen = await store.row("s1")
    assert seen is not None
    assert seen.last_accessed == at
