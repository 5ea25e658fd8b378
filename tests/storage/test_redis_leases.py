"""Several servers on one Redis: a conversation is one server's at a time, while that one lives."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from itertools import count

import pytest
import redis
from tests.storage.store_makers import MemoryMaker
from tests.support.redis_server import RedisServer

from nplt_storage import ConversationDamaged, ConversationReadOnly, RedisStore, WrittenElsewhere
from nplt_storage.redis import scripts
from nplt_storage.redis.connection import LEASE_SECONDS, Leases
from nplt_storage.testing.support import (
    Writer,
    answer,
    entries_of,
    ids_of,
    prompt,
    ticking_clock,
    turn,
)

MAKE = MemoryMaker()
"""Only for its clock."""
MOST_OF_A_LEASE = int(LEASE_SECONDS * 2 / 3)
prefixes = count()


@pytest.fixture
def prefix() -> str:
    return f"leases{next(prefixes)}:"


@pytest.fixture
async def one(redis_server: RedisServer, prefix: str) -> AsyncIterator[RedisStore]:
    store = await RedisStore.open_url(redis_server.url, clock=ticking_clock(), key_prefix=prefix)
    yield store
    await store.close()


@pytest.fixture
async def two(redis_server: RedisServer, prefix: str) -> AsyncIterator[RedisStore]:
    store = await RedisStore.open_url(redis_server.url, clock=ticking_clock(), key_prefix=prefix)
    yield store
    await store.close()


async def test_what_one_server_has_open_another_only_reads(
    one: RedisStore, two: RedisStore
) -> None:
    writer = await Writer.create(MAKE, one)
    await writer.write(prompt("t1"))
    with pytest.raises(ConversationReadOnly, match="another server has it open"):
        await two.open("s1")
    assert await entries_of(two) == list(writer.history.entries)
    assert await ids_of(two) == ["s1"]
    await writer.write(answer("t1"))


async def test_closed_by_one_server_it_is_there_for_another_and_back_again(
    one: RedisStore, two: RedisStore
) -> None:
    writer = await Writer.create(MAKE, one)
    for number, store in enumerate((two, one, two), 1):
        await writer.record.close()
        writer = Writer.of(MAKE, await store.open("s1"))
        await writer.turns(number, number)
    row = await one.row("s1")
    assert row is not None
    assert row.head_seq == sum(len(turn(number)) for number in (1, 2, 3))


async def test_a_server_that_closes_leaves_nothing_locked(
    one: RedisStore, two: RedisStore, redis_server: RedisServer, prefix: str
) -> None:
    await one.create("s1", user="ada")
    await one.close()
    with redis_server.client() as client:
        assert not client.exists(f"{prefix}s1:owner")
    await two.open("s1")


async def test_who_slept_through_its_lease_is_refused_though_nothing_was_written_yet(
    one: RedisStore, two: RedisStore, redis_server: RedisServer, prefix: str
) -> None:
    sleeper = await Writer.create(MAKE, one)
    await sleeper.write(prompt("t1"))
    redis_server.pass_time(60, prefix=prefix)
    heir = Writer.of(MAKE, await two.open("s1"))
    with pytest.raises(WrittenElsewhere):
        await sleeper.write(answer("t1", "from one who slept"))
    sleeper.record.journal_delta("t1", 0, "text", "from one who slept")
    await sleeper.record.close()
    with redis_server.client() as client:
        assert not client.exists(f"{prefix}s1:live")
    await heir.write(answer("t1"))
    assert await entries_of(two) == list(heir.history.entries)


async def test_who_slept_and_was_not_missed_goes_on(
    one: RedisStore, two: RedisStore, redis_server: RedisServer, prefix: str
) -> None:
    sleeper = await Writer.create(MAKE, one)
    redis_server.pass_time(60, prefix=prefix)
    await sleeper.turns(1, 1)
    with pytest.raises(ConversationReadOnly):
        await two.open("s1")


@pytest.mark.parametrize("by", ["an entry", "the clock"])
async def test_a_lease_is_renewed(
    one: RedisStore, two: RedisStore, redis_server: RedisServer, prefix: str, by: str
) -> None:
    writer = await Writer.create(MAKE, one)
    for number in range(3):
        redis_server.pass_time(MOST_OF_A_LEASE, prefix=prefix)
        if by == "an entry":
            await writer.write(prompt(f"t{number}"))
        else:
            one._leases.renew()
    with pytest.raises(ConversationReadOnly):
        await two.open("s1")


async def test_what_was_closed_or_deleted_is_not_renewed(one: RedisStore, two: RedisStore) -> None:
    record = await one.create("s1", user="ada")
    await one.create("s2", user="ada")
    await record.close()
    await one.delete("s2")
    one._leases.renew()
    assert (await two.open("s1")).row.session_id == "s1"
    assert (await two.create("s2", user="ada")).session_id == "s2"


async def test_a_thread_renews_what_is_kept(
    one: RedisStore, redis_server: RedisServer, prefix: str
) -> None:
    await one.create("s1", user="ada")
    leases = Leases(one._connection, seconds=0.03)
    leases.keep(f"{prefix}s1")
    deadline = time.monotonic() + 30
    with redis_server.client() as client:
        client.delete(f"{prefix}s1:owner")
        while client.get(f"{prefix}s1:owner") != leases.arguments[0].encode():
            assert time.monotonic() < deadline
    leases.close()


async def test_an_opening_that_failed_leaves_nothing_locked(
    one: RedisStore, two: RedisStore, redis_server: RedisServer, prefix: str
) -> None:
    writer = await Writer.create(MAKE, one)
    await writer.turns(1, 1)
    await writer.record.close()
    with redis_server.client() as client:
        client.delete(f"{prefix}s1:log")
    for store in (one, two):
        with pytest.raises(ConversationDamaged):
            await store.open("s1")


async def test_an_opening_whose_answer_was_lost_does_not_lock_its_own_server_out(
    one: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await (await one.create("s1", user="ada")).close()
    run = one._connection.run

    def lost(script: str, keys: list[str], *arguments: bytes) -> object:
        answer = run(script, keys, *arguments)
        if script == scripts.OPEN:
            monkeypatch.undo()
            raise redis.TimeoutError
        return answer

    monkeypatch.setattr(one._connection, "run", lost)
    with pytest.raises(Exception, match="does not answer"):
        await one.open("s1")
    await Writer.of(MAKE, await one.open("s1")).turns(1, 1)
