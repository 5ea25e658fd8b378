"""Keeps conversations in memory, until the process ends.

An entry that could not be written to a file is refused here too, so that a program
tried with this store does not fail on another. `max_turns` limits what models are
shown; everything is kept.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta

from msgspec import Struct, field
from msgspec.structs import replace

from nplt_storage.changes import RowChanges, change_by
from nplt_storage.codec import encode_line
from nplt_storage.entries import BlobReference, Entry, ModelInputEntry
from nplt_storage.errors import (
    BadEntry,
    ConversationExists,
    ConversationNotFound,
    ConversationReadOnly,
)
from nplt_storage.history import ConversationHistory
from nplt_storage.ids import is_session_id
from nplt_storage.json_values import check_text
from nplt_storage.messages import LevelMaker, content_of, no_levels
from nplt_storage.pages import MessagePage, PageQuery, read_page
from nplt_storage.partial_answers import DeltaKind, Piece, join_pieces, outdates, unless_stored
from nplt_storage.redaction import blobs_named_by, redacted, without_words_of
from nplt_storage.rows import (
    ConversationRow,
    RowPage,
    RowQuery,
    fold,
    fold_all,
    needs_attention,
    new_row,
    page_of,
)
from nplt_storage.search import SearchPage, SearchQuery, search_entries
from nplt_storage.seen_marks import first_mark, moved_mark
from nplt_storage.sent_before import SentBefore, sent_before
from nplt_storage.store import (
    Builder,
    DeletedConversation,
    Opened,
    Origin,
    Record,
    StoreDescription,
    check_byte_range,
)

_BATCH_ENTRIES = 100
_TRASH_TIME = timedelta(days=30)


class StoredConversation(Struct):
    """One conversation: its entries, blobs and the text of its running answer."""

    origin: Origin
    row: ConversationRow
    entries: list[Entry] = field(default_factory=list)
    blobs: dict[str, bytes] = field(default_factory=dict)
    pieces: list[Piece] = field(default_factory=list)
    writer: MemoryRecord | None = None
    seen_seq: int | None = None

    @classmethod
    def new(cls, session_id: str, origin: Origin) -> StoredConversation:
        row = new_row(session_id, user=origin.user, created_at=origin.created_at)
        return cls(origin, row)

    def check(self, entry: Entry) -> None:
        if entry.seq != len(self.entries) + 1:
            raise BadEntry(f"entry {entry.seq} can't follow entry {len(self.entries)}")
        encode_line(entry)

    def add(self, entry: Entry) -> None:
        self.check(entry)
        self.entries.append(entry)
        self.row = fold(self.row, entry)

    def keep_blob(self, data: bytes) -> BlobReference:
        blob = BlobReference.of(data)
        self.blobs[blob.blob_id] = bytes(data)
        return blob


class MemoryRecord:
    def __init__(self, session_id: str, stored: StoredConversation, changes: RowChanges) -> None:
        self.session_id = session_id
        self._stored = stored
        self._changes = changes

    async def append(self, entry: Entry) -> ConversationRow:
        stored = self._writable()
        stored.add(entry)
        self._changes.note(stored.row.user, self.session_id, change_by(entry))
        if stored.pieces and outdates(entry, *stored.pieces[0][:2]):
            stored.pieces.clear()
        return stored.row

    def journal_delta(self, turn_id: str, call: int, kind: DeltaKind, text: str) -> None:
        stored = self._stored
        if stored.writer is self:
            if stored.pieces and stored.pieces[0][:2] != (turn_id, call):
                stored.pieces.clear()
            stored.pieces.append((turn_id, call, kind, text))

    async def keep_blob(self, data: bytes) -> BlobReference:
        return self._writable().keep_blob(data)

    async def redact(self, seq: int, *, at: datetime) -> Entry:
        stored = self._writable()
        if not 1 <= seq <= len(stored.entries):
            raise BadEntry(f"there is no entry {seq}")
        erased = stored.entries[seq - 1]
        tombstone = redacted(erased, at)
        stored.entries = [without_words_of(erased, tombstone, entry) for entry in stored.entries]
        for blob_id in blobs_named_by([erased]) - blobs_named_by(stored.entries):
            stored.blobs.pop(blob_id, None)
        stored.origin = replace(stored.origin, extra={})
        start = StoredConversation.new(self.session_id, stored.origin).row
        start = replace(start, last_accessed=stored.row.last_accessed)
        stored.row = fold_all(start, stored.entries)
        self._changes.note(stored.row.user, self.session_id, "message")
        return tombstone

    async def close(self) -> None:
        if self._stored.writer is self:
            self._stored.writer = None

    def _writable(self) -> StoredConversation:
        if self._stored.writer is not self:
            raise ConversationReadOnly(self.session_id, "this record was closed")
        return self._stored


class MemoryBuilder:
    def __init__(self, stored: StoredConversation) -> None:
        self._stored = stored

    async def add(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            self._stored.add(entry)

    async def keep_blob(self, data: bytes) -> BlobReference:
        return self._stored.keep_blob(data)


class EntryList:
    """The entries 1, 2, 3, …; the index of an entry is its number less one."""

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
    read_only_reason: str | None = None

    def __init__(
        self,
        clock: Callable[[], datetime],
        *,
        max_turns: int | None = None,
        levels: LevelMaker = no_levels,
    ) -> None:
        self._clock = clock
        self._turns_max = max_turns
        self._levels = levels
        self._conversations: dict[str, StoredConversation] = {}
        self._trash: dict[str, tuple[datetime, StoredConversation]] = {}
        """The deleted conversations with the time of deletion, oldest first."""
        self.changes = RowChanges()

    # One conversation

    async def create(self, session_id: str, *, user: str) -> Record:
        self._check_free(session_id)
        check_text(user, "the user's name")
        stored = StoredConversation.new(session_id, Origin(user=user, created_at=self._clock()))
        self._conversations[session_id] = stored
        stored.writer = self._record(session_id, stored)
        stored.seen_seq = 0
        self.changes.note(user, session_id, "new")
        return stored.writer

    async def open(self, session_id: str) -> Opened:
        stored = self._find(session_id)
        if stored.writer is not None:
            raise ConversationReadOnly(session_id, "it is open already")
        stored.writer = self._record(session_id, stored)
        stored.seen_seq = first_mark(stored.seen_seq, stored.row.head_seq)
        return Opened(
            record=stored.writer,
            history=ConversationHistory(session_id, stored.entries, turns_max=self._turns_max),
            row=stored.row,
            partial_answer=unless_stored(join_pieces(stored.pieces), stored.row, stored.entries),
        )

    async def page(self, session_id: str, query: PageQuery) -> MessagePage:
        stored = self._find(session_id)
        row = stored.row
        return read_page(query, EntryList(stored.entries), row.hidden, row.unfinished, self._levels)

    async def text_of(self, session_id: str, seq: int) -> str | None:
        entries = self._find(session_id).entries
        if not 1 <= seq <= len(entries):
            return None
        return content_of(entries[seq - 1])

    async def prompt_by_message_id(self, session_id: str, message_id: str) -> SentBefore | None:
        stored = self._find(session_id)
        for place, entry in enumerate(stored.entries):
            if isinstance(entry, ModelInputEntry) and entry.message_id == message_id:
                return sent_before(stored.entries[place:], hidden=stored.row.hidden)
        return None

    async def blob(self, session_id: str, blob_id: str, offset: int, length: int) -> bytes:
        check_byte_range(offset, length)
        data = self._find(session_id).blobs.get(blob_id)
        if data is None:
            raise BadEntry(f"there is no blob {blob_id!r} in conversation {session_id!r}")
        return data[offset : offset + length]

    async def entries(
        self, session_id: str, *, after: int = 0, through: int | None = None
    ) -> AsyncIterator[Sequence[Entry]]:
        entries = self._find(session_id).entries
        first = max(after, 0)
        last = len(entries) if through is None else min(through, len(entries))
        for start in range(first, last, _BATCH_ENTRIES):
            yield entries[start : min(start + _BATCH_ENTRIES, last)]

    async def origin(self, session_id: str) -> Origin:
        return self._find(session_id).origin

    @asynccontextmanager
    async def build(self, session_id: str, origin: Origin) -> AsyncIterator[Builder]:
        self._check_free(session_id)
        stored = StoredConversation.new(session_id, origin)
        yield MemoryBuilder(stored)
        self._check_free(session_id)
        self._conversations[session_id] = stored
        self.changes.note(stored.row.user, session_id, "new")

    async def delete(self, session_id: str) -> None:
        stored = self._find(session_id)
        stored.writer = None
        now = self._clock()
        for deleted_id, (at, _) in list(self._trash.items()):
            if at < now - _TRASH_TIME or deleted_id == session_id:
                del self._trash[deleted_id]
        self._trash[session_id] = now, self._conversations.pop(session_id)
        self.changes.note(stored.row.user, session_id, "deleted")

    async def undelete(self, session_id: str, *, user: str | None = None) -> None:
        if session_id not in self._trash:
            raise ConversationNotFound(session_id)
        if user not in (None, self._trash[session_id][1].row.user):
            raise ConversationNotFound(session_id)
        self._check_free(session_id)
        _, stored = self._trash.pop(session_id)
        self._conversations[session_id] = stored
        self.changes.note(stored.row.user, session_id, "new")

    async def is_trash_of_another(self, session_id: str, user: str) -> bool:
        return session_id in self._trash and self._trash[session_id][1].row.user != user

    async def trash(self, user: str, *, limit: int | None = None) -> Sequence[DeletedConversation]:
        return [
            DeletedConversation(row=stored.row, deleted_at=at)
            for at, stored in reversed(self._trash.values())
            if stored.row.user == user
        ]

    # All of them

    async def row(self, session_id: str) -> ConversationRow | None:
        stored = self._conversations.get(session_id)
        return None if stored is None else stored.row

    async def list(self, user: str, query: RowQuery) -> RowPage:
        found = self._of(user)
        if query.attention:
            found = [each for each in found if needs_attention(each.row, each.seen_seq)]
        return page_of((stored.row for stored in found), query)

    async def count(self, user: str) -> int:
        return len(self._of(user))

    async def search(self, user: str, query: SearchQuery) -> SearchPage:
        pairs = ((stored.row, entry) for stored in self._of(user) for entry in stored.entries)
        return search_entries(pairs, query)

    def touch(self, session_id: str, at: datetime) -> None:
        stored = self._conversations.get(session_id)
        if stored is not None and at > stored.row.last_accessed:
            stored.row = replace(stored.row, last_accessed=at)

    async def seen(self, session_ids: Sequence[str]) -> Mapping[str, int]:
        found = ((id_, self._conversations.get(id_)) for id_ in session_ids)
        marks = ((id_, stored.seen_seq) for id_, stored in found if stored is not None)
        return {id_: mark for id_, mark in marks if mark is not None}

    async def mark_seen(self, session_id: str, seq: int, *, unread: bool = False) -> int:
        stored = self._find(session_id)
        known, row = stored.seen_seq, stored.row
        mark = stored.seen_seq = moved_mark(known, seq, row.head_seq, unread=unread)
        if mark != known:
            self.changes.note(row.user, session_id, "seen")
        return mark

    async def close(self) -> None:
        for stored in self._conversations.values():
            stored.writer = None

    def _record(self, session_id: str, stored: StoredConversation) -> MemoryRecord:
        return MemoryRecord(session_id, stored, self.changes)

    def _find(self, session_id: str) -> StoredConversation:
        stored = self._conversations.get(session_id)
        if stored is None:
            raise ConversationNotFound(session_id)
        return stored

    def _of(self, user: str) -> Sequence[StoredConversation]:
        return [stored for stored in self._conversations.values() if stored.row.user == user]

    def _check_free(self, session_id: str) -> None:
        if not is_session_id(session_id):
            raise ConversationNotFound(session_id)
        if session_id in self._conversations:
            raise ConversationExists(session_id)
