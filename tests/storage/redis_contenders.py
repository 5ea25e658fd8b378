"""Processes that all try to open the same conversations in Redis, and say which they got.

    python redis_contenders.py URL PREFIX PROCESSES CONVERSATIONS

Each tries every conversation once, in an order of its own, and keeps what it got until the
input ends: a process that is gone could be succeeded.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from datetime import UTC, datetime

from nplt_storage import ConversationHeld, RedisStore


async def contend(url: str, prefix: str, name: int, conversations: int) -> None:
    store = await RedisStore.open_url(
        url, clock=lambda: datetime.now(UTC), key_prefix=prefix, lease_seconds=3600.0
    )
    ids = [f"s{number}" for number in range(conversations)]
    random.Random(name).shuffle(ids)
    for session_id in ids:
        try:
            await store.open(session_id)
        except ConversationHeld:
            continue
        os.write(1, f"{session_id}\n".encode())
    os.write(1, b"done\n")
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    url, prefix, processes, conversations = sys.argv[1:]
    children = []
    for name in range(int(processes)):
        if (child := os.fork()) == 0:
            asyncio.run(contend(url, prefix, name, int(conversations)))
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
