"""Servers that share a Redis know of each other, and count a user's turns and prompts together."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import pytest
from tests.support.redis_server import RedisServer

from nplt_storage import RedisStore
from nplt_storage.store import MemberNote, Shared
from nplt_storage.testing.rules import ticking_clock

prefixes = count()


@pytest.fixture
def prefix() -> str:
    return f"members{next(prefixes)}:"


async def opened(server: RedisServer, prefix: str, advertise: str) -> RedisStore:
    return await RedisStore.open_url(
        server.url, clock=ticking_clock(), key_prefix=prefix, advertise=advertise
    )


@pytest.fixture
async def one(redis_server: RedisServer, prefix: str) -> AsyncIterator[RedisStore]:
    store = await opened(redis_server, prefix, "one:1")
    yield store
    await store.close()


@pytest.fixture
async def two(redis_server: RedisServer, prefix: str) -> AsyncIterator[RedisStore]:
    store = await opened(redis_server, prefix, "two:2")
    yield store
    await store.close()


def test_a_store_in_redis_is_one_that_servers_share(one: RedisStore) -> None:
    assert isinstance(one, Shared)


async def test_a_new_cluster_member_is_announced_with_its_open_conversations(
    one: RedisStore, two: RedisStore
) -> None:
    await one.join(MemberNote())
    await one.create("s1", user="ada")
    deadline = time.monotonic() + 30
    while [each.address for each in await two.members()] != ["one:1", "two:2"]:
        assert time.monotonic() < deadline
    one._membership.refresh(announces=True)
    first, second = await two.members()
    assert (first.id, first.owned) == (one.server_id, 1)
    assert (second.id, second.owned) == (two.server_id, 0)


async def test_who_closes_is_a_member_no_more(
    one: RedisStore, redis_server: RedisServer, prefix: str
) -> None:
    other = await opened(redis_server, prefix, "other:3")
    await other.join(MemberNote())
    other._membership.refresh(announces=True)
    assert len(await one.members()) == 2
    await other.close()
    assert [each.address for each in await one.members()] == ["one:1"]


async def test_who_does_not_say_so_again_is_a_member_no_more(
    one: RedisStore, two: RedisStore, redis_server: RedisServer, prefix: str
) -> None:
    one._membership.refresh(announces=True)
    with redis_server.client() as client:
        value: object = client.hget(f"{prefix}@members", one.server_id)
        assert isinstance(value, bytes)
        _, _, described = value.partition(b" ")
        client.hset(f"{prefix}@members", one.server_id, b"1 " + described)
        assert [each.address for each in await two.members()] == ["two:2"]
        assert not client.hexists(f"{prefix}@members", one.server_id)


async def test_a_store_that_is_only_read_is_no_member(
    one: RedisStore, two: RedisStore, redis_server: RedisServer, prefix: str
) -> None:
    await one.create("s1", user="ada")
    await one.members()
    assert [each.address for each in await two.members()] == ["two:2"]


async def test_a_users_turns_are_counted_over_all_servers(one: RedisStore, two: RedisStore) -> None:
    assert await one.take_turn("ada", "t1", 2)
    assert await two.take_turn("ada", "t2", 2)
    assert not await one.take_turn("ada", "t3", 2)
    assert await one.take_turn("bob", "t4", 2)
    assert await one.take_turn("ada", "t1", 2), "it has its place already"
    two.end_turn("ada", "t2")
    two._sender.flush()
    assert await one.take_turn("ada", "t3", 2)


async def test_the_turns_of_a_server_that_died_stop_counting_and_those_of_others_do_not(
    one: RedisStore, two: RedisStore, redis_server: RedisServer, prefix: str
) -> None:
    assert await one.take_turn("ada", "t1", 2)
    assert await two.take_turn("ada", "t2", 2)
    key = f"{prefix}@turns:ada"
    with redis_server.client() as client:
        client.zadd(key, {"t1": 1, "t2": int(time.time() * 1000) + 1000})
        before: Any = client.zscore(key, "t2")
        two._turns.keep()
        after: Any = client.zscore(key, "t2")
        assert after > before
    assert await two.take_turn("ada", "t3", 2)
    assert not await two.take_turn("ada", "t4", 2)


async def test_prompts_are_counted_over_all_servers_and_come_back_with_time(
    one: RedisStore, two: RedisStore, redis_server: RedisServer, prefix: str
) -> None:
    left = [await store.count_prompt("ada", 3.0) for store in (one, two, one, two)]
    assert [round(each) for each in left] == [2, 1, 0, -1]
    assert round(await one.count_prompt("bob", 3.0)) == 2
    with redis_server.client() as client:
        at: object = client.hget(f"{prefix}@rate:ada", "at")
        assert isinstance(at, bytes)
        client.hset(f"{prefix}@rate:ada", "at", int(at) - 40_000)
    assert round(await one.count_prompt("ada", 3.0)) == 0


async def test_ids_of_redacted_prompts_are_shared_and_bounded(
    one: RedisStore, two: RedisStore
) -> None:
    await one.note_redacted_prompts("ada", ["m-1", "m-2"], 3)
    await two.note_redacted_prompts("ada", ["m-1", "m-3", "m-4"], 3)
    assert await one.redacted_prompts("ada") == ["m-1", "m-3", "m-4"]
    assert await two.redacted_prompts("bob") == []


async def test_the_persistence_settings_of_redis_are_reported_as_a_promise(
    redis_server: RedisServer,
) -> None:
    store = await opened(redis_server, "promise:", "one:1")
    try:
        redis_server.call("CONFIG", "SET", "min-replicas-to-write", 1)
        await store.members()
        assert "min-replicas-to-write 1" in store.description.promise
        assert "last 10 s" in store.description.promise
    finally:
        redis_server.call("CONFIG", "SET", "min-replicas-to-write", 0)
        await store.close()


async def test_the_id_key_that_was_offered_first_is_the_one_all_servers_get(
    one: RedisStore, two: RedisStore
) -> None:
    first = await one.agreed_key(b"one's")
    assert first == b"one's" == await two.agreed_key(b"two's") == await one.agreed_key(b"later")
