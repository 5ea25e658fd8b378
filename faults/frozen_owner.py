"""An owner that is stopped while it holds a conversation, and then continues.

    python -m faults.frozen_owner URL SESSION_ID LEASE_SECONDS

It creates the conversation, writes a prompt, prints `ready`, and stops itself (SIGSTOP). Its clock
stands still meanwhile, so its own deadline never comes: only Redis can refuse it. After SIGCONT it
tries everything that an owner does, and prints `refused` or `DONE` for each.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from datetime import UTC, datetime
from typing import Any

from nplt_storage import RedisStore, StorageError
from nplt_storage.entries import ModelInputEntry
from nplt_storage.ids import new_entry_id

TRIES = ("append", "partial answer", "blob", "redact", "renewal", "release")


async def hold(url: str, session_id: str, lease_seconds: float) -> None:
    store = await RedisStore.open_url(
        url, clock=lambda: datetime.now(UTC), lease_seconds=lease_seconds
    )
    record: Any = await store.create(session_id, user="local")
    await record.append(_prompt(1))
    stands_at = time.monotonic()
    leases: Any = store._leases
    leases.clock = lambda: stands_at
    leases._stopped.set()  # its thread would renew the lease before the check can read it
    print("ready", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)

    async def tried(name: str) -> bool:
        match name:
            case "append":
                await record.append(_prompt(2))
            case "partial answer":
                may_be_shown = await record.journal_delta("t1", 0, "text", "too late")
                live = store._connection.call("GET", record.owned.keys.live)
                return bool(may_be_shown or (live and b"too late" in live))
            case "blob":
                await record.keep_blob(b"too late")
            case "redact":
                await record.redact(1, at=datetime.now(UTC))
            case "renewal":
                await asyncio.to_thread(leases.renew)
                left = store._connection.call("PTTL", record.owned.keys.owner)
                return bool(left <= leases.milliseconds)  # the successor's lease is far longer
            case _:
                await record.close()
                return not store._connection.call("EXISTS", record.owned.keys.owner)
        return True

    for name in TRIES:
        try:
            done = await tried(name)
        except StorageError:
            done = False
        print(f"{name}: {'DONE' if done else 'refused'}", flush=True)
    os._exit(0)


def _prompt(seq: int) -> ModelInputEntry:
    return ModelInputEntry(
        seq=seq,
        id=new_entry_id(),
        timestamp=datetime.now(UTC),
        turn_id=f"t{seq}",
        content="hello",
    )


if __name__ == "__main__":
    asyncio.run(hold(sys.argv[1], sys.argv[2], float(sys.argv[3])))
