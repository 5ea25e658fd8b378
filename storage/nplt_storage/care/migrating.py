"""All conversations of all users, from one place to another; the first is only read.

Each keeps its id, is copied whole or not at all, and compared afterwards, entry
by entry. What is there already, and the same, is passed over: so it can be
interrupted and begun again. What can't be moved is left where it is, and said.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

from nplt_storage.care.attaching import bringing_into
from nplt_storage.care.documents import ReadAttachment
from nplt_storage.care.sources import NotAConversation, opened_source
from nplt_storage.copying import Source, copy_conversation
from nplt_storage.errors import (
    ConversationExists,
    ConversationNotFound,
    StorageError,
    StorageUnavailable,
)
from nplt_storage.facts.entries import CheckpointEntry, Entry, ToolResultsEntry
from nplt_storage.facts.tool_calls import ToolCallResult
from nplt_storage.files.names import session_id_of
from nplt_storage.store import ConversationStore, Origin

Outcome: TypeAlias = Literal["copied", "there", "left"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    session_id: str
    outcome: Outcome
    says: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """One conversation at the place that is left."""

    source: Source
    read_attachment: ReadAttachment | None = None


class Place(Protocol):
    def ids(self) -> list[str]: ...

    def open(self, session_id: str) -> AbstractContextManager[Removal]:
        """Raises `StorageError`."""
        ...


class DirectoryPlace:
    """The files of a data directory, read without taking it into use."""

    def __init__(self, data_dir: Path) -> None:
        self._paths: dict[str, list[Path]] = {}
        try:
            found = sorted((data_dir / "history").iterdir())
        except OSError as error:
            reason = f"{data_dir} is no data directory: {error.strerror} (history)"
            raise StorageUnavailable(reason) from error
        for path in found:
            session_id = session_id_of(path.name)
            if session_id is not None:
                self._paths.setdefault(session_id, []).append(path)

    def ids(self) -> list[str]:
        return sorted(self._paths)

    @contextmanager
    def open(self, session_id: str) -> Iterator[Removal]:
        if session_id not in self._paths:
            raise ConversationNotFound(session_id)
        path, *others = self._paths[session_id]
        if others:
            raise NotAConversation("there is more than one file for it")
        with opened_source(path) as source:
            if source.session_id != session_id:
                raise NotAConversation(f"the file says it is conversation {source.session_id!r}")
            yield Removal(source=source, read_attachment=source.attachment)


class StorePlace:
    """A store that is open; somebody else knows the ids."""

    def __init__(self, store: ConversationStore, ids: list[str]) -> None:
        self._store = store
        self._ids = ids

    def ids(self) -> list[str]:
        return sorted(self._ids)

    @contextmanager
    def open(self, session_id: str) -> Iterator[Removal]:
        yield Removal(source=self._store)


async def migrate(
    place: Place, target: ConversationStore, *, files: Path | None = None
) -> AsyncIterator[Moved]:
    """`files` is the target's directory of attachments, where there is one."""
    for session_id in place.ids():
        try:
            with place.open(session_id) as removal:
                moved = await _move(removal, session_id, target, files)
        except StorageError as error:
            moved = Moved(session_id=session_id, outcome="left", says=str(error))
        yield moved


async def _move(
    removal: Removal, session_id: str, target: ConversationStore, files: Path | None
) -> Moved:
    source = removal.source
    if await target.row(session_id) is not None:
        return await _met(source, session_id, target)
    read = removal.read_attachment
    try:
        async with (
            nullcontext()
            if files is None or read is None
            else bringing_into(files, session_id, read)
        ) as bring:
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
    return replace(entry, results=tuple(map(_with_plain_blob, entry.results)))


def _with_plain_blob(result: ToolCallResult) -> ToolCallResult:
    if result.blob is None:
        return result
    return replace(result, blob=replace(result.blob, blob_id=""))
