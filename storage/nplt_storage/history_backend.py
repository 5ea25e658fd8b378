"""Stores conversations in a class with three methods, which the operator supplies.

    async def get_history(self, session_id) -> [{"role": …, "content": …}, …]
    async def append_message(self, session_id, role, content) -> None
    async def clear_history(self, session_id) -> None

Such a backend stores the messages of people and models, and nothing else. So while the
server runs, it holds conversations in memory with all their entries, and gives each message
to the backend before the message counts as stored. A conversation that is not in memory is
read from the backend when it is requested by its id. It gets the system message from the
settings. Messages without a `timestamp` are dated to when they were read. Whatever the
backend can't hold (names, tool calls, the list of conversations) is lost when the server stops.

A prompt that waits behind a running turn is given to the backend at once, before the answer
of that turn. A rollback, a clear, a redaction, an import and an undeletion rewrite the
messages: `clear_history`, then whatever is left, each prompt followed by its answer. A rewrite
is the exception to "the backend first": memory changes first, so a failing backend leaves the
two different, and one that fails between `clear_history` and the last message has lost the rest.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from itertools import chain
from typing import Any, Protocol

from nplt_storage.entries import ClearEntry, Entry, ModelInputEntry, ModelOutputEntry, RollbackEntry
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
    """A method of the operator's backend raised, or returned something that is not a message."""


def why_not_a_backend(candidate: object) -> str | None:
    """The reason why a class is not a history backend, or `None` if it is one."""
    if missing := [name for name in METHODS if not callable(getattr(candidate, name, None))]:
        return f"lacks {' and '.join(missing)}"
    blocking = [
        name for name in METHODS if not inspect.iscoroutinefunction(getattr(candidate, name))
    ]
    if blocking:
        return f"must have `async def` before {' and '.join(blocking)}"
    for name in METHODS:
        expected = inspect.signature(getattr(HistoryBackend, name)).parameters
        try:
            inspect.signature(getattr(candidate, name)).bind(*expected)
        except TypeError:
            return f"must have {name}({', '.join(expected)})"
    return None


def make_backend(backend_class: Callable[..., Any], options: Mapping[str, Any]) -> HistoryBackend:
    """Calls the class with its settings as one mapping, or without arguments if it takes none."""
    takes_settings = bool(inspect.signature(backend_class).parameters)
    backend: HistoryBackend = backend_class(dict(options)) if takes_settings else backend_class()
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
        self, session_id: str, stored: StoredConversation, store: HistoryBackendStore
    ) -> None:
        super().__init__(session_id, stored, store.changes)
        self._store = store

    async def append(self, entry: Entry) -> ConversationRow:
        stored = self._writable()
        stored.check(entry)
        if (message := _message(entry)) is not None:
            await self._store.append_message(self.session_id, *message)
        row = await super().append(entry)
        if isinstance(entry, ClearEntry | RollbackEntry):
            await self._store.rewrite_backend(self.session_id, stored)
        return row

    async def redact(self, seq: int, *, at: datetime) -> Entry:
        tombstone = await super().redact(seq, at=at)
        await self._store.rewrite_backend(self.session_id, self._writable())
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
    def _backend_errors(self, method: str) -> Iterator[None]:
        called = f"{self._name}.{method}"
        try:
            yield
        except NotForeign as error:
            raise BackendFailed(f"{called} gave no messages: {error}") from error
        except Exception as error:  # the operator's own code can raise anything
            raise BackendFailed(f"{called} failed: {type(error).__name__}: {error}") from error

    async def append_message(self, session_id: str, role: str, content: str) -> None:
        with self._backend_errors("append_message"):
            await self._backend.append_message(session_id, role, content)

    async def clear_history(self, session_id: str) -> None:
        with self._backend_errors("clear_history"):
            await self._backend.clear_history(session_id)

    async def rewrite_backend(self, session_id: str, stored: StoredConversation) -> None:
        """Replaces the backend's messages by the active ones since the last clear, turn by turn in
        the order of their prompts."""
        turns: dict[str, list[tuple[str, str]]] = {}
        for entry in ActiveRanges(EntryList(stored.entries), stored.row.hidden).after(0):
            if isinstance(entry, ClearEntry):
                turns.clear()
            elif (message := _message(entry)) is not None:
                turns.setdefault(entry.turn_id or entry.id, []).append(message)
        await self.clear_history(session_id)
        for role, content in chain.from_iterable(turns.values()):
            await self.append_message(session_id, role, content)

    def _record(self, session_id: str, stored: StoredConversation) -> MemoryRecord:
        return HistoryBackendRecord(session_id, stored, self)

    async def _load(self, session_id: str) -> None:
        """Reads a conversation that only the backend knows. It belongs to the local user,
        because a backend does not record owners."""
        if (
            session_id in self._conversations
            or session_id in self._trash
            or not is_session_id(session_id)
        ):
            return
        default = {"timestamp": self._clock().isoformat()}
        with self._backend_errors("get_history"):
            stored = await self._backend.get_history(session_id) or ()
            messages = [{**default, **message} for message in stored]
            if messages and self._system_message:
                messages.insert(0, {**default, "role": "system", "content": self._system_message})
            document = json.dumps({"session_id": session_id, "messages": messages})
            header, entries = read_foreign(document.encode(), session_id, new_id=new_entry_id)
        if entries and session_id not in self._conversations:
            origin = Origin(user=LOCAL_USER, created_at=header.created_at)
            conversation = StoredConversation.new(session_id, origin)
            conversation.row, conversation.entries = fold_all(conversation.row, entries), entries
            self._conversations[session_id] = conversation

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
        await self.rewrite_backend(session_id, self._conversations[session_id])

    async def delete(self, session_id: str) -> None:
        self._find(session_id)
        await self.clear_history(session_id)  # first: if it fails, nothing has been deleted
        await super().delete(session_id)

    async def undelete(self, session_id: str, *, user: str | None = None) -> None:
        await super().undelete(session_id, user=user)
        await self.rewrite_backend(session_id, self._conversations[session_id])
