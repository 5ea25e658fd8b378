"""What stands in Redis: under the prefix, as long as it should, and no word longer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import partial
from itertools import count

import pytest
import redis
from msgspec.structs import replace
from tests.storage.store_makers import MemoryMaker
from tests.support.redis_server import RedisServer

from nplt_storage import Origin, PageQuery, RedisStore, pages
from nplt_storage.entries import ClearEntry
from nplt_storage.pages import WindowSize, read_end
from nplt_storage.redis.streams import StreamSource
from nplt_storage.testing.rules import (
    START,
    Writer,
    answer,
    asking,
    drafted,
    entries_of,
    ids_of,
    looking,
    prompt,
    row_of,
    ticking_clock,
)

MAKE = MemoryMaker()
"""Only for its clock."""
prefixes = count()
MONTH_MILLISECONDS = 30 * 24 * 3600 * 1000


@pytest.fixture
def prefix() -> str:
    return f"keys{next(prefixes)}:"


@pytest.fixture
async def store(redis_server: RedisServer, prefix: str) -> AsyncIterator[RedisStore]:
    store = await RedisStore.open_url(redis_server.url, clock=ticking_clock(), key_prefix=prefix)
    yield store
    await store.close()


def left(client: redis.Redis, pattern: str) -> dict[bytes, int]:
    return {bytes(key): client.pttl(key) for key in client.keys(pattern)}  # type: ignore[arg-type]


async def full_conversation(store: RedisStore) -> Writer:
    """One that has a key of every sort."""
    writer = await Writer.create(MAKE, store)
    blob = await writer.record.keep_blob(b"sesame in a blob")
    await writer.turns(1, 4)
    await writer.write(prompt("a"), asking("a"), looking("a", "sesame", blob))
    assert await writer.journal("a", 1, "text", "so far")
    return writer


async def test_two_prefixes_are_two_worlds(redis_server: RedisServer, prefix: str) -> None:
    one, two = [
        await RedisStore.open_url(redis_server.url, clock=ticking_clock(), key_prefix=name)
        for name in (f"{prefix}one:", f"{prefix}two:")
    ]
    await (await Writer.create(MAKE, one)).turns(1, 2)
    await (await Writer.create(MAKE, two)).turns(1, 1)
    await one.delete("s1")
    assert await ids_of(one) == []
    assert await ids_of(two) == ["s1"]
    await one.close()
    await two.close()


async def test_every_key_is_under_the_prefix_and_none_is_left_over(
    start_redis: Callable[..., RedisServer],
) -> None:
    server = start_redis()
    store = await RedisStore.open_url(
        server.url, clock=ticking_clock(), key_prefix="mine:", max_turns=2
    )
    writer = await full_conversation(store)
    await writer.record.redact(writer.history.head_seq, at=START)
    async with store.build("s2", Origin(user="ada", created_at=START)) as builder:
        await builder.add(drafted(MAKE, 2))
    await writer.record.close()
    with server.client() as client:
        assert set(client.keys("*")) == {
            *(b"mine:{s1}:log", b"mine:{s1}:meta", b"mine:{s1}:live"),
            *(b"mine:{s2}:log", b"mine:{s2}:meta", b"mine:@user:ada", b"mine:@attention:ada"),
        }
        assert set(left(client, "*").values()) == {-1}
    await store.close()


async def test_all_keys_of_a_conversation_expire_at_the_same_time(
    redis_server: RedisServer, prefix: str
) -> None:
    store = await RedisStore.open_url(
        redis_server.url, clock=ticking_clock(), key_prefix=prefix, ttl_seconds=1000, max_turns=3
    )
    writer = await full_conversation(store)
    redis_server.pass_time(500, prefix=prefix)
    await writer.write(answer("a", call=1), prompt("b"))
    await writer.record.close()
    with redis_server.client() as client:
        times = left(client, f"{prefix}{{s1}}:*")
    assert len(times) == 3
    assert min(times.values()) > 900_000
    await store.close()


async def test_the_trash_is_emptied_after_thirty_days(
    store: RedisStore, redis_server: RedisServer, prefix: str
) -> None:
    await full_conversation(store)
    await store.delete("s1")
    with redis_server.client() as client:
        assert client.keys(f"{prefix}{{s1}}:*") == []
        times = left(client, f"{prefix}@trash:{{s1}}:*")
        assert len(times) == 4
        assert all(
            0.99 * MONTH_MILLISECONDS < time <= MONTH_MILLISECONDS for time in times.values()
        )
    await store.undelete("s1")
    with redis_server.client() as client:
        assert set(left(client, f"{prefix}{{s1}}:*").values()) == {-1}
        assert client.keys(f"{prefix}@trash:*") == []


async def test_redacted_words_are_in_no_key_and_in_no_file_of_redis(
    start_redis: Callable[..., RedisServer],
) -> None:
    server = start_redis(appendfsync="no")
    store = await RedisStore.open_url(server.url, clock=ticking_clock(), key_prefix="p:")
    writer = await full_conversation(store)
    await writer.write(answer("a", "sesame", call=1))
    assert any(b"sesame" in path.read_bytes() for path in server.directory.rglob("*.aof"))
    for seq in (writer.history.head_seq, writer.history.head_seq - 1):
        await writer.record.redact(seq, at=START)
    with server.client() as client:
        assert not any(b"sesame" in (client.dump(key) or b"") for key in client.keys("*"))
        while client.info("persistence")["aof_rewrite_in_progress"]:
            pass
    assert not any(b"sesame" in path.read_bytes() for path in server.directory.rglob("*.aof"))
    await store.close()


async def test_a_writer_that_missed_a_redaction_is_refused(
    store: RedisStore, redis_server: RedisServer, prefix: str
) -> None:
    """Else it would put the erased words back into the row."""
    other = await RedisStore.open_url(redis_server.url, clock=ticking_clock(), key_prefix=prefix)
    writer = await Writer.create(MAKE, store)
    await writer.write(prompt("t1", "sesame"))
    redis_server.pass_time(60, prefix=prefix)  # the writer was asleep
    eraser = await other.open("s1")
    await eraser.record.redact(1, at=START)
    await eraser.record.close()
    with pytest.raises(Exception, match="another server"):
        await writer.write(answer("t1"))
    assert (await row_of(store)).name == "[redacted]"
    await other.close()


async def test_a_trimmed_conversation_can_be_copied(
    store: RedisStore, redis_server: RedisServer, prefix: str
) -> None:
    trimming = await RedisStore.open_url(
        redis_server.url,
        clock=ticking_clock(),
        key_prefix=prefix,
        max_turns=2,
    )
    writer = await Writer.create(MAKE, trimming)
    await writer.turns(1, 6)
    async with store.build("copy", Origin(user="bob", created_at=START)) as builder:
        async for batch in trimming.entries("s1"):
            await builder.add(batch)
    assert await entries_of(store, "copy") == await entries_of(trimming)
    row, original = await row_of(store, "copy"), await row_of(trimming)
    assert (row.name, row.message_count, row.first_seq) == ("ask 1", 14, original.first_seq)
    assert row.user == "bob"
    await Writer.of(MAKE, await store.open("copy")).turns(7, 7)
    await trimming.close()


async def test_a_long_conversation_is_not_read_whole_for_a_page_or_to_open_it(
    store: RedisStore, lines_decoded: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with store.build("s1", Origin(user="ada", created_at=START)) as builder:
        await builder.add(drafted(MAKE, 150))
    row = await row_of(store)
    lines_decoded.clear()
    source = StreamSource(store._connection, "s1", row.head_seq)
    monkeypatch.setattr(pages, "WindowSize", partial(WindowSize, entries=50))
    held = read_end(source, row)
    assert len(held) in range(50, 60)
    assert held[-1].seq == row.head_seq
    lines_decoded.clear()
    await store.page("s1", PageQuery())
    assert len(lines_decoded) < 60
    opened = await store.open("s1")
    assert opened.history.message_count == row.message_count
    assert len(lines_decoded) < 200


async def test_a_prompt_from_before_a_clear_is_known_when_it_is_sent_again(
    store: RedisStore,
) -> None:
    writer = await Writer.create(MAKE, store)
    await writer.write(replace(prompt("t1"), message_id="m1"), answer("t1"), ClearEntry())
    await writer.turns(2, 3)
    await writer.record.close()
    assert (await store.open("s1")).history.prompt_by_message_id("m1") is not None
