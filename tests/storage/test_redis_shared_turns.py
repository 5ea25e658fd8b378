"""The slots of running turns that several servers share, and when a server keeps a free one."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import anyio
import pytest
from tests.support.redis_server import RedisServer

from nplt_storage import RedisStore
from nplt_storage.redis import shared_turns
from nplt_storage.testing.rules import ticking_clock

SECONDS_MAX = 30


@pytest.fixture
def prefix() -> str:
    return f"{uuid4().hex}:"


@pytest.fixture
async def store(redis_server: RedisServer, prefix: str) -> AsyncIterator[RedisStore]:
    store = await RedisStore.open_url(redis_server.url, clock=ticking_clock(), key_prefix=prefix)
    yield store
    await store.close()


def slots_in(redis_server: RedisServer, prefix: str) -> list[str]:
    with redis_server.client() as client:
        found: Any = client.zrange(f"{prefix}@turns:ada", 0, -1)
        return [bytes(each).decode() for each in found]


async def wait_for_slots(redis_server: RedisServer, prefix: str, slots: list[str]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while (found := slots_in(redis_server, prefix)) != slots:
        assert time.monotonic() < deadline, found
        await anyio.sleep(0.01)


async def test_a_turn_that_begins_at_once_takes_the_slot_of_the_one_before(
    store: RedisStore, redis_server: RedisServer, prefix: str
) -> None:
    assert await store.take_turn("ada", "t1", 3)
    store.end_turn("ada", "t1")
    assert await store.take_turn("ada", "t2", 3)
    assert slots_in(redis_server, prefix) == ["t1"]
    store._turns.keep()
    assert slots_in(redis_server, prefix) == ["t1"]
    store.end_turn("ada", "t2")
    await wait_for_slots(redis_server, prefix, [])


async def test_two_turns_do_not_take_the_same_slot(
    store: RedisStore, redis_server: RedisServer, prefix: str
) -> None:
    assert await store.take_turn("ada", "t1", 3)
    store.end_turn("ada", "t1")
    assert await store.take_turn("ada", "t2", 3)
    assert await store.take_turn("ada", "t3", 3)
    assert slots_in(redis_server, prefix) == ["t1", "t3"]


async def test_the_last_slot_of_a_user_is_free_for_other_servers_at_once(
    store: RedisStore, redis_server: RedisServer, prefix: str
) -> None:
    assert await store.take_turn("ada", "t1", 1)
    store.end_turn("ada", "t1")
    store._sender.flush()
    assert slots_in(redis_server, prefix) == []


async def test_redis_is_asked_again_when_it_is_not_known_any_more_whether_others_are_left(
    store: RedisStore, redis_server: RedisServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await store.take_turn("ada", "t1", 3)
    store.end_turn("ada", "t1")
    monkeypatch.setattr(shared_turns, "monotonic", lambda: time.monotonic() + 10)
    assert await store.take_turn("ada", "t2", 3)
    assert "t2" in slots_in(redis_server, prefix)
    await wait_for_slots(redis_server, prefix, ["t2"])


async def test_a_store_that_closes_returns_its_free_slots(
    redis_server: RedisServer, prefix: str
) -> None:
    store = await RedisStore.open_url(redis_server.url, clock=ticking_clock(), key_prefix=prefix)
    assert await store.take_turn("ada", "t1", 3)
    store.end_turn("ada", "t1")
    await store.close()
    assert slots_in(redis_server, prefix) == []
