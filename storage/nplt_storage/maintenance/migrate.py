"""Copies conversations into a store: all of another place, or one from a file.

Each is copied whole or not at all. A migration keeps the ids, compares each copy entry
by entry, skips what is there already, so that an interrupted run can be repeated, and
reports what can't be copied. An imported file keeps its id if that is free, else it gets
a new one; nothing is done if the conversation with that id already holds all of it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import (
    AbstractContextManager,
    ExitStack,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from pathlib import Path
from typing import Final, Literal, Protocol, TypeAlias

import anyio.to_thread
from msgspec import Struct
from msgspec.structs import replace

from nplt_storage.copying import Source, copy_conversation
from nplt_storage.entries import (
    ApprovalEntry,
    CheckpointEntry,
    Entry,
    ForkedEntry,
    ToolResultsEntry,
)
from nplt_storage.errors import (
    ConversationExists,
    ConversationNotFound,
    StorageError,
    StorageUnavailable,
)
from nplt_storage.files.examine import TurnPairing
from nplt_storage.files.format import by_session_id
from nplt_storage.ids import is_session_id, new_entry_id, new_session_id
from nplt_storage.maintenance.sources import (
    ANY_SIZE,
    FileSource,
    InOneGo,
    NotAConversation,
    ReadAttachment,
    bringing_into,
    opened_source,
)
from nplt_storage.store import ConversationStore, Origin

Outcome: TypeAlias = Literal["copied", "there", "left"]


class Moved(Struct, frozen=True, kw_only=True):
    session_id: str
    outcome: Outcome
    says: str


OpenedSource: TypeAlias = tuple[Source, ReadAttachment | None]


class Place(Protocol):
    def ids(self) -> list[str]: ...

    def open(self, session_id: str) -> AbstractContextManager[OpenedSource]:
        """Raises `StorageError`."""
        ...


class DirectoryPlace:
    """The files of a data directory, read without taking it into use."""

    def __init__(self, data_dir: Path) -> None:
        self._history = data_dir / "history"
        try:
            names = sorted(path.name for path in self._history.iterdir())
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
        with opened_source(self._history / name) as source:
            if source.session_id != session_id:
                raise NotAConversation(f"the file says it is conversation {source.session_id!r}")
            yield source, source.attachment


class StorePlace:
    """A store that is open; somebody else knows the ids."""

    def __init__(self, store: ConversationStore, ids: list[str]) -> None:
        self._store = store
        self._ids = ids

    def ids(self) -> list[str]:
        return sorted(self._ids)

    @contextmanager
    def open(self, session_id: str) -> Iterator[OpenedSource]:
        yield self._store, None


async def migrate(
    place: Place, target: ConversationStore, *, files: Path | None = None
) -> AsyncIterator[Moved]:
    """`files` is the target's directory of attachments, where there is one."""
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
    try:
        async with bringing_into(files, session_id, read) as bring:
            copied = await copy_conversation(
                source, session_id, target, session_id, bring_attachments=bring
            )
    except ConversationExists:  # another process was quicker
        return await _met(source, session_id, target)
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


async def difference(
    source: Source, target: Source, session_id: str, *, origin: Origin | None = None
) -> str | None:
    """The first thing that is not the same; the target may have gone on since.
    `origin` is what the target's should be, if not the source's."""
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
    """Stores name blobs as they like."""
    if not isinstance(entry, ToolResultsEntry):
        return entry
    results = (
        result if result.blob is None else replace(result, blob=replace(result.blob, blob_id=""))
        for result in entry.results
    )
    return replace(entry, results=tuple(results))


# ------------------------------------------------------------------------------
# Listing all conversations of a Redis
#
# Only a migration goes through the keys of a database, in small steps.

_TIMEOUT_SECONDS: Final = 30.0


def ids_in_redis(url: str, key_prefix: str) -> list[str]:
    """Blocks."""
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
    """For a pattern that means just this text."""
    return "".join(f"\\{letter}" if letter in "*?[]\\" else letter for letter in text)


# ------------------------------------------------------------------------------
# Ending what a document left open
#
# A document may hold turns that had not ended, and tool approvals for further calls.
# Neither may take effect here, so one more entry ends them, as in a fork.


class WithoutOpenTurns:
    """A `Source` that is read from its beginning to its end."""

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
        if last is not None and (has_decisions or pairing.unfinished):
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
    own_id = source.usable_id
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


@asynccontextmanager
async def opened(path: Path, limits: InOneGo = ANY_SIZE) -> AsyncIterator[FileSource]:
    """Looked through in a thread: it may be long."""
    with ExitStack() as stack:
        yield await anyio.to_thread.run_sync(stack.enter_context, opened_source(path, limits))
