"""The port: what the house asks of whatever keeps its conversations.

A conversation has one writer, its `Record`; anyone may read beside it. `append`
returns when the entry is as durable as the backend promises (its description
says what that is), and an entry it raised for is not there. Questions about
rows never open a conversation. `nplt_storage.testing` holds the rules every
backend must keep, as tests.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, Protocol

from nplt_storage.conversation.history import ConversationHistory
from nplt_storage.conversation.paging import MessagePage, PageQuery
from nplt_storage.conversation.row_lists import RowPage, RowQuery
from nplt_storage.conversation.rows import ConversationRow
from nplt_storage.conversation.searching import SearchPage, SearchQuery
from nplt_storage.conversation.sent_before import SentBefore
from nplt_storage.facts.entries import Entry
from nplt_storage.facts.json_values import JsonValue
from nplt_storage.facts.tool_calls import BlobReference


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreDescription:
    backend: str
    promise: str
    path: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SaidSoFar:
    """What a call had said when its server died: shown to people, not yet an entry."""

    turn_id: str
    call: int
    text: str = ""
    reasoning: str = ""


class Record(Protocol):
    """One open conversation, used by its one writer."""

    @property
    def session_id(self) -> str: ...

    async def append(self, entry: Entry) -> None:
        """`BadEntry` unless its number follows the last one's, also when the last
        one was another process's; nothing has changed then."""
        ...

    def say(self, turn_id: str, call: int, kind: Literal["text", "reasoning"], text: str) -> None:
        """Notes a piece of a running answer before it is shown, so that it outlives
        this process. Quick, unsynced, and never an error: the entry that holds the
        whole call, or ends its turn, is what counts, and forgets it."""
        ...

    async def keep_blob(self, data: bytes) -> BlobReference:
        """Keeps something too large for an entry; durable when it returns. The
        entry that names it comes after."""
        ...

    async def redact(self, seq: int, *, at: datetime) -> Entry:
        """Erases that entry's content for good, wherever this backend keeps it;
        gives the tombstone that stands there now."""
        ...

    async def close(self) -> None: ...


class Builder(Protocol):
    """A whole conversation on its way in: all of it, or nothing."""

    async def add(self, entries: Sequence[Entry]) -> None: ...

    async def keep_blob(self, data: bytes) -> BlobReference: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What is said about a conversation as a whole, once."""

    user: str
    created_at: datetime
    extra: Mapping[str, JsonValue] = field(default_factory=dict)
    """What an older program said about it, kept as it was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    record: Record
    history: ConversationHistory
    row: ConversationRow
    said: SaidSoFar | None = None


class ConversationStore(Protocol):
    @property
    def description(self) -> StoreDescription: ...

    @property
    def read_only_reason(self) -> str | None:
        """Why nothing can be written just now (a full disk, say); `None`: all is well."""
        ...

    # One conversation

    async def create(self, session_id: str, *, user: str) -> Record: ...

    async def open(self, session_id: str) -> Opened:
        """The history reaches back as far as the next turn needs; older entries are
        read in pages. `ConversationReadOnly` while another writer has it open."""
        ...

    async def page(self, session_id: str, query: PageQuery) -> MessagePage: ...

    async def text_of(self, session_id: str, seq: int) -> str | None:
        """The whole content of one entry; `None` if it is not there or has none."""
        ...

    async def prompt_with(self, session_id: str, message_id: str) -> SentBefore | None:
        """The prompt its sender called so, however long ago it came, standing or not;
        `None`: none did. Quick in a long conversation too. Of one that was trimmed its
        text is forgotten, not that it was there."""
        ...

    async def blob(self, session_id: str, blob_id: str, offset: int, length: int) -> bytes: ...

    def entries(
        self, session_id: str, *, after: int = 0, through: int | None = None
    ) -> AsyncIterator[Sequence[Entry]]:
        """All there is, batch by batch: to copy, export or examine."""
        ...

    async def origin(self, session_id: str) -> Origin: ...

    def build(self, session_id: str, origin: Origin) -> AbstractAsyncContextManager[Builder]:
        """There, in one step, when the block ends well; nothing of it if not."""
        ...

    async def delete(self, session_id: str) -> None:
        """To the trash, where the backend has one."""
        ...

    async def undelete(self, session_id: str, *, user: str | None = None) -> None:
        """With `user`: if it is theirs; else it is not found, and stays where it is."""
        ...

    async def is_trash_of_another(self, session_id: str, user: str) -> bool:
        """Whether someone else deleted one of that id and may bring it back: then the id
        is not free for what this user brings along."""
        ...

    # All of them

    async def row(self, session_id: str) -> ConversationRow | None: ...

    async def list(self, user: str, query: RowQuery) -> RowPage: ...

    async def count(self, user: str) -> int: ...

    async def search(self, user: str, query: SearchQuery) -> SearchPage: ...

    def touch(self, session_id: str, at: datetime) -> None: ...

    async def close(self) -> None: ...
