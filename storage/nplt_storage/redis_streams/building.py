"""A conversation on its way into Redis: all of it, or nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial

import orjson

from nplt_storage.conversation.checkpoints import read_checkpoint
from nplt_storage.conversation.row_json import row_as_bytes
from nplt_storage.conversation.row_lists import place_of
from nplt_storage.conversation.rows import fold, fold_all, new_row
from nplt_storage.errors import BadEntry
from nplt_storage.facts.entries import CheckpointEntry, Entry
from nplt_storage.facts.entry_to_json import time_as_text
from nplt_storage.facts.tool_calls import BlobReference
from nplt_storage.ids import new_entry_id
from nplt_storage.redis_streams.connection import Argument, RedisConnection
from nplt_storage.redis_streams.keys import Keyspace, place_as_bytes
from nplt_storage.redis_streams.making import UnseenStream
from nplt_storage.store import Origin


class RedisBuilder:
    def __init__(
        self, session_id: str, origin: Origin, connection: RedisConnection, keyspace: Keyspace
    ) -> None:
        self._origin = origin
        self._connection = connection
        self._made = UnseenStream(connection, keyspace)
        self._row = new_row(session_id, user=origin.user, created_at=origin.created_at)

    @property
    def base(self) -> str:
        return self._made.keys.base

    async def add(self, entries: Sequence[Entry]) -> None:
        await self._connection.in_thread(partial(self._add, entries))

    async def keep_blob(self, data: bytes) -> BlobReference:
        digest = hashlib.sha256(data).hexdigest()
        await self._connection.in_thread(partial(self._made.keep_blob, digest, data))
        return BlobReference(blob_id=digest, size=len(data), sha256=digest)

    async def drop(self) -> None:
        await self._connection.in_thread(self._made.drop)

    def finished(self, *, ttl_milliseconds: int) -> list[Argument]:
        """What the script needs to know that makes it visible."""
        row = self._row
        return [
            *(row_as_bytes(row), place_as_bytes(place_of(row)), row.user),
            *(origin_as_bytes(self._origin), new_entry_id(), row.head_seq, ttl_milliseconds),
        ]

    def _add(self, entries: Sequence[Entry]) -> None:
        first = entries[0] if entries else None
        if self._row.head_seq == 0 and isinstance(first, CheckpointEntry) and first.seq > 1:
            self._begin_with(first)
            entries = entries[1:]
        self._made.add(entries)
        self._row = fold_all(self._row, entries)

    def _begin_with(self, first: CheckpointEntry) -> None:
        """A copy of a conversation that was trimmed begins with what is left of the rest."""
        found = read_checkpoint(first)
        if found is None:
            raise BadEntry(f"entry {first.seq} can't be the first: its state can't be read")
        self._made.add_checkpoint(first)
        self._row = replace(
            fold(found.row, first),
            session_id=self._row.session_id,
            user=self._origin.user,
            created_at=self._origin.created_at,
            first_seq=first.seq + 1,
        )


def origin_as_bytes(origin: Origin) -> bytes:
    return orjson.dumps(
        {
            "user": origin.user,
            "created_at": time_as_text(origin.created_at),
            "extra": dict(origin.extra),
        }
    )


def origin_from_bytes(data: bytes) -> Origin:
    source = orjson.loads(data)
    return Origin(
        user=source["user"],
        created_at=datetime.fromisoformat(source["created_at"]),
        extra=source["extra"],
    )
