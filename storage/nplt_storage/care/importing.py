"""Taking a file into a store: all of it, or nothing.

It keeps its id if that is free here, and gets a new one if not; nothing is done if
the conversation that has the id holds all of it already. Nothing in it goes on by
itself (`resting`). Whatever is odd about the file is one sentence, and the store is
as it was.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import anyio.to_thread

from nplt_storage.care.attaching import bringing_into
from nplt_storage.care.migrating import difference
from nplt_storage.care.resting import AtRest
from nplt_storage.care.sources import ANY_SIZE, FileSource, InOneGo, opened_source, usable_id
from nplt_storage.copying import copy_conversation
from nplt_storage.errors import StorageError
from nplt_storage.ids import new_session_id
from nplt_storage.store import ConversationStore, Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    session_id: str
    entries: int
    taken_id: str | None = None
    """The id it had, if another conversation here has it."""
    missing: tuple[str, ...] = ()
    was_there: bool = False
    """Nothing was done, no entry copied: the same conversation is here."""


async def import_file(
    store: ConversationStore,
    path: Path,
    *,
    files: Path | None,
    user: str | None = None,
    new_id: Callable[[], str] = new_session_id,
) -> Imported:
    """Raises `StorageError`. `user` is whose it is to be, if not who the file says;
    `files` where attachments are kept, where they are."""
    async with opened(path) as source:
        return await import_source(store, source, files=files, user=user, new_id=new_id)


async def import_source(
    store: ConversationStore,
    source: FileSource,
    *,
    files: Path | None,
    user: str | None = None,
    new_id: Callable[[], str] = new_session_id,
    is_taken_elsewhere: Callable[[str], Awaitable[bool]] | None = None,
) -> Imported:
    """An id may be taken by what this store knows nothing of."""
    own_id = usable_id(source)
    origin = await source.origin(own_id or "")
    origin = origin if user is None else replace(origin, user=user)
    is_taken = own_id is not None and await store.row(own_id) is not None
    if own_id is not None and is_taken and await _holds_it(store, source, own_id, origin):
        return Imported(session_id=own_id, entries=0, was_there=True)
    if own_id is not None and not is_taken:
        is_elsewhere = is_taken_elsewhere is not None and await is_taken_elsewhere(own_id)
        if is_elsewhere or await store.is_trash_of_another(own_id, origin.user):
            own_id = None
    session_id = own_id if own_id is not None and not is_taken else new_id()
    async with (
        nullcontext() if files is None else bringing_into(files, session_id, source.attachment)
    ) as bring:
        copied = await copy_conversation(
            AtRest(source),
            session_id,
            store,
            session_id,
            origin=origin,
            bring_attachments=bring,
        )
    return Imported(
        session_id=session_id,
        entries=copied.head_seq,
        taken_id=own_id if is_taken else None,
        missing=copied.missing,
    )


@asynccontextmanager
async def opened(path: Path, limits: InOneGo = ANY_SIZE) -> AsyncIterator[FileSource]:
    """Looked through in a thread: it may be long."""
    async with AsyncExitStack() as stack:
        opening = opened_source(path, limits)
        source = await anyio.to_thread.run_sync(opening.__enter__)
        stack.push(opening)
        yield source


async def _holds_it(
    store: ConversationStore, source: FileSource, session_id: str, origin: Origin
) -> bool:
    try:
        return await difference(source, store, session_id, origin=origin) is None
    except StorageError:  # what is here is damaged; if it is the file, copying says so
        return False
