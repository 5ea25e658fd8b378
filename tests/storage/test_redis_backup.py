"""A snapshot of a Redis, put back: every conversation is whole, and can be gone on with."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import anyio
from tests.storage.store_makers import MemoryMaker
from tests.support.redis_server import RedisServer, wait_until

from nplt_storage import JsonFileStore, RedisStore
from nplt_storage.maintenance.redis_backup import back_up_redis
from nplt_storage.testing.rules import Writer, entries_of, ids_of, ticking_clock

MAKE = MemoryMaker()
"""Only for its clock."""


async def test_a_backup_has_each_conversation_as_far_as_it_went_when_it_was_read(
    start_redis: Callable[..., RedisServer], tmp_path: Path
) -> None:
    server = start_redis()
    store = await RedisStore.open_url(server.url, clock=ticking_clock())
    writers = [await Writer.create(MAKE, store, f"s{number}") for number in range(5)]
    for writer in writers:
        await writer.turns(1, 20)
    await store.mark_seen("s1", 3)

    async def write_on(writer: Writer) -> None:
        for number in range(21, 1_000):
            await writer.turns(number, number)

    async with anyio.create_task_group() as tasks:
        for writer in writers:
            tasks.start_soon(write_on, writer)
        done = await back_up_redis(server.url, tmp_path / "copy", progress=lambda done, of: None)
        assert (done.conversations, done.left_out) == (5, [])
        tasks.cancel_scope.cancel()
    copy = await JsonFileStore.open_directory(tmp_path / "copy", clock=ticking_clock())
    for number in range(5):
        copied = await entries_of(copy, f"s{number}")
        assert len(copied) >= 40
        assert (await copy.seen([f"s{number}"])).get(f"s{number}") == (3 if number == 1 else 0)
        assert copied == (await entries_of(store, f"s{number}"))[: len(copied)]
    await copy.close()
    await store.close()


async def test_a_snapshot_taken_while_it_is_written_to_can_be_restored(tmp_path: Path) -> None:
    server = RedisServer(tmp_path / "redis").start()
    store = await RedisStore.open_url(server.url, clock=ticking_clock())
    writers = [await Writer.create(MAKE, store, f"s{number}") for number in range(3)]
    for writer in writers:
        await writer.turns(1, 3)
        await writer.record.keep_blob(b"beside")
    kept = {f"s{number}": await entries_of(store, f"s{number}") for number in range(3)}
    before = server.call("LASTSAVE")
    server.call("BGSAVE")
    wait_until(
        lambda: server.call("LASTSAVE") != before or (tmp_path / "redis" / "dump.rdb").exists(),
        "a snapshot",
    )
    for writer in writers:
        await writer.turns(4, 4)
    shutil.copytree(
        tmp_path / "redis", tmp_path / "restored", ignore=shutil.ignore_patterns("*.sock")
    )
    await store.close()
    server.kill()

    server = RedisServer(tmp_path / "restored").start()
    server.pass_time(60, prefix="nplt:")  # its leases are long over
    store = await RedisStore.open_url(server.url, clock=ticking_clock())
    try:
        assert sorted(await ids_of(store)) == sorted(kept)
        for session_id, entries in kept.items():
            assert await entries_of(store, session_id) == entries
            writer = Writer.of(MAKE, await store.open(session_id))
            await writer.turns(5, 5)
    finally:
        await store.close()
        server.kill()
