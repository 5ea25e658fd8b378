"""Imports a conversation from a file, whole or not at all.

It keeps its id if that is free, else it gets a new one; nothing is done if the conversation with
that id already holds all of it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from nplt_storage.copying import Source, bringing_into, copy_conversation, difference
from nplt_storage.entries import ApprovalEntry, Entry, ForkedEntry
from nplt_storage.errors import StorageError
from nplt_storage.files.examination import TurnPairing
from nplt_storage.ids import new_entry_id, new_session_id
from nplt_storage.maintenance.sources import FileSource, opened
from nplt_storage.store import ConversationStore, Origin


class WithoutOpenTurns:
    """A `Source` that is read once from beginning to end. A document may hold turns that had not
    ended, and tool approvals for further calls. Neither may take effect here, so one more entry
    ends them, as in a fork."""

    def __init__(self, source: Source) -> None:
        self._source = source

    async def entries(
        self, session_id: str, *, after: int = 0, through: int | None = None
    ) -> AsyncIterator[Sequence[Entry]]:
        pairing, has_decisions = TurnPairing(), False
        last: Entry | None = None
        async for batch in self._source.entries(session_id, after=after, through=through):
            for last in batch:
                pairing.add(last)
                if isinstance(last, ApprovalEntry | ForkedEntry):
                    has_decisions = isinstance(last, ApprovalEntry)
            yield batch
        if last is not None and (has_decisions or pairing.unfinished or pairing.later):
            yield [
                ForkedEntry(
                    seq=last.seq + 1,
                    id=new_entry_id(),
                    timestamp=last.timestamp,  # lists shall have it where it was
                    from_session_id=session_id,
                    at_seq=last.seq,
                )
            ]

    async def origin(self, session_id: str) -> Origin:
        return await self._source.origin(session_id)

    async def blob(self, session_id: str, blob_id: str, offset: int, length: int) -> bytes:
        return await self._source.blob(session_id, blob_id, offset, length)


class Imported(Struct, frozen=True, kw_only=True):
    session_id: str
    entries: int
    taken_id: str | None = None
    """The id it had, if another conversation here has it."""
    missing: tuple[str, ...] = ()
    was_there: bool = False
    """The same conversation is already here, so nothing was copied."""


async def import_file(
    store: ConversationStore,
    path: Path,
    *,
    files: Path | None,
    user: str | None = None,
    new_id: Callable[[], str] = new_session_id,
) -> Imported:
    """Imports one file. `user` is the new owner, if not the one in the file; `files` is the
    directory of attachments, if there is one. Raises `StorageError`."""
    async with opened(path) as source:
        return await import_source(store, source, files=files, user=user, new_id=new_id)


async def import_source(  # noqa: PLR0913
    store: ConversationStore,
    source: FileSource,
    *,
    files: Path | None,
    user: str | None = None,
    new_id: Callable[[], str] = new_session_id,
    id_here: Callable[[str], Awaitable[str]] | None = None,
    is_taken_elsewhere: Callable[[str], Awaitable[bool]] | None = None,
) -> Imported:
    """Imports a conversation under its own id or, if that is taken, a new one. `id_here` gives the
    id for a document that has one; without it, the document's own counts. `is_taken_elsewhere`
    is asked about ids that this store does not know."""
    own_id = source.usable_id
    if own_id is not None and id_here is not None:
        own_id = await id_here(own_id)
    origin = await source.origin(own_id or "")
    origin = origin if user is None else replace(origin, user=user)
    taken_id: str | None = None
    if own_id is not None and await store.row(own_id) is not None:
        # An error: what is here is damaged; if it is the file, copying says so.
        with suppress(StorageError):
            if await difference(source, store, own_id, origin=origin) is None:
                return Imported(session_id=own_id, entries=0, was_there=True)
        own_id, taken_id = None, own_id
    if own_id is not None:
        is_elsewhere = is_taken_elsewhere is not None and await is_taken_elsewhere(own_id)
        if is_elsewhere or await store.is_trash_of_another(own_id, origin.user):
            own_id = None
    session_id = own_id or new_id()
    async with bringing_into(files, session_id, source.attachment) as bring:
        copied = await copy_conversation(
            WithoutOpenTurns(source),
            session_id,
            store,
            session_id,
            origin=origin,
            bring_attachments=bring,
        )
    return Imported(
        session_id=session_id,
        entries=copied.head_seq,
        taken_id=taken_id,
        missing=copied.missing,
    )
