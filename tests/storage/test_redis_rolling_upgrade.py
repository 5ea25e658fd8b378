"""During an upgrade, servers of an older version share a Redis with newer ones."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from itertools import count
from typing import Any

import msgspec
import pytest
from tests.storage.store_makers import MemoryMaker
from tests.support.redis_server import RedisServer

from nplt_storage import RedisStore
from nplt_storage.entries import LaterPromptEntry
from nplt_storage.rows import RowQuery
from nplt_storage.testing.rules import START, Writer, answer, prompt, row_of, ticking_clock

MAKE = MemoryMaker()
prefixes = count()
KNOWN_TO_OLDER = frozenset(
    (
        *("session_id", "user", "name", "message_count", "created_at", "updated_at"),
        *("last_accessed", "model", "preview", "pinned", "archived", "damaged", "head_seq"),
        *("named", "unfinished", "hidden", "system_seq", "notebook_seq", "compaction_seq"),
        *("widget_seqs", "epoch_seq", "billed", "billed_details", "options", "first_seq", "lost"),
    )
)
"""The fields of a row in the first version. It refuses others."""


@pytest.fixture
def prefix() -> str:
    return f"upgrade[{next(prefixes)}]:"


async def opened(server: RedisServer, prefix: str) -> RedisStore:
    return await RedisStore.open_url(server.url, clock=ticking_clock(), key_prefix=prefix)


@pytest.fixture
async def store(redis_server: RedisServer, prefix: str) -> AsyncIterator[RedisStore]:
    store = await opened(redis_server, prefix)
    yield store
    await store.close()


def fields_of(server: RedisServer, prefix: str) -> dict[str, bytes]:
    with server.client() as client:
        found: Any = client.hgetall(f"{prefix}{{s1}}:meta")
    return {name.decode(): value for name, value in found.items()}


async def test_a_row_has_only_fields_that_an_older_server_knows(
    store: RedisStore, redis_server: RedisServer, prefix: str
) -> None:
    writer = await Writer.create(MAKE, store)
    await writer.write(prompt("t1", "hello"), answer("t1", "hi"))
    await writer.write(
        LaterPromptEntry(turn_id="t2", content="x", not_before=START + timedelta(days=1))
    )
    fields = fields_of(redis_server, prefix)
    assert msgspec.json.decode(fields["row"]).keys() <= KNOWN_TO_OLDER
    row = await row_of(store, "s1")
    assert (row.answers, len(row.later)) == ((2,), 1)


async def test_what_an_older_server_wrote_is_counted_by_the_next_owner(
    redis_server: RedisServer, prefix: str
) -> None:
    first = await opened(redis_server, prefix)
    writer = await Writer.create(MAKE, first)
    await writer.write(
        LaterPromptEntry(turn_id="t2", content="x", not_before=START + timedelta(days=1))
    )
    before = fields_of(redis_server, prefix)["row_added"]
    await writer.write(prompt("t1", "hello"), answer("t1", "hi"))
    await first.close()
    with redis_server.client() as client:  # an older server would have left the field as it was
        client.hset(f"{prefix}{{s1}}:meta", "row_added", before)

    second = await opened(redis_server, prefix)
    try:
        due = await second.list("ada", RowQuery(due=True))
        assert [row.session_id for row in due.rows] == ["s1"]
        row = (await second.open("s1")).row
        assert (row.answers, row.failed_seq, len(row.later)) == ((3,), 0, 1)
    finally:
        await second.close()
