"""The text of running answers in Redis: stored before it is shown, without a gap."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import anyio
import pytest
from tests.storage.store_makers import MemoryMaker
from tests.support.redis_server import RedisServer

from nplt_storage import RedisStore
from nplt_storage.testing.rules import Writer, prompt, ticking_clock

MAKE = MemoryMaker()
"""Only for its clock."""
_OVERLAP_SECONDS = 0.3
prefixes = count()


@pytest.fixture
def prefix() -> str:
    return f"journal{next(prefixes)}:"


@pytest.fixture
async def store(redis_server: RedisServer, prefix: str) -> AsyncIterator[RedisStore]:
    store = await RedisStore.open_url(redis_server.url, clock=ticking_clock(), key_prefix=prefix)
    yield store
    await store.close()


async def running(store: RedisStore, session_id: str = "s1") -> Writer:
    writer = await Writer.create(MAKE, store, session_id)
    await writer.write(prompt("t1"))
    return writer


async def stored_text(store: RedisStore, writer: Writer) -> str:
    partial = (await writer.opened_again(store)).partial_answer
    return "" if partial is None else partial.text


async def test_text_that_redis_has_lost_is_stored_again_with_the_next_piece(
    store: RedisStore, redis_server: RedisServer, prefix: str
) -> None:
    writer = await running(store)
    assert await writer.journal("t1", 0, "text", "one ")
    with redis_server.client() as client:
        client.delete(f"{prefix}{{s1}}:live")
    assert await writer.journal("t1", 0, "text", "two")
    assert store.counts.journal_gaps_mended == 1
    assert await stored_text(store, writer) == "one two"


async def test_a_conversation_that_redis_refuses_does_not_delay_the_text_of_others(
    store: RedisStore, redis_server: RedisServer, prefix: str
) -> None:
    refused, other = await running(store, "s1"), await running(store, "s2")
    owner = f"{prefix}{{s1}}:owner"
    with redis_server.client() as client:
        client.rename(owner, "aside")
        client.set(owner, "not a hash")
        waiting = asyncio.ensure_future(refused.journal("t1", 0, "text", "late"))
        with anyio.fail_after(30):
            for piece in ("one ", "two ", "three"):
                assert await other.journal("t1", 0, "text", piece)
            assert not waiting.done()
            client.rename("aside", owner)
            assert await waiting


async def test_a_closed_conversation_shows_no_text(store: RedisStore) -> None:
    writer = await running(store)
    await writer.record.close()
    assert not await writer.journal("t1", 0, "text", "too late")


async def test_text_on_its_way_at_the_close_does_not_acquire_the_lease_again(
    store: RedisStore, redis_server: RedisServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = await running(store)
    loop, owner = asyncio.get_running_loop(), f"{prefix}{{s1}}:owner"
    closing: list[asyncio.Future[None]] = []
    run_many = store._connection.run_many

    def overtaken_by_the_close(*arguments: Any) -> list[Any]:
        """Gives the close the time to return the lease first, if it does not wait."""
        loop.call_soon_threadsafe(
            lambda: closing.append(asyncio.ensure_future(writer.record.close()))
        )
        end = time.monotonic() + _OVERLAP_SECONDS
        with redis_server.client() as client:
            while client.exists(owner) and time.monotonic() < end:
                time.sleep(0.01)
        return run_many(*arguments)

    monkeypatch.setattr(store._connection, "run_many", overtaken_by_the_close)
    await writer.journal("t1", 0, "text", "on its way")
    await closing[0]
    await store.close()
    with redis_server.client() as client:
        assert not client.exists(owner)


async def test_pieces_that_waited_are_stored_as_one(
    store: RedisStore, redis_server: RedisServer, prefix: str
) -> None:
    writer = await running(store)
    redis_server.freeze()
    try:
        waiting = [
            asyncio.ensure_future(writer.journal("t1", 0, "text", f"{number} "))
            for number in range(100)
        ]
        await asyncio.sleep(0)
    finally:
        redis_server.thaw()
    assert all(await asyncio.gather(*waiting))
    with redis_server.client() as client:
        live: Any = client.get(f"{prefix}{{s1}}:live")
    assert len(live.splitlines()) < 10
    assert await stored_text(store, writer) == "".join(f"{number} " for number in range(100))
