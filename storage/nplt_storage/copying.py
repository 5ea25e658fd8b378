"""Copies a conversation from one store to another, whole or not at all.

Works for every store, because it only uses the `ConversationStore` interface:
entries come in batches, blobs are copied along, and the copy appears in one step.
A fork is a copy of the first entries and one more entry that says so; afterwards
the two conversations are independent. Attachments are brought along where the target has a
directory for them, and a copy can be compared with its source entry by entry.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final, Protocol, TypeAlias

import anyio
import anyio.to_thread
from msgspec import Struct
from msgspec.structs import replace

from nplt_storage.attachments import end_copy, link_attachments, mark_copy
from nplt_storage.entries import (
    ArchivedEntry,
    AttachmentEntry,
    BlobReference,
    CheckpointEntry,
    DebugEntry,
    Entry,
    ForkedEntry,
    ModelSwitchedEntry,
    PinnedEntry,
    RenamedEntry,
    ToolCallResult,
    ToolResultsEntry,
)
from nplt_storage.errors import BadEntry, ConversationNotFound, StorageUnavailable
from nplt_storage.file_system import Disk, write_new_file
from nplt_storage.ids import is_file_id
from nplt_storage.json_values import JsonObject
from nplt_storage.rows import Checkpoint, read_checkpoint
from nplt_storage.store import Builder, ConversationStore, Origin

# ------------------------------------------------------------------------------
# Replacing trimmed entries
#
# A store that trims keeps a checkpoint of the state before its first entry. Copied
# to a store that does not trim, the checkpoint becomes entries again: the
# instruction, the notebook and the widgets' states at their own numbers, because
# rows refer to these, and a `debug` entry at every other number.


def stand_ins(first: Entry) -> list[Entry]:
    """The entries from 1 up to the checkpoint `first`, which they replace."""
    checkpoint = read_checkpoint(first) if isinstance(first, CheckpointEntry) else None
    if checkpoint is None:
        raise BadEntry(f"it begins with entry {first.seq}, and nothing says what was before")
    at_place = {entry.seq: entry for entry in checkpoint.state_entries}
    anywhere = _anywhere(checkpoint)
    entries: list[Entry] = []
    for seq in range(1, first.seq + 1):
        draft = at_place.get(seq) or next(anywhere, None) or _TRIMMED
        entry_id = f"{first.id}-{seq}"  # the same every time, so that copies can be compared
        entries.append(replace(draft, seq=seq, id=entry_id, timestamp=first.timestamp))
    return entries


def _anywhere(checkpoint: Checkpoint) -> Iterator[Entry]:
    row = checkpoint.row
    if row.named:
        yield RenamedEntry(name=row.name)
    if row.model is not None or row.options:
        yield ModelSwitchedEntry(model=row.model or "", options=dict(row.options) or None)
    if row.pinned:
        yield PinnedEntry(pinned=True)
    if row.archived:
        yield ArchivedEntry(archived=True)
    if row.billed:
        state: JsonObject = {"billed": [list(model) for model in row.billed]}
        if row.billed_details:
            state["billed_details"] = [list(model) for model in row.billed_details]
        yield CheckpointEntry(state=state)


_TRIMMED: Final = DebugEntry(
    category="trimmed", content="this entry was trimmed before it was moved here"
)


BringAttachments: TypeAlias = Callable[[Sequence[AttachmentEntry]], Awaitable[Sequence[str]]]
"""Brings the files of these entries to the copy, and returns the ids of those it could not find."""


class Source(Protocol):
    """Anything that can be copied from: a store, or a file that is only read."""

    def entries(
        self, session_id: str, *, after: int = 0, through: int | None = None
    ) -> AsyncIterator[Sequence[Entry]]: ...

    async def origin(self, session_id: str) -> Origin: ...

    async def blob(self, session_id: str, blob_id: str, offset: int, length: int) -> bytes: ...


class Copied(Struct, frozen=True, kw_only=True):
    head_seq: int
    missing: tuple[str, ...] = ()
    """Blobs and attachments that the source names but lacks, or that have changed. The entries that
    name them were copied unchanged."""


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
        return await _copy(source, session_id, builder, bring_attachments)


class NewFork(Struct, frozen=True, kw_only=True):
    """The name and owner of a fork, and the stamp of its first entry."""

    session_id: str
    user: str
    created_at: datetime
    entry_id: str
    name: RenamedEntry | None = None
    """A draft with an id of its own; `None` keeps the original's name."""


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

    added: list[Entry] = [
        ForkedEntry(
            seq=at_seq + 1,
            id=new.entry_id,
            timestamp=new.created_at,
            from_session_id=session_id,
            at_seq=at_seq,
        )
    ]
    if new.name is not None:
        added.append(replace(new.name, seq=at_seq + 2, timestamp=new.created_at))
    before = await store.origin(session_id)
    origin = replace(before, user=new.user, created_at=new.created_at)
    is_there = False
    try:
        async with store.build(new.session_id, origin) as builder:
            copied = await _copy(store, session_id, builder, bring, through=at_seq)
            await builder.add(added)
        is_there = True
    finally:
        if files is not None:
            end = partial(end_copy, files, new.session_id, is_there=is_there)
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(end)
    return replace(copied, head_seq=added[-1].seq)


