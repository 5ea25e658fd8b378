"""A process of its own that writes to a conversation in Redis, and says what was acknowledged.

    python redis_writer.py URL PREFIX NAME TURNS

Each turn is one prompt. Refused because another process was quicker, it opens
the conversation again and tries once more. When all are in, it begins to
answer, says so, and waits to be killed.
"""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime

from nplt_storage.errors import BadEntry
from nplt_storage.facts.entries import ModelInputEntry
from nplt_storage.ids import new_entry_id
from nplt_storage.redis_streams.store import RedisStore
from nplt_storage.store import Opened


async def write(url: str, prefix: str, name: str, turns: int) -> None:
    store = await RedisStore.open_url(url, clock=lambda: datetime.now(UTC), key_prefix=prefix)
    opened: Opened | None = None
    number = 0
    while number < turns:
        opened = opened or await store.open("s1")
        prompt = ModelInputEntry(turn_id=f"{name}{number}", content=f"{name} {number}")
        entry = opened.history.stamp(prompt, id=new_entry_id(), timestamp=datetime.now(UTC))
        try:
            await opened.record.append(entry)
        except BadEntry:
            await opened.record.close()
            opened = None
            continue
        opened.history.add(entry)
        print(entry.id, flush=True)
        number += 1
    if opened is not None:
        opened.record.say(f"{name}{turns - 1}", 0, "text", f"{name} was ")
        opened.record.say(f"{name}{turns - 1}", 0, "text", "saying")
    await store._connection.in_thread(store._sender.flush)
    print("waiting", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(write(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
