"""Conversations of the layout before, whose keys had no hash tag, are brought to this one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import pytest
from msgspec.structs import replace
from tests.storage.store_makers import MemoryMaker
from tests.support.redis_server import RedisServer

from nplt_storage import ConversationHeld, RedisStore
from nplt_storage.maintenance.migrate import ids_in_redis
from nplt_storage.testing.rules import (
    Writer,
    answer,
    asking,
    entries_of,
    ids_of,
    looking,
    prompt,
    row_of,
    ticking_clock,
)

MAKE = MemoryMaker()
prefixes = count()


@pytest.fixture
def prefix() -> str:
    return f"older[{next(prefixes)}]:"


async def opened(server: RedisServer, prefix: str) -> RedisStore:
    return await RedisStore.open_url(
        server.url, clock=ticking_clock(), key_prefix=prefix, max_turns=3, ttl_seconds=3600
    )


@pytest.fixture
async def store(redis_server: RedisServer, prefix: str) -> AsyncIterator[RedisStore]:
    store = await opened(redis_server, prefix)
    yield store
    await store.close()


def to_older_layout(server: RedisServer, prefix: str, session_id: str) -> None:
    """What the version before would have written."""
    with server.client() as client:
        for where in ("", "@trash:"):
            new, old = f"{prefix}{where}{{{session_id}}}", f"{prefix}{where}{session_id}"
            if not client.exists(f"{new}:meta"):
                continue
            left = client.pttl(f"{new}:meta")
            blobs: Any = client.hgetall(f"{new}:blobs")
            for blob_id, data in blobs.items():
                client.sadd(f"{old}:blobs", blob_id)
                client.set(f"{old}:blob:{blob_id.decode()}", data, px=left)
            checkpoint: Any = client.hget(f"{new}:meta", "checkpoint")
            if checkpoint is not None:
                client.set(f"{old}:checkpoint", checkpoint, px=left)
            client.hdel(f"{new}:meta", "checkpoint", "token")
            client.hset(f"{new}:meta", mapping={"rev": "r1", "place": "p1"})
            for part in ("meta", "log", "live", "prompts"):
                if client.exists(f"{new}:{part}"):
                    client.rename(f"{new}:{part}", f"{old}:{part}")
            client.delete(*(f"{new}:{part}" for part in ("blobs", "owner")))


async def older(store: RedisStore, server: RedisServer, prefix: str, session_id: str) -> Writer:
    """With a key of every sort; it is closed."""
    writer = await Writer.create(MAKE, store, session_id)
    blob = await writer.record.keep_blob(b"beside")
    await writer.turns(1, 5)
    await writer.write(replace(prompt("a"), message_id="m1"), asking("a"))
    await writer.write(looking("a", "seen", blob))
    assert await writer.journal("a", 1, "text", "so far")
    await writer.record.close()
    to_older_layout(server, prefix, session_id)
    return writer


def keys_without_tag(server: RedisServer, prefix: str) -> list[bytes]:
    with server.client() as client:
        every = [bytes(key) for key in client.scan_iter(count=1000)]
    start = prefix.encode()
    rest = [key.removeprefix(start) for key in every if key.startswith(start)]
    return [key for key in rest if b"{" not in key and key[:1] != b"@"]


async def test_one_is_opened_as_it_was_and_goes_on(
    store: RedisStore, redis_server: RedisServer, prefix: str
) -> None:
    writer = await older(store, redis_server, prefix, "s1")
    assert keys_without_tag(redis_server, prefix)
    again = await store.open("s1")
    assert again.partial_answer is not None
    assert again.partial_answer.text == "so far"
    assert keys_without_tag(redis_server, prefix) == []
    checkpoint, *kept = await entries_of(store)
    assert kept == list(writer.history.entries)[-len(kept) :]
    assert checkpoint.seq == kept[0].seq - 1
    (blob,) = [each.blob for entry in kept for each in getattr(entry, "results", ()) if each.blob]
    assert await store.blob("s1", blob.blob_id, 0, 100) == b"beside"
    assert (await store.prompt_by_message_id("s1", "m1")) is not None
    await Writer.of(MAKE, again).write(answer("a", call=1))
    with redis_server.client() as client:
        for part in ("meta", "log", "blobs", "prompts"):
            assert client.ttl(f"{prefix}{{s1}}:{part}") > 0


async def test_those_in_a_list_are_met_where_they_were(
    store: RedisStore, redis_server: RedisServer, prefix: str
) -> None:
    for session_id in ("s1", "s2"):
        await older(store, redis_server, prefix, session_id)
    assert await store.count("ada") == 2
    assert await ids_of(store) == ["s2", "s1"]
    assert (await row_of(store, "s1")).name == "ask 1"
    assert keys_without_tag(redis_server, prefix) == []


async def test_what_was_deleted_can_be_brought_back(
    store: RedisStore, redis_server: RedisServer, prefix: str
) -> None:
    for session_id in ("s1", "s2"):
        await (await Writer.create(MAKE, store, session_id)).turns(1, 2)
        await store.delete(session_id)
        to_older_layout(redis_server, prefix, session_id)
    await store.undelete("s1", user="ada")
    assert await ids_of(store) == ["s1"]
    assert [each.row.session_id for each in await store.trash("ada")] == ["s2"]
    assert await store.is_trash_of_another("s2", "eve")
    await Writer.of(MAKE, await store.open("s1")).turns(3, 3)


async def test_what_a_server_of_the_version_before_holds_is_left_alone(
    store: RedisStore, redis_server: RedisServer, prefix: str
) -> None:
    await older(store, redis_server, prefix, "s1")
    with redis_server.client() as client:
        client.set(f"{prefix}s1:owner", "another", px=15_000)
        with pytest.raises(ConversationHeld):
            await store.open("s1")
        assert await ids_of(store) == []
        client.delete(f"{prefix}s1:owner")
    assert await ids_of(store) == ["s1"]


async def test_a_new_one_does_not_take_the_id_of_an_older_one(
    store: RedisStore, redis_server: RedisServer, prefix: str
) -> None:
    await older(store, redis_server, prefix, "s1")
    with pytest.raises(Exception, match="already"):
        await store.create("s1", user="eve")
    assert (await row_of(store)).user == "ada"


async def test_a_migration_finds_those_of_both_layouts(
    store: RedisStore, redis_server: RedisServer, prefix: str
) -> None:
    await older(store, redis_server, prefix, "s1")
    await (await Writer.create(MAKE, store, "s2")).turns(1, 1)
    await store.delete("s2")
    await (await Writer.create(MAKE, store, "s3")).turns(1, 1)
    assert ids_in_redis(redis_server.url, prefix) == ["s1", "s3"]
