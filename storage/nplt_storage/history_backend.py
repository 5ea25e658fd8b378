"""Keeps conversations in a class of three methods that somebody else wrote.

    async def get_history(self, session_id) -> [{"role": …, "content": …}, …]
    async def append_message(self, session_id, role, content) -> None
    async def clear_history(self, session_id) -> None

Such a backend holds the messages of people and models, and nothing else. So while the
server runs, conversations are held in memory with all their entries, and each message is
given to the backend before it counts as stored. A conversation that is not in memory is
read from the backend when somebody names it; it has the history's system message, and a
message without a `timestamp` the time of reading. What the backend can't hold (names, tool
calls, which conversations there are) ends with the server.

A prompt that waits behind a running turn is given to the backend at once, before the answer
of that turn. A rollback, a clear or a redaction writes the messages anew: `clear_history`,
then those that are left, each prompt with its answer.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from itertools import chain
from typing import Any, Protocol

from nplt_storage.entries import (
    ClearEntry,
    Entry,
    ModelInputEntry,
    ModelOutputEntry,
    RollbackEntry,
)
from nplt_storage.errors import StorageError
from nplt_storage.files.foreign import read_foreign
from nplt_storage.files.format import LOCAL_USER
from nplt_storage.files.json_document import NotForeign
from nplt_storage.ids import is_session_id, new_entry_id
from nplt_storage.memory import EntryList, MemoryRecord, MemoryStore, StoredConversation
from nplt_storage.messages import LevelMaker, no_levels
from nplt_storage.pages import ActiveRanges, MessagePage, PageQuery
from nplt_storage.rows import ConversationRow, fold_all
from nplt_storage.store import Builder, Opened, Origin, StoreDescription

METHODS = ("get_history", "append_message", "clear_history")


class HistoryBackend(Protocol):
    async def get_history(self, session_id: str) -> Sequence[Mapping[str, str]]: ...

    async def append_message(self, session_id: str, role: str, content: str) -> None: ...

    async def clear_history(self, session_id: str) -> None: ...


class BackendFailed(StorageError):
    """Concerns the operator: a method of their backend raised, or returned something that is not a
    message."""


def why_no_backend(found: object) -> str | None:
    """The reason why a class is not a message backend, or `None` if it is one."""
    if missing := [name for name in METHODS if not callable(getattr(found, name, None))]:
        return f"lacks {' and '.join(missing)}"
    blocking = [name for name in METHODS if not inspect.iscoroutinefunction(getattr(found, name))]
    if blocking:
        return f"must have `async def` before {' and '.join(blocking)}"
    for name in METHODS:
        expected = inspect.signature(getattr(HistoryBackend, name)).parameters
        try:
            inspect.signature(getattr(found, name)).bind(*expected)
        except TypeError:
            return f"must have {name}({', '.join(expected)})"
    return None


def make_backend(found: Callable[..., Any], options: Mapping[str, Any]) -> HistoryBackend:
    """Calls the class with its settings as one mapping, or without arguments if it takes none."""
    takes_settings = bool(inspect.signature(found).parameters)
    backend: HistoryBackend = found(dict(options)) if takes_settings else found()
    return backend


def _message(entry: Entry) -> tuple[str, str] | None:
    """The role and content of an entry that the backend stores, or `None`."""
    if isinstance(entry, ModelInputEntry) or (
        isinstance(entry, ModelOutputEntry) and entry.content
    ):
        return entry.role, entry.content
    return None


class HistoryBackendRecord(MemoryRecord):
    def __init__(
        self, session_id: str, kept: StoredConversation, store: HistoryBackendStore
    ) -> None:
        super().__init__(session_id, kept)
        self._store = store

    async def append(self, entry: Entry) -> ConversationRow:
        kept = self._writable()
        kept.check(entry)
        if (message := _message(entry)) is not None:
            await self._store.append_message(self.session_id, *message)
        row = await super().append(entry)
        if isinstance(entry, ClearEntry | RollbackEntry):
            await self._store.write_kept(self.session_id, kept)
        return row

    async def redact(self, seq: int, *, at: datetime) -> Entry:
        tombstone = await super().redact(seq, at=at)
        await self._store.write_kept(self.session_id, self._writable())
        return tombstone


class HistoryBackendStore(MemoryStore):
    def __init__(
        self,
        backend: HistoryBackend,
        name: str,
        clock: Callable[[], datetime],
        system_message: str | None,
        *,
        levels: LevelMaker = no_levels,
    ) -> None:
        super().__init__(clock, levels=levels)
        self._backend = backend
        self._name = name
        self._system_message = system_message
        self.description = StoreDescription(
            backend=name,
            promise="messages are kept as the backend keeps them; names, tool calls and the "
            "list of conversations until the server stops",
        )

    @contextmanager
    def _our_errors(self, method: str) -> Iterator[None]:
        called = f"{self._name}.{method}"
        try:
            yield
        except NotForeign as error:
            raise BackendFailed(f"{called} gave no messages: {error}") from error
        except Exception as error:  # it is the operator's own code: anything can happen in it
            raise BackendFailed(f"{called} failed: {type(error).__name__}: {error}") from error

    async def append_message(self, session_id: str, role: str, content: str) -> None:
        with self._our_errors("append_message"):
            await self._backend.append_message(session_id, role, content)

    async def clear_history(self, session_id: str) -> None:
        with self._our_errors("clear_history"):
            await self._backend.clear_history(session_id)

    async def write_kept(self, session_id: str, kept: StoredConversation) -> None:
        """Replaces the backend's messages by the active ones since the last clear, turn by turn in
        the order of their prompts."""
        turns: dict[str, list[tuple[str, str]]] = {}
        for entry in ActiveRanges(EntryList(kept.entries), kept.row.hidden).after(0):
            if isinstance(entry, ClearEntry):
                turns.clear()
            elif (message := _message(entry)) is not None:
                turns.setdefault(entry.turn_id or entry.id, []).append(message)
        await self.clear_history(session_id)
        for role, content in chain.from_iterable(turns.values()):
            await self.append_message(session_id, role, content)

    def _record(self, session_id: str, kept: StoredConversation) -> MemoryRecord:
        return HistoryBackendRecord(session_id, kept, self)

    async def _load(self, session_id: str) -> None:
        """Reads a conversation that only the backend knows. It belongs to the local user:
        a backend of messages does not know whose they are."""
        if session_id in self._kept or session_id in self._trash or not is_session_id(session_id):
            return
        undated = {"timestamp": self._clock().isoformat()}
        with self._our_errors("get_history"):
            held = await self._backend.get_history(session_id) or ()
            found = [{**undated, **message} for message in held]
            if found and self._system_message:
                found.insert(0, {**undated, "role": "system", "content": self._system_message})
            document = json.dumps({"session_id": session_id, "messages": found})
            header, entries = read_foreign(document.encode(), session_id, new_id=new_entry_id)
        if entries and session_id not in self._kept:
            origin = Origin(user=LOCAL_USER, created_at=header.created_at)
            self._kept[session_id] = kept = StoredConversation.new(session_id, origin)
            kept.row, kept.entries = fold_all(kept.row, entries), entries

    async def open(self, session_id: str) -> Opened:
        await self._load(session_id)
        return await super().open(session_id)

    async def page(self, session_id: str, query: PageQuery) -> MessagePage:
        await self._load(session_id)
        return await super().page(session_id, query)

    async def row(self, session_id: str) -> ConversationRow | None:
        await self._load(session_id)
        return await super().row(session_id)

    @asynccontextmanager
    async def build(self, session_id: str, origin: Origin) -> AsyncIterator[Builder]:
        async with super().build(session_id, origin) as builder:
            yield builder
        await self.write_kept(session_id, self._kept[session_id])

    async def delete(self, session_id: str) -> None:
        await super().delete(session_id)
        await self.clear_history(session_id)

    async def undelete(self, session_id: str, *, user: str | None = None) -> None:
        await super().undelete(session_id, user=user)
        await self.write_kept(session_id, self._kept[session_id])
