"""Several servers on one Redis: a conversation is one server's at a time, while that one lives."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import pytest
import redis
from msgspec.structs import replace
from tests.storage.store_makers import MemoryMaker
from tests.support.redis_server import RedisServer

from nplt_storage import (
    BadEntry,
    ConversationDamaged,
    ConversationHeld,
    ConversationReadOnly,
    RedisStore,
    StorageUnavailable,
    WrittenElsewhere,
)
from nplt_storage.durations import boot_time
from nplt_storage.redis import ownership, scripts
from nplt_storage.redis.ownership import LEASE_SECONDS, Leases, Server
from nplt_storage.testing.rules import (
    START,
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


def everything(client: redis.Redis, prefix: str) -> dict[Any, bytes | None]:
    return {key: client.dump(key) for key in client.keys(f"{prefix}{{s1}}:*")}


def generation(client: redis.Redis, prefix: str) -> int:
    token: Any = client.hget(f"{prefix}{{s1}}:meta", "token")
    return int(token.partition(b":")[0])


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
        assert not client.exists(f"{prefix}{{s1}}:owner")
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
    assert not await sleeper.journal("t1", 0, "text", "from one who slept")
    await sleeper.record.close()
    with redis_server.client() as client:
        assert not client.exists(f"{prefix}{{s1}}:live")
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
    writer = await Writer.create(MAKE, one)
    owned = writer.record.owned  # type: ignore[attr-defined]
    leases = Leases(one._connection, seconds=3600.0)
    leases._seconds = 0.03
    leases.keep(owned)
    deadline = time.monotonic() + 30
    with redis_server.client() as client:
        while client.ttl(f"{prefix}{{s1}}:owner") < 1800:
            assert time.monotonic() < deadline
    leases.close()


async def test_renewing_never_brings_an_owner_back(
    one: RedisStore, redis_server: RedisServer, prefix: str
) -> None:
    await Writer.create(MAKE, one)
    with redis_server.client() as client:
        client.delete(f"{prefix}{{s1}}:owner")
        one._leases.renew()
        assert not client.exists(f"{prefix}{{s1}}:owner")


async def test_every_acquisition_is_a_generation_of_its_own(
    one: RedisStore, two: RedisStore, redis_server: RedisServer, prefix: str
) -> None:
    await (await one.create("s1", user="ada")).close()
    tokens: list[Any] = []
    with redis_server.client() as client:
        for store in (two, one, two):
            opened = await store.open("s1")
            tokens.append(client.hget(f"{prefix}{{s1}}:owner", "token"))
            assert client.hget(f"{prefix}{{s1}}:meta", "token") == tokens[-1]
            await opened.record.close()
    assert [token.partition(b":")[0] for token in tokens] == [b"2", b"3", b"4"]
    assert len({token.partition(b":")[2] for token in tokens}) == 3


async def test_a_fenced_owner_changes_nothing_any_more(
    one: RedisStore, two: RedisStore, redis_server: RedisServer, prefix: str
) -> None:
    """It was stopped, and does not know how long: only Redis can refuse it."""
    frozen = await Writer.create(MAKE, one)
    await frozen.turns(1, 1)
    await frozen.write(prompt("t2"))
    redis_server.pass_time(60, prefix=prefix)
    heir = Writer.of(MAKE, await two.open("s1"))
    with redis_server.client() as client:
        before = everything(client, prefix)
        with pytest.raises(WrittenElsewhere):
            await frozen.write(answer("t2", "too late"))
        with pytest.raises(WrittenElsewhere):
            await frozen.record.keep_blob(b"too late")
        with pytest.raises(WrittenElsewhere):
            await frozen.record.redact(1, at=START)
        assert not await frozen.journal("t2", 0, "text", "too late")
        with pytest.raises(ConversationHeld):
            await one.delete("s1")
        left = client.pttl(f"{prefix}{{s1}}:owner")
        one._leases.renew()
        assert client.pttl(f"{prefix}{{s1}}:owner") <= left
        await frozen.record.close()
        assert everything(client, prefix) == before
    await heir.write(answer("t2"))
    assert await entries_of(two) == list(heir.history.entries)


async def test_past_its_lease_an_owner_acquires_again_before_it_writes(
    one: RedisStore, redis_server: RedisServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its own clock, whatever Redis says."""
    writer = await Writer.create(MAKE, one)
    await writer.write(prompt("t1"))
    monkeypatch.setattr(one._leases, "clock", lambda: boot_time() + 60)
    with redis_server.client() as client:
        ran: list[str] = []
        run = one._connection.run

        def noted(script: str, *arguments: Any) -> object:
            ran.append(script)
            return run(script, *arguments)

        monkeypatch.setattr(one._connection, "run", noted)
        await writer.write(answer("t1"))
        assert ran == [scripts.RECLAIM, scripts.APPEND]
        assert generation(client, prefix) == 2


