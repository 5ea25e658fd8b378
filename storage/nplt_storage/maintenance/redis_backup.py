"""Copies the conversations of a Redis to a data directory, also while servers use them.

Each conversation is whole, as far as it went when it was read, with its blobs, its attached files
as far as Redis has them, and the mark of what its user has seen. The trash is left out.
`nplt-server migrate DIR redis://…` restores them.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

import anyio.to_thread

from nplt_storage.files.store import JsonFileStore
from nplt_storage.maintenance.backup import BackedUp, Progress, made_whole
from nplt_storage.maintenance.migrate import StorePlace, ids_in_redis, migrate
from nplt_storage.redis.address import split_key_prefix
from nplt_storage.redis.store import RedisStore

_LOOKS_MAX: Final = 3


async def back_up_redis(url: str, target: Path, *, progress: Progress) -> BackedUp:
    """Raises `CannotBackUp`, `OSError` or `StorageError`."""
    plain_url, key_prefix = split_key_prefix(url)
    done = BackedUp()
    store = await RedisStore.open_url(
        plain_url, clock=partial(datetime.now, UTC), key_prefix=key_prefix
    )
    try:
        ids = await anyio.to_thread.run_sync(ids_in_redis, plain_url, key_prefix)
        with made_whole(target) as new_directory:
            copy = await JsonFileStore.open_directory(
                new_directory, clock=partial(datetime.now, UTC)
            )
            try:
                await _copy_conversations(store, ids, copy, done, progress)
            finally:
                await copy.close()
            files = (path for path in new_directory.rglob("*") if path.is_file())
            done.size = sum(path.stat().st_size for path in files)
    finally:
        await store.close()
    return done


async def _copy_conversations(
    store: RedisStore, ids: Sequence[str], copy: JsonFileStore, done: BackedUp, progress: Progress
) -> None:
    for look in range(_LOOKS_MAX):  # one that was redacted while it was copied is copied again
        left: dict[str, str] = {}
        async for moved in migrate(StorePlace(store, ids), copy, files=copy.directory.files):
            if moved.outcome == "left":
                left[moved.session_id] = moved.says
            else:
                done.conversations += 1
                if "missing" in moved.says:
                    done.left_out.append((moved.session_id, moved.says))
                for session_id, seq in (await store.seen([moved.session_id])).items():
                    await copy.mark_seen(session_id, seq, unread=True)
            progress(done.conversations, done.conversations + len(ids))
        ids = [session_id for session_id in left if await store.row(session_id) is not None]
        if look == _LOOKS_MAX - 1 or not ids:
            done.left_out += [(session_id, left[session_id]) for session_id in ids]
            return
