"""The interface every backend implements.

A conversation has one writer, its `Record`; others may read at the same time. `append` returns
when the entry is as durable as the backend promises (`StoreDescription.promise`). If it raises,
the entry is not stored. A backend returns an `Unstoppable` from `append` if the write does not
stop when its caller is cancelled; the caller runs any other append in a task of its own
(`unstoppable`). Reading rows never opens a conversation.

A store that can do more implements further interfaces: `Shared` (several servers use it), `Leased`
(its records), `KeepsFiles`, `Repairable`, `CountsCommits`. `nplt_storage.testing` has the
conformance rules.
"""

from __future__ import annotations

from asyncio import Future, ensure_future
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

from msgspec import Struct, field

from nplt_storage.changes import RowChanges
from nplt_storage.durations import Commits
from nplt_storage.entries import BlobReference, Entry
from nplt_storage.errors import BadEntry, ConversationHeld
from nplt_storage.history import ConversationHistory
from nplt_storage.json_values import JsonValue
from nplt_storage.pages import MessagePage, PageQuery
from nplt_storage.partial_answers import DeltaKind, PartialAnswer
from nplt_storage.rows import ConversationRow, RowPage, RowQuery
from nplt_storage.search import SearchPage, SearchQuery
from nplt_storage.sent_before import SentBefore


class StoreDescription(Struct, frozen=True, kw_only=True):
    backend: str
    promise: str
    """Says to people how durable an entry is once `append` has returned."""
    path: str | None = None


_T = TypeVar("_T")


class Unstoppable(Future[_T]):
    """The outcome of an operation that can't be stopped. Cancelling the task that waits for it
    takes effect only when the outcome is known."""

    def cancel(self, msg: object = None) -> bool:
        return False


def unstoppable(work: Awaitable[_T]) -> Unstoppable[_T]:
    """Runs the work in a task of its own, which is never cancelled."""
    outcome: Unstoppable[_T] = Unstoppable()

    def done(task: Future[_T]) -> None:
        if task.cancelled():  # by the event loop itself, when it ends
            Future.cancel(outcome)
        elif (error := task.exception()) is not None:
            outcome.set_exception(error)
        else:
            outcome.set_result(task.result())

    ensure_future(work).add_done_callback(done)
    return outcome


class Record(Protocol):
    """One open conversation, used by its one writer."""

    @property
    def session_id(self) -> str: ...

    def append(self, entry: Entry) -> Awaitable[ConversationRow]:
        """Returns the conversation's row after the entry. Raises `BadEntry`, without any change,
        unless its number follows the last one's, which may have been written by another process."""
        ...

    def journal_delta(
        self, turn_id: str, call: int, kind: DeltaKind, text: str
    ) -> Future[bool] | None:
        """Stores a piece of a running answer before it is shown, so that it outlives this process.
        It is quick, unsynced and never an error; the entry that holds the whole call, or ends its
        turn, replaces it. The piece may be shown at once if this returns `None`; otherwise when the
        future is done, and only if its result is true. While the store is away that takes as long
        as it is away; the result is false if another writer has the conversation, or it was
        closed."""
        ...

    async def keep_blob(self, data: bytes) -> BlobReference:
        """Stores data too large for an entry durably. The entry that names it is written
        afterwards."""
        ...

    async def redact(self, seq: int, *, at: datetime) -> Entry:
        """Erases that entry's content for good, wherever this backend keeps it, and returns the
        tombstone that replaces it."""
        ...

    async def close(self) -> None: ...


def check_byte_range(offset: int, length: int) -> None:
    if offset < 0 or length < 0:
        raise BadEntry("a range of bytes begins at 0 or later and has no negative length")


class Builder(Protocol):
    """Builds a whole conversation, which appears completely or not at all."""

    async def add(self, entries: Sequence[Entry]) -> None: ...

    async def keep_blob(self, data: bytes) -> BlobReference: ...


class Origin(Struct, frozen=True, kw_only=True):
    """The facts that are recorded once for a conversation as a whole."""

    user: str
    created_at: datetime
    extra: Mapping[str, JsonValue] = field(default_factory=dict)
    """The fields an older program stored about it, unchanged."""


class Opened(Struct, frozen=True, kw_only=True):
    record: Record
    history: ConversationHistory
    row: ConversationRow
    partial_answer: PartialAnswer | None = None


class DeletedConversation(Struct, frozen=True, kw_only=True):
    row: ConversationRow
    """The row at the time of deletion."""
    deleted_at: datetime