async def test_past_its_lease_an_owner_acquires_again_before_its_answer_may_be_shown(
    one: RedisStore, redis_server: RedisServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = await Writer.create(MAKE, one)
    await writer.write(prompt("t1"))
    monkeypatch.setattr(one._leases, "clock", lambda: boot_time() + 60)
    assert await writer.journal("t1", 0, "text", "so far")
    assert b"so far" in redis_server.call("GET", f"{prefix}{{s1}}:live")
    with redis_server.client() as client:
        assert generation(client, prefix) == 2


async def test_an_owner_without_a_reply_to_its_lease_request_asks_again(
    one: RedisStore, redis_server: RedisServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = await Writer.create(MAKE, one)
    redis_server.pass_time(60, prefix=prefix)
    run = one._connection.run

    def lost(script: str, keys: list[str], *arguments: bytes) -> object:
        answer = run(script, keys, *arguments)
        if script == scripts.RECLAIM:
            monkeypatch.undo()
            raise redis.TimeoutError
        return answer

    monkeypatch.setattr(one._connection, "run", lost)
    with pytest.raises(StorageUnavailable):
        await writer.write(prompt("t1"))
    await writer.write(prompt("t1"))
    with redis_server.client() as client:
        assert generation(client, prefix) == 2


async def test_who_is_refused_learns_the_address_of_the_owner(
    redis_server: RedisServer, prefix: str, two: RedisStore
) -> None:
    one = await RedisStore.open_url(
        redis_server.url, clock=ticking_clock(), key_prefix=prefix, advertise="10.0.0.1:9999"
    )
    await one.create("s1", user="ada")
    for refused in (two.open, two.delete):
        with pytest.raises(ConversationHeld, match=r"the server at 10\.0\.0\.1:9999") as caught:
            await refused("s1")
        assert caught.value.address == "10.0.0.1:9999"
    await one.close()


async def refusal(store: RedisStore) -> ConversationHeld:
    with pytest.raises(ConversationHeld) as caught:
        await store.open("s1")
    return caught.value


async def test_only_the_owner_that_was_seen_is_asked_and_asking_makes_no_owner(
    one: RedisStore, two: RedisStore, redis_server: RedisServer, prefix: str
) -> None:
    record = await one.create("s1", user="ada")
    seen = await refusal(two)
    await record.close()
    with redis_server.client() as client:
        await two.ask_for(seen)
        assert not client.exists(f"{prefix}{{s1}}:owner")
        await one.open("s1")
        before = everything(client, prefix)
        await two.ask_for(seen)
        assert everything(client, prefix) == before
        left = client.pttl(f"{prefix}{{s1}}:owner")
        await two.ask_for(await refusal(two))
        assert client.hexists(f"{prefix}{{s1}}:owner", "wanted")
        assert 0 < client.pttl(f"{prefix}{{s1}}:owner") <= left


async def test_a_requested_conversation_goes_to_the_requesting_server_when_closed(
    one: RedisStore,
    two: RedisStore,
    redis_server: RedisServer,
    prefix: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writer = await Writer.create(MAKE, one)
    record: Any = writer.record
    await two.ask_for(await refusal(two))
    one._leases.renew()
    assert record.wanted_within is None  # it has just got it
    monkeypatch.setattr(one._leases, "clock", lambda: boot_time() + LEASE_SECONDS)
    one._leases.renew()
    within: Any = record.wanted_within
    assert 0 < within < LEASE_SECONDS
    await writer.turns(1, 1)
    await writer.record.close()
    await refusal(one)
    heir = Writer.of(MAKE, await two.open("s1"))
    with redis_server.client() as client:
        assert set(client.hkeys(f"{prefix}{{s1}}:owner")) == {b"token", b"server"}
    await heir.turns(2, 2)
    with pytest.raises(ConversationReadOnly):
        await writer.turns(3, 3)


async def test_a_request_for_ownership_that_is_not_used_expires_soon(
    one: RedisStore, two: RedisStore, redis_server: RedisServer, prefix: str
) -> None:
    record: Any = await one.create("s1", user="ada")
    record.owned.since -= LEASE_SECONDS
    await two.ask_for(await refusal(two))
    one._leases.renew()
    await record.close()
    redis_server.pass_time(60, prefix=prefix)
    await one.open("s1")


async def test_a_wish_that_is_not_repeated_is_forgotten(
    one: RedisStore, two: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    record: Any = await one.create("s1", user="ada")
    record.owned.since -= LEASE_SECONDS
    held = await refusal(two)
    await two.ask_for(held)
    one._leases.renew()
    assert record.wanted_within is not None
    monkeypatch.setattr(two._leases, "milliseconds", 0)
    await two.ask_for(held)  # until now
    one._leases.renew()
    assert record.wanted_within is None
    await record.close()
    await one.open("s1")


def test_only_a_process_of_this_machine_is_known_to_be_dead() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        there = ownership._process(process.pid)
        assert there is not None
        assert not Server(id="s", process=there).is_dead
    assert Server(id="s", process=there).is_dead
    assert not Server(id="s", process=replace(there, boot="another")).is_dead
    assert not Server(id="s", process=replace(there, namespace="another")).is_dead
    assert not Server(id="s").is_dead


def test_a_pid_that_was_given_to_another_process_is_not_the_one_that_died() -> None:
    here = ownership._process(os.getpid())
    assert here is not None
    assert not Server(id="s", process=here).is_dead
    assert Server(id="s", process=replace(here, started="0")).is_dead


async def test_a_prompt_that_is_there_is_not_written_a_second_time(one: RedisStore) -> None:
    writer = await Writer.create(MAKE, one)
    sent = replace(prompt("t1"), message_id="m1")
    await writer.write(sent, answer("t1"))
    with pytest.raises(BadEntry, match="message_id"):
        await writer.write(replace(prompt("t2"), message_id="m1"))
    await writer.write(replace(prompt("t2"), message_id="m2"))


async def test_an_opening_that_failed_leaves_nothing_locked(
    one: RedisStore, two: RedisStore, redis_server: RedisServer, prefix: str
) -> None:
    writer = await Writer.create(MAKE, one)
    await writer.turns(1, 1)
    await writer.record.close()
    with redis_server.client() as client:
        client.delete(f"{prefix}{{s1}}:log")
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
