"""A store that can be slow, or full for some kinds of entries; leased, as if several servers
shared it, or on a disk."""

from __future__ import annotations

from typing import Any, cast

import anyio
from msgspec.structs import replace

from nplt_storage.entries import Entry
from nplt_storage.errors import StorageUnavailable, WrittenElsewhere
from nplt_storage.memory import MemoryStore
from nplt_storage.rows import ConversationRow, RowPage, RowQuery
from nplt_storage.store import Opened, Record


class FailingStore:
    """The real one, with a will of its own."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self.is_leased = False
        self.append_seconds = 0.0
        self.close_seconds = 0.0
        self.full_for: tuple[str, ...] = ()
        self.delete_fails = False
        self.written_elsewhere = False
        self.is_down = False
        self.lapses_after: str | None = None
        """The lease is over once an entry of that kind is written."""
        self.is_lapsed = False
        self.is_overtaken = False
        """Whether another server has the record by then."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    async def create(self, session_id: str, *, user: str) -> Record:
        return self._failing(await self.store.create(session_id, user=user))

    async def open(self, session_id: str) -> Opened:
        opened = await self.store.open(session_id)
        return replace(opened, record=self._failing(opened.record))

    def _failing(self, record: Record) -> Record:
        kind = LeasedFailingRecord if self.is_leased else FailingRecord
        return cast(Record, kind(self, record))

    async def list(self, user: str, query: RowQuery) -> RowPage:
        if self.is_down:
            raise StorageUnavailable("nobody answers")
        return await self.store.list(user, query)

    async def delete(self, session_id: str) -> None:
        if self.delete_fails:
            raise StorageUnavailable("it can't be moved to the trash")
        await self.store.delete(session_id)


class FailingRecord:
    def __init__(self, store: FailingStore, record: Record) -> None:
        self._store = store
        self._record = record

    def __getattr__(self, name: str) -> Any:
        return getattr(self._record, name)

    @property
    def session_id(self) -> str:
        return self._record.session_id

    async def append(self, entry: Entry) -> ConversationRow:
        await anyio.sleep(self._store.append_seconds)
        if entry.kind in self._store.full_for:
            raise StorageUnavailable("no space left on device")
        if self._store.written_elsewhere:
            raise WrittenElsewhere("another server has written to it")
        row = await self._record.append(entry)
        self._store.is_lapsed = entry.kind == self._store.lapses_after
        return row

    async def close(self) -> None:
        await anyio.sleep(self._store.close_seconds)
        await self._record.close()


class LeasedFailingRecord(FailingRecord):
    async def append(self, entry: Entry) -> ConversationRow:
        if self._store.is_lapsed:
            await self.reclaim()
        return await super().append(entry)

    @property
    def is_lapsed(self) -> bool:
        return self._store.is_lapsed

    @property
    def wanted_within(self) -> None:
        return None

    async def reclaim(self) -> None:
        if self._store.is_overtaken:
            raise WrittenElsewhere("another server has taken it over")
        self._store.is_lapsed = False
