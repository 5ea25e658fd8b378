"""A snapshot of a Redis, put back: every conversation is whole, and can be gone on with."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.storage.store_makers import MemoryMaker
from tests.support.redis_server import RedisServer, wait_until

from nplt_storage import RedisStore
from nplt_storage.testing.rules import Writer, entries_of, ids_of, ticking_clock

MAKE = MemoryMaker()
"""Only for its clock."""


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
