"""A conversation copied from one place to another, whole or not at all.

The same for every store, because it asks nothing but the port: entries come in
batches, what is kept beside them comes along, and the copy is there in one step
when all of it is. A fork is a copy of the beginning, and one more entry that
says so: from then on the two know nothing of each other.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Protocol, TypeAlias

from nplt_storage.errors import BadEntry, ConversationNotFound
from nplt_storage.facts.entries import (
    AttachmentEntry,
    Entry,
    ForkedEntry,
    RenamedEntry,
    ToolResultsEntry,
)
from nplt_storage.facts.tool_calls import BlobReference, ToolCallResult
from nplt_storage.linking import link_attachments
from nplt_storage.store import Builder, ConversationStore, Origin
from nplt_storage.trimmed import stand_ins

BringAttachments: TypeAlias = Callable[[Sequence[AttachmentEntry]], Awaitable[Sequence[str]]]
"""Brings the files of these entries to where the copy will look for them; gives
the ids of those it could not find."""


class Source(Protocol):
    """What can be copied from: any store, or a file that is only read."""

    def entries(
        self, session_id: str, *, after: int = 0, through: int | None = None
    ) -> AsyncIterator[Sequence[Entry]]: ...

    async def origin(self, session_id: str) -> Origin: ...

    async def blob(self, session_id: str, blob_id: str, offset: int, length: int) -> bytes: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    head_seq: int
    missing: tuple[str, ...] = ()
    """Blobs and attachments the source names and does not have, or not as they
    were. The entries that name them were copied as they are."""


async def copy_conversation(
    source: Source,
    session_id: str,
    target: ConversationStore,
    new_id: str,
    *,
    origin: Origin | None = None,
    bring_attachments: BringAttachments | None = None,
) -> Copied:
    async with target.build(new_id, origin or await source.origin(session_id)) as builder:
        copy = _Copy(source, session_id, builder)
        await copy.take()
        await copy.bring(bring_attachments)
    return copy.result()


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFork:
    """What a fork is to be called, whose it is, and the stamp of the entry that begins it."""

    session_id: str
    user: str
    created_at: datetime
    entry_id: str
    name: RenamedEntry | None = None
    """A draft with an id of its own; without one it is called as it was."""


async def fork(
    store: ConversationStore,
    session_id: str,
    *,
    at_seq: int,
    new: NewFork,
    files: Path | None = None,
) -> Copied:
    """`files` is the directory of attachments, where there is one."""
    row = await store.row(session_id)
    if row is None:
        raise ConversationNotFound(session_id)
    if not row.first_seq <= at_seq <= row.head_seq:
        raise BadEntry(f"there is no entry {at_seq} to fork at")

    async def bring(entries: Sequence[AttachmentEntry]) -> Sequence[str]:
        return await link_attachments(files, session_id, new.session_id, entries) if files else ()

    forked = ForkedEntry(
        seq=at_seq + 1,
        id=new.entry_id,
        timestamp=new.created_at,
        from_session_id=session_id,
        at_seq=at_seq,
    )
    before = await store.origin(session_id)
    origin = replace(before, user=new.user, created_at=new.created_at)
    async with store.build(new.session_id, origin) as builder:
        copy = _Copy(store, session_id, builder)
        await copy.take(through=at_seq)
        await copy.bring(bring)
        begun: list[Entry] = [forked]
        if new.name is not None:
            begun.append(replace(new.name, seq=forked.seq + 1, timestamp=new.created_at))
        await builder.add(begun)
    return replace(copy.result(), head_seq=begun[-1].seq)


class _Copy:
    """One copy on its way."""

    def __init__(self, source: Source, session_id: str, builder: Builder) -> None:
        self._source = source
        self._session_id = session_id
        self._builder = builder
        self._blobs: dict[str, BlobReference] = {}
        self._attachments: list[AttachmentEntry] = []
        self._missing: list[str] = []
        self._head_seq = 0

    def result(self) -> Copied:
        return Copied(head_seq=self._head_seq, missing=tuple(self._missing))

    async def take(self, *, through: int | None = None) -> None:
        async for batch in self._source.entries(self._session_id, through=through):
            entries = [await self._with_blobs(entry) for entry in batch]
            if self._head_seq == 0 and entries and entries[0].seq > 1:
                await self._begin_late(entries)
            else:
                await self._builder.add(entries)
            self._head_seq = entries[-1].seq if entries else self._head_seq
            self._attachments += [
                entry
                for entry in entries
                if isinstance(entry, AttachmentEntry) and entry.redacted_at is None
            ]

    async def bring(self, bring_attachments: BringAttachments | None) -> None:
        if bring_attachments is not None and self._attachments:
            self._missing += await bring_attachments(self._attachments)

    async def _begin_late(self, entries: list[Entry]) -> None:
        """The source has trimmed. A store that trims takes it as it is; in others
        every number has its entry."""
        try:
            await self._builder.add(entries)
        except BadEntry:
            await self._builder.add([*stand_ins(entries[0]), *entries[1:]])

    async def _with_blobs(self, entry: Entry) -> Entry:
        if not isinstance(entry, ToolResultsEntry):
            return entry
        results = [await self._with_blob(result) for result in entry.results]
        return replace(entry, results=tuple(results))

    async def _with_blob(self, result: ToolCallResult) -> ToolCallResult:
        if result.blob is None:
            return result
        blob_id = result.blob.blob_id
        if blob_id not in self._blobs:
            self._blobs[blob_id] = await self._bring_blob(result.blob)
        return replace(result, blob=self._blobs[blob_id])

    async def _bring_blob(self, blob: BlobReference) -> BlobReference:
        data = await read_blob_whole(self._source, self._session_id, blob)
        if data is None:
            self._missing.append(blob.blob_id)
            return blob
        return await self._builder.keep_blob(data)


async def read_blob_whole(source: Source, session_id: str, blob: BlobReference) -> bytes | None:
    """`None` unless it is there, as it was."""
    try:
        data = await source.blob(session_id, blob.blob_id, 0, blob.size)
    except BadEntry:
        return None
    is_same = len(data) == blob.size and hashlib.sha256(data).hexdigest() == blob.sha256
    return data if is_same else None
