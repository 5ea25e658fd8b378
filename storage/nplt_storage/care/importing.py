"""Taking a file into a store: all of it, or nothing.

It keeps its id if that is free here, and gets a new one if not. Whatever is odd
about the file is one sentence, and the store is as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from nplt_storage.care.attaching import bring_into
from nplt_storage.care.sources import opened_source, usable_id
from nplt_storage.copying import copy_conversation
from nplt_storage.ids import new_session_id
from nplt_storage.store import ConversationStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    session_id: str
    entries: int
    taken_id: str | None = None
    """The id it had, if another conversation here has it."""
    missing: tuple[str, ...] = ()


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
    with opened_source(path) as source:
        own_id = usable_id(source)
        is_taken = own_id is not None and await store.row(own_id) is not None
        session_id = own_id if own_id is not None and not is_taken else new_id()
        origin = await source.origin(session_id)
        copied = await copy_conversation(
            source,
            session_id,
            store,
            session_id,
            origin=origin if user is None else replace(origin, user=user),
            bring_attachments=(
                None if files is None else bring_into(files, session_id, source.attachment)
            ),
        )
    return Imported(
        session_id=session_id,
        entries=copied.head_seq,
        taken_id=own_id if is_taken else None,
        missing=copied.missing,
    )
