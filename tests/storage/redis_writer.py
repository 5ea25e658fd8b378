"""A process of its own that writes to a conversation in Redis, and says what was acknowledged.

    python redis_writer.py URL PREFIX NAME TURNS [shares|LEASE]

Each turn is one prompt. Refused because another process has it, it says so and tries again.
One that shares closes the conversation after each turn. When all are in, any
other begins to answer; it says that it waits, and does so until it is killed.
"""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime

from nplt_storage import BadEntry, ConversationReadOnly, Opened, RedisStore
from nplt_storage.entries import ModelInputEntry
from nplt_storage.ids import new_entry_id


async def write(
    url: str, prefix: str, name: str, turns: int, *, shares: bool, lease_seconds: float
) -> None:
    store = await RedisStore.open_url(
        url, clock=lambda: datetime.now(UTC), key_prefix=prefix, lease_seconds=lease_seconds
    )
    opened: Opened | None = None
    number = 0
    while number < turns:
        try:
            opened = opened or await store.open("s1")
        except ConversationReadOnly:
            continue
        prompt = ModelInputEntry(turn_id=f"{name}{number}", content=f"{name} {number}")
        entry = opened.history.stamp(prompt, id=new_entry_id(), timestamp=datetime.now(UTC))
        try:
            await opened.record.append(entry)
        except BadEntry:
            if not shares:
                print("refused", flush=True)
            await opened.record.close()
            opened = None
            continue
        opened.history.add(entry)
        print(entry.id, flush=True)
        number += 1
        if shares:
            await opened.record.close()
            opened = None
    if opened is not None:
        for piece in (f"{name} was ", "saying"):
            stored = opened.record.journal_delta(f"{name}{turns - 1}", 0, "text", piece)
            assert stored is not None
            assert await stored
    print("waiting", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    url, prefix, name, turns, *options = sys.argv[1:]
    shares = options == ["shares"]
    lease = float(options[0]) if options and not shares else 15.0
    asyncio.run(write(url, prefix, name, int(turns), shares=shares, lease_seconds=lease))
