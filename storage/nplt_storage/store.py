"""The port: what the house asks of whatever keeps its conversations.

A conversation has one writer, its `Record`; anyone may read pages beside it.
`append` returns when the entry is as durable as the backend promises (its
description says what that is), and an entry it raised for is not there.
Questions about rows never open a conversation and never wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from nplt_storage.catalog import ConversationRow
from nplt_storage.entries import Entry
from nplt_storage.history import ConversationHistory
from nplt_storage.paging import MessagePage, PageQuery


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreDescription:
    backend: str
    promise: str
    path: str | None = None


class Record(Protocol):
    """One open conversation, used by its one writer."""

    @property
    def session_id(self) -> str: ...

    async def append(self, entry: Entry) -> None: ...

    async def close(self) -> None: ...


class ConversationStore(Protocol):
    @property
    def description(self) -> StoreDescription: ...

    def rows(self, user: str) -> list[ConversationRow]: ...

    def count(self, user: str) -> int: ...

    def row(self, session_id: str) -> ConversationRow | None: ...

    async def create(self, session_id: str, *, user: str) -> Record: ...

    async def open(self, session_id: str) -> tuple[Record, ConversationHistory]: ...

    async def page(self, session_id: str, query: PageQuery) -> MessagePage: ...

    async def text_of(self, session_id: str, seq: int) -> str | None:
        """The whole content of one entry; `None` if it is not there or has none."""
        ...

    async def delete(self, session_id: str) -> None: ...

    def touch(self, session_id: str, at: datetime) -> None: ...

    async def close(self) -> None: ...
