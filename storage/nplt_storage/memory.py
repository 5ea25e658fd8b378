"""Conversations that live and die with the process.

The same port and the same refusals as the files: an entry that could not be
written there is refused here too, so that a program tried out on one does not
fail on the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime

from nplt_storage.catalog import Catalog, ConversationRow, new_row
from nplt_storage.entries import Entry
from nplt_storage.errors import (
    BadEntry,
    ConversationExists,
    ConversationNotFound,
    ConversationReadOnly,
)
from nplt_storage.history import ConversationHistory
from nplt_storage.ids import is_session_id
from nplt_storage.lines import encode_line
from nplt_storage.paging import MessagePage, PageQuery, read_page
from nplt_storage.store import Record, StoreDescription
from nplt_storage.views import content_of


@dataclass(slots=True)
class _Kept:
    entries: list[Entry] = field(default_factory=list)
    writer: MemoryRecord | None = None


class MemoryRecord:
    def __init__(self, session_id: str, *, kept: _Kept, catalog: Catalog) -> None:
        self.session_id = session_id
        self._kept = kept
        self._catalog = catalog

    async def append(self, entry: Entry) -> None:
        if self._kept.writer is not self:
            raise ConversationReadOnly(self.session_id, "this record was closed")
        if entry.seq != len(self._kept.entries) + 1:
            raise BadEntry(f"entry {entry.seq} can't follow entry {len(self._kept.entries)}")
        encode_line(entry)
        self._kept.entries.append(entry)
        self._catalog.add(self.session_id, entry)

    async def close(self) -> None:
        if self._kept.writer is self:
            self._kept.writer = None


class EntryList:
    """Sequence numbers are 1, 2, 3, …: an entry's place is its number less one."""

    def __init__(self, entries: list[Entry]) -> None:
        self._entries = entries
        self.head_seq = len(entries)

    def before(self, seq: int) -> Iterator[Entry]:
        for place in range(min(seq - 1, self.head_seq) - 1, -1, -1):
            yield self._entries[place]

    def after(self, seq: int) -> Iterator[Entry]:
        for place in range(max(seq, 0), self.head_seq):
            yield self._entries[place]


class MemoryStore:
    description = StoreDescription(
        backend="memory", promise="kept until the server stops; nothing is written to disk"
    )

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self._kept: dict[str, _Kept] = {}
        self._catalog = Catalog()

    def rows(self, user: str) -> list[ConversationRow]:
        return self._catalog.of_user(user)

    def count(self, user: str) -> int:
        return self._catalog.count(user)

    def row(self, session_id: str) -> ConversationRow | None:
        return self._catalog.get(session_id)

    async def create(self, session_id: str, *, user: str) -> Record:
        if not is_session_id(session_id):
            raise ConversationNotFound(session_id)
        if session_id in self._kept:
            raise ConversationExists(session_id)
        kept = self._kept[session_id] = _Kept()
        self._catalog.put(new_row(session_id, user=user, created_at=self._clock()))
        kept.writer = MemoryRecord(session_id, kept=kept, catalog=self._catalog)
        return kept.writer

    async def open(self, session_id: str) -> tuple[Record, ConversationHistory]:
        kept = self._find(session_id)
        if kept.writer is not None:
            raise ConversationReadOnly(session_id, "it is open already")
        kept.writer = MemoryRecord(session_id, kept=kept, catalog=self._catalog)
        return kept.writer, ConversationHistory(session_id, kept.entries)

    async def page(self, session_id: str, query: PageQuery) -> MessagePage:
        return read_page(query, EntryList(self._find(session_id).entries))

    async def text_of(self, session_id: str, seq: int) -> str | None:
        entries = self._find(session_id).entries
        if not 1 <= seq <= len(entries):
            return None
        return content_of(entries[seq - 1])

    async def delete(self, session_id: str) -> None:
        self._find(session_id).writer = None
        del self._kept[session_id]
        self._catalog.remove(session_id)

    def touch(self, session_id: str, at: datetime) -> None:
        self._catalog.touch(session_id, at)

    async def close(self) -> None:
        for kept in self._kept.values():
            kept.writer = None

    def _find(self, session_id: str) -> _Kept:
        kept = self._kept.get(session_id)
        if kept is None:
            raise ConversationNotFound(session_id)
        return kept
