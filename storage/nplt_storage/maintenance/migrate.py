"""Migrates conversations from one place to another, each whole or not at all.

A migration keeps the ids, compares each copy entry by entry, skips what is there already, so that
an interrupted run can be repeated, and reports what can't be copied. Attached files go to the
target's directory of them, or into the store itself if it keeps files.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Final, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from nplt_storage.copying import (
    ReadAttachment,
    Source,
    bringing_into,
    copy_conversation,
    difference,
)
from nplt_storage.entries import AttachmentEntry, Entry
from nplt_storage.errors import (
    BadEntry,
    ConversationExists,
    ConversationNotFound,
    StorageError,
    StorageUnavailable,
)
from nplt_storage.file_system import Disk
from nplt_storage.files.format import by_session_id
from nplt_storage.ids import is_session_id
from nplt_storage.maintenance.sources import NotAConversation, opened_source
from nplt_storage.store import ConversationStore, KeepsFiles, Origin

Outcome: TypeAlias = Literal["copied", "there", "left"]


class Moved(Struct, frozen=True, kw_only=True):
    session_id: str
    outcome: Outcome
    says: str


OpenedSource: TypeAlias = tuple[Source, ReadAttachment | None]


class DirectoryPlace:
    """The files of a data directory, read without locking it."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._history = data_dir / "history"
        try:
            names = [file.name for file in Disk(data_dir).found_in(self._history)]
        except OSError as error:
            reason = f"{data_dir} is no data directory: {error.strerror} (history)"
            raise StorageUnavailable(reason) from error
        self._names = by_session_id(names)

    def ids(self) -> list[str]:
        return sorted(self._names)

    @contextmanager
    def open(self, session_id: str) -> Iterator[OpenedSource]:
        if session_id not in self._names:
            raise ConversationNotFound(session_id)
        name, *others = self._names[session_id]
        if others:
            raise NotAConversation("there is more than one file for it")
        with opened_source(self._history / name, data_dir=self._data_dir) as source:
            if source.session_id != session_id:
                raise NotAConversation(f"the file says it is conversation {source.session_id!r}")
            yield source, source.attachment


class StorePlace:
    """An open store, with ids from the caller."""

    def __init__(self, store: ConversationStore, ids: Sequence[str]) -> None:
        self._store = store
        self._ids = ids

    def ids(self) -> list[str]:
        return sorted(self._ids)

    @contextmanager
    def open(self, session_id: str) -> Iterator[OpenedSource]:
        source = _Snapshot(self._store)
        has_files = isinstance(self._store, KeepsFiles)
        yield source, partial(source.attachment, session_id) if has_files else None


class _Snapshot:
    """A conversation of a store as far as it went when it was first read: servers may add to it."""

    def __init__(self, store: ConversationStore) -> None:
        self._store = store
        self._head_seq: int | None = None

    async def entries(
        self, session_id: str, *, after: int = 0, through: int | None = None
    ) -> AsyncIterator[Sequence[Entry]]:
        if self._head_seq is None:
            row = await self._store.row(session_id)
            if row is None:
                raise ConversationNotFound(session_id)
            self._head_seq = row.head_seq
        last = self._head_seq if through is None else min(through, self._head_seq)
        async for batch in self._store.entries(session_id, after=after, through=last):
            yield batch

    async def origin(self, session_id: str) -> Origin:
        return await self._store.origin(session_id)

    async def blob(self, session_id: str, blob_id: str, offset: int, length: int) -> bytes:
        return await self._store.blob(session_id, blob_id, offset, length)

    async def attachment(self, session_id: str, entry: AttachmentEntry) -> bytes | None:
        """The attached file; `None` if the store does not have it as it was."""
        assert isinstance(self._store, KeepsFiles)
        try:
            pieces = [piece async for piece in self._store.file_pieces(session_id, entry.file_id)]
        except BadEntry:
            return None
        data = b"".join(pieces)
        return data if hashlib.sha256(data).hexdigest() == entry.sha256 else None


