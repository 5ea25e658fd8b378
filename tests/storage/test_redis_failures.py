"""Redis dies, hangs, or its answer is lost: nothing acknowledged is, and nothing comes twice."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import pytest
import redis
from msgspec.structs import replace
from tests.storage.store_makers import MemoryMaker
from tests.support.cutting_proxy import CuttingProxy
from tests.support.redis_server import RedisServer

from nplt_storage import (
    BadEntry,
    ConversationDamaged,
    ConversationExists,
    ConversationNotFound,
    PageQuery,
    RedisStore,
    StorageUnavailable,
    pages,
)
from nplt_storage.entries import CheckpointEntry, SystemInstructionEntry
from nplt_storage.pages import WindowSize
from nplt_storage.redis import record as record_module
from nplt_storage.redis.record import RedisRecord
from nplt_storage.rows import read_checkpoint
from nplt_storage.testing.rules import (
    Writer,
    answer,
    entries_of,
    ids_of,
    messages_among,
    prompt,
    row_of,
    ticking_clock,
)

MAKE = MemoryMaker()
"""Only for its clock."""
prefixes = count()


async def opened(url: str, prefix: str, *, timeout_seconds: float = 5.0) -> RedisStore:
    return await RedisStore.open_url(
        url, clock=ticking_clock(), key_prefix=prefix, timeout_seconds=timeout_seconds
    )


async def trimming(server: RedisServer, prefix: str) -> RedisStore:
    return await RedisStore.open_url(
        server.url, clock=ticking_clock(), key_prefix=prefix, max_turns=5
    )


async def trimmed(server: RedisServer, prefix: str) -> RedisStore:
    """With the conversation s1, closed, of which the newest turns are left."""
    store = await trimming(server, prefix)
    writer = await Writer.create(MAKE, store)
    await writer.turns(1, 8)
    await writer.record.close()
    return store


@pytest.fixture
def prefix() -> str:
    return f"failures{next(prefixes)}:"


@pytest.fixture
async def store(redis_server: RedisServer, prefix: str) -> AsyncIterator[RedisStore]:
    store = await opened(redis_server.url, prefix, timeout_seconds=0.5)
    yield store
    await store.close()


@pytest.fixture
def proxy(redis_server: RedisServer, tmp_path: Path) -> Iterator[CuttingProxy]:
    target = redis_server.directory / "redis.sock"
    proxy = CuttingProxy(tmp_path / "proxy.sock", target=target)
    yield proxy
    proxy.close()


async def until_back(store: RedisStore) -> None:
    """Waits until commands are sent again: while a failure is fresh, they fail at once."""
    with anyio.fail_after(30):
        while True:
            with suppress(StorageUnavailable):
                await store.row("s1")
                return
            await anyio.sleep(0.01)


async def test_a_dead_redis_is_reported_and_writes_go_on_when_it_is_back(
    store: RedisStore, redis_server: RedisServer
) -> None:
    writer = await Writer.create(MAKE, store)
    await writer.turns(1, 3)
    redis_server.kill()
    with pytest.raises(StorageUnavailable):
        await writer.write(prompt("t4"))
    with pytest.raises(StorageUnavailable):
        await store.page("s1", PageQuery())
    assert store.read_only_reason == "Redis can't be reached"
    redis_server.start()
    await writer.turns(4, 5)
    assert store.read_only_reason is None
    assert await entries_of(store) == list(writer.history.entries)


async def test_nothing_acknowledged_is_lost_when_redis_is_killed_again_and_again(
    start_redis: Callable[..., RedisServer],
) -> None:
    server = start_redis(appendfsync="always")
    store = await opened(server.url, "p:")
    assert "on its disk before it is acknowledged" in store.description.promise
    writer = await Writer.create(MAKE, store)
    for number in range(1, 6):
        await writer.turns(number, number)
        server.restart()
    assert await entries_of(store) == list(writer.history.entries)
    await store.close()


async def test_a_redis_that_hangs_is_not_waited_for_and_what_failed_is_not_there(
    store: RedisStore, redis_server: RedisServer
) -> None:
    writer = await Writer.create(MAKE, store)
    await writer.write(prompt("t1"))
    redis_server.freeze()
    try:
        with pytest.raises(StorageUnavailable, match="does not answer"):
            await writer.write(answer("t1", "half heard"))
    finally:
        redis_server.thaw()
    await until_back(store)
    # Redis wakes up and does what was still waiting in its socket; the writer
    # was told that it failed, so what it says next takes the place.
    (written,) = await writer.write(answer("t1", "said instead"))
    found = await entries_of(store)
    assert found[1:] == [written]
    assert (await row_of(store)).preview == "said instead"


async def test_an_entry_that_failed_is_not_there_after_closing_either(
    store: RedisStore, redis_server: RedisServer
) -> None:
    writer = await Writer.create(MAKE, store)
    (first,) = await writer.write(prompt("t1"))
    redis_server.freeze()
    try:
        with pytest.raises(StorageUnavailable):
            await writer.write(answer("t1", "half heard"))
    finally:
        redis_server.thaw()
    await until_back(store)
    await writer.record.close()
    assert await entries_of(store) == [first]
    again = Writer.of(MAKE, await store.open("s1"))
    await again.write(answer("t1", "once more"))
    assert (await row_of(store)).head_seq == 2


async def test_a_prompt_that_failed_is_not_found_by_its_message_id(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its sender would be given a receipt for an entry that the next one replaces."""
    writer = await Writer.create(MAKE, store)
    await writer.turns(1, 1)
    sent = replace(prompt("t2"), message_id="m2")
    run = store._connection.run

    def late(script: str, keys: Sequence[str], *arguments: bytes) -> object:
        run(script, keys, *arguments)
        raise redis.TimeoutError

    with monkeypatch.context() as patch:
        patch.setattr(store._connection, "run", late)
        with pytest.raises(StorageUnavailable):
            await writer.write(sent)
    assert (await row_of(store)).head_seq == 3
    assert await store.prompt_by_message_id("s1", "m2") is None
    other, again = await writer.write(prompt("t3"), sent)
    assert [other.seq, again.seq] == [3, 4]
    found = await store.prompt_by_message_id("s1", "m2")
    assert found is not None
    assert found.seq == 4