class ConversationStore(Protocol):
    @property
    def description(self) -> StoreDescription: ...

    @property
    def read_only_reason(self) -> str | None:
        """The reason why nothing can be written now (a full disk, say), or `None`."""
        ...

    # One conversation

    async def create(self, session_id: str, *, user: str) -> Record: ...

    async def open(self, session_id: str) -> Opened:
        """Opens a conversation for writing. Its history reaches back as far as the next turn needs;
        older entries are read in pages. Raises `ConversationReadOnly` while another writer has it
        open."""
        ...

    async def page(self, session_id: str, query: PageQuery) -> MessagePage: ...

    async def text_of(self, session_id: str, seq: int) -> str | None:
        """The whole content of one entry; `None` if it does not exist or has none."""
        ...

    async def prompt_by_message_id(self, session_id: str, message_id: str) -> SentBefore | None:
        """The prompt with that message_id, however old, active or not, or `None`. It is found
        quickly in long conversations too. For a trimmed prompt everything but its text is known."""
        ...

    async def blob(self, session_id: str, blob_id: str, offset: int, length: int) -> bytes: ...

    def entries(
        self, session_id: str, *, after: int = 0, through: int | None = None
    ) -> AsyncIterator[Sequence[Entry]]:
        """All entries in batches, for copying, exporting or examining."""
        ...

    async def origin(self, session_id: str) -> Origin: ...

    def build(self, session_id: str, origin: Origin) -> AbstractAsyncContextManager[Builder]:
        """The conversation appears in one step when the block ends without an error; otherwise
        nothing of it stays."""
        ...

    async def delete(self, session_id: str) -> None:
        """Moves the conversation to the trash, if the backend has one."""
        ...

    async def undelete(self, session_id: str, *, user: str | None = None) -> None:
        """Restores a conversation; with `user`, only one of that user. Another user's is not found
        and stays in the trash."""
        ...

    async def is_trash_of_another(self, session_id: str, user: str) -> bool:
        """Whether another user deleted a conversation of that id and may restore it; the id is then
        not free for this user."""
        ...

    async def trash(self, user: str, *, limit: int | None = None) -> Sequence[DeletedConversation]:
        """The conversations that this user can undelete, last deleted first; each id occurs
        once. `limit`: the caller needs only so many of them, and all that were deleted at the
        same time as the last of these; a store may return more."""
        ...

    # All of them

    async def row(self, session_id: str) -> ConversationRow | None: ...

    async def list(self, user: str, query: RowQuery) -> RowPage: ...

    async def count(self, user: str) -> int: ...

    async def search(self, user: str, query: SearchQuery) -> SearchPage: ...

    def touch(self, session_id: str, at: datetime) -> None: ...

    # What their users have seen, and the changes of rows

    @property
    def changes(self) -> RowChanges:
        """The object that the store notifies of every change of a row."""
        ...

    async def seen(self, session_ids: Sequence[str]) -> Mapping[str, int]:
        """The marks of these conversations (`seen_marks`); those without one are left out."""
        ...

    async def mark_seen(self, session_id: str, seq: int, *, unread: bool = False) -> int:
        """Moves the mark forward to `seq`, or with `unread` also backward, and returns the mark
        that holds. It is durable then. A number beyond the head means the head."""
        ...

    async def close(self) -> None: ...


@runtime_checkable
class CountsCommits(Protocol):
    """A store that counts how often it has written an entry, and how long that took."""

    commits: Commits


@runtime_checkable
class Leased(Protocol):
    """A record with a lease, after whose end another server may open it."""

    @property
    def is_lapsed(self) -> bool:
        """Whether the lease has expired, by the clock of this process."""
        ...

    @property
    def wanted_within(self) -> float | None:
        """The number of seconds within which to close the record, because another server has asked
        for it (`Shared.ask_for`) and will open it then; `None` if none has."""
        ...

    async def reclaim(self) -> None:
        """Acquires the lease again. Raises `WrittenElsewhere` if another server has had it
        meanwhile."""
        ...


class Member(Struct, frozen=True, kw_only=True):
    """A server that shares the store with others."""

    id: str
    address: str | None = None
    """The address at which other servers reach it."""
    host: str = ""
    pid: int = 0
    owned: int = 0
    """The number of conversations it has open."""
    started_at: float = 0.0
    version: str = ""
    secret: str = ""
    """A fingerprint of the cluster's secret; empty if it has none."""
    skew: float = 0.0
    """The number of seconds by which its clock is ahead of the store's."""
    beat: int = 0
    """The number of its announcements."""