async def _copy(
    source: Source,
    session_id: str,
    builder: Builder,
    bring_attachments: BringAttachments | None,
    *,
    through: int | None = None,
) -> Copied:
    blobs: dict[str, BlobReference] = {}
    attachments: list[AttachmentEntry] = []
    missing: list[str] = []
    head_seq = 0

    async def with_blob(result: ToolCallResult) -> ToolCallResult:
        blob = result.blob
        if blob is None:
            return result
        if blob.blob_id not in blobs:
            data = await read_blob_whole(source, session_id, blob)
            if data is None:
                missing.append(blob.blob_id)
            blobs[blob.blob_id] = blob if data is None else await builder.keep_blob(data)
        return replace(result, blob=blobs[blob.blob_id])

    async for batch in source.entries(session_id, through=through):
        entries = list(batch)
        for place, entry in enumerate(entries):
            if isinstance(entry, ToolResultsEntry):
                results = [await with_blob(result) for result in entry.results]
                entries[place] = replace(entry, results=tuple(results))
            elif isinstance(entry, AttachmentEntry) and entry.redacted_at is None:
                attachments.append(entry)
        try:
            await builder.add(entries)
        except BadEntry:
            if head_seq or entries[0].seq == 1:
                raise
            # The source has trimmed. A store that trims takes it as it is; in others every
            # number has its entry.
            await builder.add([*stand_ins(entries[0]), *entries[1:]])
        head_seq = entries[-1].seq if entries else head_seq
    if bring_attachments is not None and attachments:
        missing += await bring_attachments(attachments)
    return Copied(head_seq=head_seq, missing=tuple(missing))


async def read_blob_whole(source: Source, session_id: str, blob: BlobReference) -> bytes | None:
    """The whole blob; `None` if it is missing or has changed."""
    try:
        data = await source.blob(session_id, blob.blob_id, 0, blob.size)
    except BadEntry:
        return None
    is_same = len(data) == blob.size and hashlib.sha256(data).hexdigest() == blob.sha256
    return data if is_same else None


async def difference(
    source: Source, target: Source, session_id: str, *, origin: Origin | None = None
) -> str | None:
    """The first difference, or `None`; the target may have grown since. `origin` is the expected
    origin of the target, if not the source's."""
    before, after = origin or await source.origin(session_id), await target.origin(session_id)
    if before != after:
        return "its user, the time it began or what was said of it differ"
    copies: AsyncIterator[Entry] | None = None
    async for entry in _singly(source, session_id, after=0):
        if copies is None:
            if isinstance(entry, CheckpointEntry) and entry.seq > 1:
                # It stands for what was trimmed; the target may say that in its own way.
                copies = _singly(target, session_id, after=entry.seq)
                continue
            copies = _singly(target, session_id, after=0)
        copy = await anext(copies, None)
        if copy is None or _comparable(copy) != _comparable(entry):
            return f"entry {entry.seq} differs" if copy else f"entry {entry.seq} is not there"
    return None


async def _singly(source: Source, session_id: str, *, after: int) -> AsyncIterator[Entry]:
    async for batch in source.entries(session_id, after=after):
        for entry in batch:
            yield entry


def _comparable(entry: Entry) -> Entry:
    """The entry without blob ids, which each store chooses itself."""
    if not isinstance(entry, ToolResultsEntry):
        return entry
    results = (
        result if result.blob is None else replace(result, blob=replace(result.blob, blob_id=""))
        for result in entry.results
    )
    return replace(entry, results=tuple(results))


ReadAttachment: TypeAlias = Callable[[AttachmentEntry], Awaitable[bytes | None]]


@asynccontextmanager
async def bringing_into(
    files: Path | None, new_id: str, read: ReadAttachment | None
) -> AsyncIterator[BringAttachments | None]:
    """Brings attachments to `files`, the target's directory of them, if it has one. The body of the
    `with` block makes the copy; if that fails, they are removed again."""
    if files is None or read is None:
        yield None
        return
    folder, disk = files / new_id, Disk(files.parent)
    brought: list[Path] = []

    def keep(file_id: str, data: bytes) -> None:
        path = folder / file_id
        try:
            mark_copy(files, new_id)
            disk.make_directory(folder)
            if disk.find(path) is None:  # else it is not ours to remove again
                brought.append(path)
            write_new_file(disk, path, data)
        except OSError as error:
            raise StorageUnavailable(f"an attachment can't be kept: {error.strerror}") from error

    async def bring(entries: Sequence[AttachmentEntry]) -> Sequence[str]:
        missing: list[str] = []
        for entry in entries:
            data = await read(entry) if is_file_id(entry.file_id) else None
            if data is None:
                missing.append(entry.file_id)
            else:
                await anyio.to_thread.run_sync(keep, entry.file_id, data)
        return missing

    def remove() -> None:
        with suppress(OSError):  # whoever failed before has more to say
            for path in brought:
                disk.remove(path)
            disk.remove_directory(folder)  # if nothing else is in it

    try:
        yield bring
    except BaseException:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(remove)
        raise
    finally:
        end_copy(files, new_id, is_there=True)  # what was brought, and only that, is removed