async def test_an_append_whose_answer_was_lost_is_there_once(
    proxy: CuttingProxy, prefix: str
) -> None:
    store = await opened(proxy.url, prefix)
    writer = await Writer.create(MAKE, store)
    for number in range(5):
        proxy.lose_reply_to(b"needle%d" % number)
        await writer.write(prompt(f"t{number}", f"needle{number}"))
    assert proxy.replies_lost == 5
    found = await entries_of(store)
    assert found == list(writer.history.entries)
    await store.close()


async def test_a_writer_whose_answer_was_lost_and_who_was_overtaken_learns_both(
    store: RedisStore, redis_server: RedisServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its entry is there, for another server went on from it; what it says next is refused."""
    writer = await Writer.create(MAKE, store)
    run = store._connection.run

    def lost_and_overtaken(script: str, keys: list[str], *arguments: bytes) -> object:
        monkeypatch.undo()
        run(script, keys, *arguments)
        with redis_server.client() as client:
            client.delete(f"{prefix}{{s1}}:owner")
            client.hset(f"{prefix}{{s1}}:meta", "token", "2:another")
        raise redis.ConnectionError

    monkeypatch.setattr(store._connection, "run", lost_and_overtaken)
    await writer.write(prompt("t1"))
    with pytest.raises(BadEntry, match="another server"):
        await writer.write(answer("t1"))


async def test_a_cut_whose_answer_was_lost_is_made_once_and_nothing_is_miscounted(
    proxy: CuttingProxy, prefix: str
) -> None:
    store = await RedisStore.open_url(
        proxy.url, clock=ticking_clock(), key_prefix=prefix, max_turns=2
    )
    writer = await Writer.create(MAKE, store)
    await writer.write(SystemInstructionEntry(content="be brief"))
    for number in range(1, 9):
        if number in (5, 6):  # the cuts before were heard of, so Redis knows the script
            proxy.lose_reply_to(b'"kind":"checkpoint"')
        await writer.turns(number, number)
    assert proxy.replies_lost == 2
    await writer.record.close()
    opened_again = await store.open("s1")
    history, row = opened_again.history, opened_again.row
    assert history.message_count == writer.history.message_count
    assert history.system_instruction == "be brief"
    checkpoint, *kept = await entries_of(store)
    assert {entry.turn_id for entry in kept} == {"t7", "t8"}
    assert row.first_seq == kept[0].seq == checkpoint.seq + 1
    assert isinstance(checkpoint, CheckpointEntry)
    state = read_checkpoint(checkpoint)
    assert state is not None
    assert state.row.message_count + len(messages_among(kept)) == row.message_count
    await store.close()


async def test_a_conversation_redis_has_lost_is_not_found(
    store: RedisStore, redis_server: RedisServer, prefix: str
) -> None:
    writer = await Writer.create(MAKE, store)
    await writer.write(prompt("t1"))
    with redis_server.client() as client:
        client.delete(*client.keys(f"{prefix}{{s1}}:*"))
    with pytest.raises(ConversationNotFound):
        await writer.write(answer("t1"))
    assert await ids_of(store) == []


@pytest.mark.parametrize("damage", ["flipped", "missing", "headless"])
async def test_damage_is_noticed_and_only_one_conversation_suffers(
    store: RedisStore, redis_server: RedisServer, prefix: str, damage: str
) -> None:
    for session_id in ("s1", "s2"):
        writer = await Writer.create(MAKE, store, session_id)
        await writer.turns(1, 3)
        await writer.record.close()
    log = f"{prefix}{{s1}}:log"
    with redis_server.client() as client:
        if damage == "flipped":
            found: Any = client.execute_command("XRANGE", log, "-", "+")
            lines = [bytes(fields[b"line"]) for _, fields in found]
            client.delete(log)
            for seq, line in enumerate(lines, 1):
                client.xadd(log, {"line": line.replace(b"say 2", b"sey 2")}, id=f"{seq}-0")
        else:
            client.xdel(log, "5-0" if damage == "missing" else "8-0")
    with pytest.raises(ConversationDamaged):
        await store.open("s1")
    assert sorted(await ids_of(store)) == ["s1", "s2"]
    assert (await row_of(store, "s1")).damaged
    assert not (await row_of(store, "s2")).damaged
    await Writer.of(MAKE, await store.open("s2")).turns(4, 4)


async def test_a_creation_whose_answer_was_lost_can_be_asked_for_again(
    store: RedisStore, redis_server: RedisServer
) -> None:
    redis_server.freeze()
    try:
        with pytest.raises(StorageUnavailable):
            await store.create("s1", user="bob")
    finally:
        redis_server.thaw()
    await until_back(store)
    writer = await Writer.create(MAKE, store)
    with pytest.raises(ConversationExists):
        await store.create("s1", user="ada")
    await writer.turns(1, 1)
    assert await ids_of(store) == ["s1"]
    assert await store.count("bob") == 0


async def test_a_creation_that_failed_does_not_take_what_another_server_created(
    store: RedisStore, redis_server: RedisServer, prefix: str
) -> None:
    redis_server.kill()
    with pytest.raises(StorageUnavailable):
        await store.create("s1", user="ada")
    redis_server.start()
    other = await opened(redis_server.url, prefix)
    await other.create("s1", user="bob")
    with pytest.raises(ConversationExists):
        await store.create("s1", user="ada")
    await other.close()


async def test_an_opening_that_failed_can_be_tried_again(
    redis_server: RedisServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await trimming(redis_server, prefix)
    writer = await Writer.create(MAKE, store)
    await writer.turns(1, 2)
    await writer.record.close()

    def slow(self: RedisRecord, entries: object) -> None:
        raise redis.TimeoutError

    with monkeypatch.context() as patch:
        patch.setattr(RedisRecord, "learn_turns", slow)
        with pytest.raises(StorageUnavailable):
            await store.open("s1")
    await Writer.of(MAKE, await store.open("s1")).turns(3, 3)
    await store.close()


async def test_damage_met_by_trimming_is_reported_each_time(
    redis_server: RedisServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await trimming(redis_server, prefix)
    monkeypatch.setattr(pages, "WindowSize", partial(WindowSize, entries=2))
    writer = await Writer.create(MAKE, store)
    await writer.turns(1, 3)
    await writer.record.close()
    with redis_server.client() as client:
        client.xdel(f"{prefix}{{s1}}:log", "2-0")
    for _ in range(2):
        with pytest.raises(ConversationDamaged):
            await store.open("s1")
    assert (await row_of(store)).damaged
    await store.close()


async def test_a_stream_that_redis_evicted_is_missed_by_the_next_entry(
    store: RedisStore, redis_server: RedisServer, prefix: str
) -> None:
    writer = await Writer.create(MAKE, store)
    await writer.turns(1, 1)
    with redis_server.client() as client:
        client.delete(f"{prefix}{{s1}}:log")
        with pytest.raises(ConversationDamaged):
            await writer.write(prompt("t2"))
        assert not client.exists(f"{prefix}{{s1}}:log")
    assert (await row_of(store)).damaged


async def test_an_unreadable_checkpoint_is_damage_and_the_conversation_still_opens(
    redis_server: RedisServer, prefix: str
) -> None:
    store = await trimmed(redis_server, prefix)
    with redis_server.client() as client:
        client.hset(f"{prefix}{{s1}}:meta", "checkpoint", "nonsense")
        with pytest.raises(ConversationDamaged, match="its checkpoint"):
            await store.open("s1")
        assert not client.exists(f"{prefix}{{s1}}:owner")
    assert (await row_of(store)).damaged
    await store.close()


@pytest.mark.parametrize("lost", ["stream", "beginning"])
async def test_what_redis_evicted_is_missed_when_it_is_opened(
    redis_server: RedisServer, prefix: str, lost: str
) -> None:
    store = await trimmed(redis_server, prefix)
    with redis_server.client() as client:
        if lost == "beginning":
            client.xtrim(f"{prefix}{{s1}}:log", maxlen=3, approximate=False)
        else:
            client.delete(f"{prefix}{{s1}}:log")
    with pytest.raises(ConversationDamaged, match="not there"):
        await store.open("s1")
    assert (await row_of(store)).damaged
    await store.close()


async def test_an_entry_is_in_whatever_becomes_of_the_cut_after_it(
    redis_server: RedisServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await trimming(redis_server, prefix)
    writer = await Writer.create(MAKE, store)
    with monkeypatch.context() as patch:
        patch.setattr(record_module, "checkpoint_after", None)
        await writer.turns(1, 8)
    assert await entries_of(store) == list(writer.history.entries)
    await writer.turns(9, 9)
    assert (await row_of(store)).first_seq > 1
    await store.close()


async def test_a_copy_of_a_trimmed_conversation_stays_itself_when_an_entry_is_erased(
    redis_server: RedisServer, prefix: str
) -> None:
    store = await trimming(redis_server, prefix)
    await (await Writer.create(MAKE, store)).turns(1, 8)
    origin = replace(await store.origin("s1"), user="bob")
    async with store.build("s2", origin) as builder:
        await builder.add(await entries_of(store))
    opened = await store.open("s2")
    await opened.record.redact(opened.row.head_seq, at=MAKE.clock())
    row = await row_of(store, "s2")
    assert (row.session_id, row.user) == ("s2", "bob")
    assert (await ids_of(store, "bob"), await ids_of(store)) == (["s2"], ["s1"])
    await store.close()


async def test_a_redis_without_memory_refuses_and_goes_on_when_it_has_some(
    start_redis: Callable[..., RedisServer],
) -> None:
    server = start_redis()
    store = await opened(server.url, "p:")
    assert "lost when it stops" in store.description.promise
    writer = await Writer.create(MAKE, store)
    with server.client() as client:
        client.config_set("maxmemory", "1")
        with pytest.raises(StorageUnavailable, match="no memory left"):
            await writer.write(prompt("t1"))
        assert await entries_of(store) == []
        client.config_set("maxmemory", "0")
    await writer.write(prompt("t1"))
    await store.close()