class MemberNote(Struct, frozen=True, kw_only=True):
    """The part of a server's announcement that its store does not know."""

    version: str = ""
    secret: str = ""
    """The same as `Member.secret`."""


class SharedView(Struct, frozen=True, kw_only=True):
    """The state of a shared store as it was known last. Reading it asks nothing."""

    members: tuple[Member, ...]
    """The servers that share the store, the oldest first."""
    own_address: str | None = None
    problems: tuple[str, ...] = ()
    """One sentence for each thing that an operator should change."""


@runtime_checkable
class KeepsFiles(Protocol):
    """A store that keeps the files attached to its conversations, for all servers that share it.
    They are deleted and expire with their conversation."""

    async def keep_file(self, session_id: str, file_id: str, path: Path) -> None:
        """Copies the file into the store."""
        ...

    def file_pieces(self, session_id: str, file_id: str) -> AsyncIterator[bytes]:
        """Raises `BadEntry` if the store does not have the whole file."""
        ...

    async def note_file(self, session_id: str, file_id: str) -> None:
        """Notes that this server has a file that is not kept in the store."""
        ...

    async def server_with_file(self, session_id: str, file_id: str) -> str | None:
        """The address of the other server that has noted that it has the file."""
        ...

    async def drop_file(self, session_id: str, file_id: str) -> None: ...


class SharedCounts(Struct, kw_only=True):
    """Counts for operators, since the start of this server."""

    leases_lost: int = 0
    """Conversations that another server acquired although this one had not given them up."""
    writes_fenced: int = 0
    """Writes that were refused because another server owns the conversation."""
    takeovers: int = 0
    """Conversations acquired from a server that had not given them up."""
    journal_gaps_mended: int = 0
    """Running answers whose stored text was written again from its beginning."""
    outages: int = 0
    """How often the store was away."""
    outage_seconds: float = 0.0


@runtime_checkable
class Shared(Protocol):
    """A store that several servers use at once, and through which they know each other."""

    @property
    def server_id(self) -> str:
        """The id of this server among the members."""
        ...

    @property
    def counts(self) -> SharedCounts: ...

    @property
    def view(self) -> SharedView: ...

    async def join(self, note: MemberNote) -> None:
        """Announces this server to the others until the store is closed."""
        ...

    async def compare(self, note: MemberNote) -> None:
        """Compares a server with the members, for `view`, without announcing it."""
        ...

    def is_usable(self, session_id: str) -> bool:
        """Whether a new conversation of that id can probably be stored now: of a store with several
        servers, some may be away."""
        ...

    async def agreed_key(self, offered: bytes) -> bytes:
        """The secret that all servers of this store have: the one that was offered first."""
        ...

    def now(self) -> datetime:
        """The time by the clock that all servers of this store share. Asks nothing."""
        ...

    async def ask_for(self, held: ConversationHeld) -> None:
        """Asks the server that has a conversation open to hand it over. The caller repeats this as
        long as it wants the conversation."""
        ...

    async def take_turn(self, user: str, turn_id: str, turns_max: int) -> bool:
        """False if this user already has that many turns running on all servers together."""
        ...

    def end_turn(self, user: str, turn_id: str) -> None:
        """Returns without waiting."""
        ...

    async def count_prompt(self, user: str, per_minute: float) -> float:
        """Counts one prompt, and returns how many more this user may send now to all servers
        together; negative if there were too many."""
        ...

    async def note_redacted_prompts(self, user: str, message_ids: Sequence[str], kept: int) -> None:
        """Stores the ids of prompts of this user that were redacted; the newest `kept` stay."""
        ...

    async def redacted_prompts(self, user: str) -> Sequence[str]:
        """The stored ids, the oldest first."""
        ...


class Repaired(Struct, frozen=True, kw_only=True):
    says: tuple[str, ...]
    """The changes, one sentence each; empty if there was nothing to repair."""
    kept: int = 0
    """The number of unchanged entries."""
    lost: tuple[tuple[int, int], ...] = ()
    """The entries (first, last) that were replaced by tombstones."""
    original: str | None = None
    """The name under which the original is kept."""


@runtime_checkable
class Repairable(Protocol):
    """A store that can repair damaged conversations."""

    async def repair(self, session_id: str) -> Repaired:
        """Repairs a conversation, which must not be open. Raises `ConversationDamaged` if that is
        impossible."""
        ...