Place: TypeAlias = DirectoryPlace | StorePlace


async def migrate(
    place: Place, target: ConversationStore, *, files: Path | None = None
) -> AsyncIterator[Moved]:
    """Copies all conversations; `files` is the target's directory of attachments, if it has one."""
    for session_id in place.ids():
        try:
            with place.open(session_id) as (source, read):
                moved = await _move(source, read, session_id, target, files)
        except StorageError as error:
            moved = Moved(session_id=session_id, outcome="left", says=str(error))
        yield moved


async def _move(
    source: Source,
    read: ReadAttachment | None,
    session_id: str,
    target: ConversationStore,
    files: Path | None,
) -> Moved:
    if await target.row(session_id) is not None:
        return await _met(source, session_id, target)
    attached: list[AttachmentEntry] = []

    async def keep_later(entries: Sequence[AttachmentEntry]) -> Sequence[str]:
        attached.extend(entries)
        return ()

    try:
        async with bringing_into(files, session_id, read) as bring:
            copied = await copy_conversation(
                source, session_id, target, session_id, bring_attachments=bring or keep_later
            )
    except ConversationExists:  # another process was quicker
        return await _met(source, session_id, target)
    if read is not None and isinstance(target, KeepsFiles):
        missing = await _kept(attached, read, session_id, target)
        copied = replace(copied, missing=(*copied.missing, *missing))
    wrong = await difference(source, target, session_id)
    if wrong is not None:
        await target.delete(session_id)
        says = f"the copy was not the same and was deleted again: {wrong}"
        return Moved(session_id=session_id, outcome="left", says=says)
    says = f"{copied.head_seq} entries"
    if copied.missing:
        says += f"; missing at the source: {', '.join(copied.missing)}"
    return Moved(session_id=session_id, outcome="copied", says=says)


async def _met(source: Source, session_id: str, target: ConversationStore) -> Moved:
    wrong = await difference(source, target, session_id)
    if wrong is None:
        return Moved(session_id=session_id, outcome="there", says="it is there already")
    says = f"another conversation with this id is there: {wrong}"
    return Moved(session_id=session_id, outcome="left", says=says)


async def _kept(
    attached: Sequence[AttachmentEntry], read: ReadAttachment, session_id: str, target: KeepsFiles
) -> list[str]:
    """Puts attached files into the store, and returns the ids of those that are missing."""
    missing: list[str] = []
    for entry in attached:
        data = await read(entry)
        if data is None:
            missing.append(entry.file_id)
            continue
        with NamedTemporaryFile() as file:
            file.write(data)
            file.flush()
            await target.keep_file(session_id, entry.file_id, Path(file.name))
    return missing


_TIMEOUT_SECONDS: Final = 30.0


def ids_in_redis(url: str, key_prefix: str) -> list[str]:
    """The ids of all conversations in a Redis. Only a migration scans the keys of a database, in
    small steps. Blocks."""
    # An extra: whoever has no Redis does not need it.
    import redis

    from nplt_storage.redis.connection import RedisConnection

    found: set[str] = set()
    connection = RedisConnection(url, timeout_seconds=_TIMEOUT_SECONDS)
    try:
        for key in connection.keys_matching(_as_it_is(key_prefix) + "*:meta"):
            name = bytes(key).decode("utf-8", "replace")
            session_id = name.removeprefix(key_prefix).removesuffix(":meta")
            if session_id.startswith("{"):  # the present layout
                session_id = session_id.removeprefix("{").removesuffix("}")
            if is_session_id(session_id):
                found.add(session_id)
    except redis.RedisError as error:
        raise StorageUnavailable(f"Redis can't be read: {type(error).__name__}") from error
    finally:
        connection.close()
    return sorted(found)


def _as_it_is(text: str) -> str:
    """A glob pattern that matches exactly this text."""
    return "".join(f"\\{letter}" if letter in "*?[]\\" else letter for letter in text)
