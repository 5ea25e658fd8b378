"""Holds the record of one conversation: history, row, storage record, lease; its only writer.

`ConversationRecord` keeps them consistent: an entry is added to the history and to the row only
when the storage has acknowledged it. Writes run one at a time, in the order in which they were
requested, so two clients can't interleave. A write is shielded from the cancellation of its
caller. The storage record is created with the first entry, and removed again if that entry can't
be written.

Read-then-write sequences must run inside `exclusive()`. The events of the entries written inside
are sent to all subscribers when the section ends, so a receipt sent inside comes before them.
`ConversationRecord` does not decide what is written.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Mapping
from time import monotonic
from types import TracebackType
from typing import Final, TypeVar

import anyio
from msgspec.structs import replace

from nplt_protocol.codes import ErrorCode
from nplt_protocol.errors import RequestError
from nplt_protocol.json_text import JsonObject
from nplt_server import logs
from nplt_server.conversations.broadcast import Broadcast
from nplt_server.conversations.services import Services
from nplt_server.errors import no_such_conversation
from nplt_server.histories import HistoryProfile
from nplt_server.tasks import Activity
from nplt_storage.active_entries import ActiveEntries
from nplt_storage.changes import NO_CHANGES, RowChanges
from nplt_storage.entries import (
    Entry,
    ModelInputEntry,
    ModelSwitchedEntry,
    RollbackEntry,
    SystemInstructionEntry,
    ToolCallResult,
)
from nplt_storage.errors import (
    ConversationExists,
    ConversationNotFound,
    ConversationReadOnly,
    StorageError,
    WrittenElsewhere,
)
from nplt_storage.history import ConversationHistory
from nplt_storage.partial_answers import DeltaKind
from nplt_storage.rows import ConversationRow, new_row
from nplt_storage.store import Leased, Opened, Record, Unstoppable, unstoppable

log = logging.getLogger(__name__)

EntryT = TypeVar("EntryT", bound=Entry)
_T = TypeVar("_T")

_TAKEN_OVER: Final = "another server has taken the conversation over"
QUICK_ENTRIES_MAX: Final = 256
"""A computation over this many entries in memory takes a few milliseconds and needs no thread."""


class ConversationRecord:
    def __init__(
        self,
        broadcast: Broadcast,
        profile: HistoryProfile,
        services: Services,
        *,
        user: str,
        opened: Opened | None = None,
        model: str | None = None,
    ) -> None:
        """`model`: the model that was chosen before the first entry; it is written with that
        entry."""
        self.session_id = session_id = broadcast.session_id
        self.broadcast = broadcast
        self.profile = profile
        self.user = user
        self.changes: RowChanges = getattr(profile.store, "changes", NO_CHANGES)
        self._services = services
        self._record: Record | None
        self.lease: Leased | None
        """The storage record, if this server only leases it: another server may take it over when
        the lease lapses."""
        self._set_record(opened.record if opened else None)
        self._chosen_model = model
        self._chosen_options: Mapping[str, str | int | float] = {}
        self.history = (
            opened.history
            if opened
            else ConversationHistory(session_id, turns_max=profile.turns_max)
        )
        self.row: ConversationRow | None = opened.row if opened else None
        """The conversation's row in lists, up to the last entry; `None` before the first."""
        self.partial_answer = opened.partial_answer if opened else None
        """The output of a call that was running when its server was killed or lost the
        conversation."""
        self.used_at = monotonic()
        self.activity = Activity(part_of=services.activity)
        """Counts what is in progress in the conversation: writes, turns, uploads."""
        self.staleness: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Done, with the reason, when the history in memory no longer matches the record: another
        server has written to it or deleted it, or it could not be read again. The conversation
        must then be opened again."""
        self._is_closed = False
        self._write_lock = asyncio.Lock()
        """Held while the record is written, created, removed or read again."""
        self._task_inside: asyncio.Task[object] | None = None
        """The task that is inside `exclusive`."""
        self._depth = 0
        """The number of `exclusive` sections that this task has entered inside its first one."""
        self._scope: anyio.CancelScope
        self._unpublished: list[Entry] = []
        """Entries of the current section, whose events are sent when it ends."""

    @property
    def is_stored(self) -> bool:
        return self._record is not None

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @property
    def is_stale(self) -> bool:
        return self.staleness.done()

    @property
    def may_be_elsewhere(self) -> bool:
        """Whether another server has the conversation, or may have it without this one knowing."""
        return self.is_stale or (self.lease is not None and self.lease.is_lapsed)

    @property
    def model(self) -> str | None:
        """The model chosen for this conversation, or `None`."""
        return self.history.model or self._chosen_model

    @property
    def options(self) -> Mapping[str, str | int | float]:
        """The options for prompts that have none of their own."""
        return self.history.options if self.history.head_seq else self._chosen_options

    def touch(self) -> None:
        """Notes that the conversation is in use."""
        self.used_at = monotonic()

    def note_state(self) -> None:
        """Notifies the sessions that watch the conversation's row that its turn runs or waits now.
        Callers check first whether the user's rows are watched."""
        if self.is_stored:
            self.changes.note(self.user, self.session_id, "state")

    # Writing

    async def choose(self, choice: ModelSwitchedEntry) -> None:
        """Writes the choice of a model or of options. Before the conversation is stored, the choice
        is held in memory and written with the first entry, so that a user who only tries models
        leaves no conversation behind."""
        async with self.exclusive():
            if self.is_stored:
                await self.append(choice)
            elif choice.options is None:
                self._chosen_model = choice.model
            else:
                self._chosen_options = choice.options

    def exclusive(self) -> ConversationRecord:
        """A section (`async with`) with no other writes in between, shielded from
        cancellation. The same task may enter it again inside. Entries written inside are
        published when it ends."""
        return self

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        if self._task_inside is task:
            self._depth += 1
            return
        self.activity.begin()
        scope = anyio.CancelScope(shield=True)
        scope.__enter__()
        try:
            await self._write_lock.acquire()
        except BaseException:
            scope.__exit__(*sys.exc_info())
            self.activity.end()
            raise
        self._task_inside, self._scope = task, scope

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._depth:
            self._depth -= 1
            return
        try:
            self._publish()
        finally:
            self._task_inside = None
            self._write_lock.release()
            self._scope.__exit__(kind, error, traceback)
            self.activity.end()

    def _publish(self) -> None:
        """Emits the events of the section's entries, and announces rollbacks."""
        entries, self._unpublished = self._unpublished, []
        for entry in entries:
            self.broadcast.emit_entry(entry)
            if isinstance(entry, RollbackEntry):
                details: JsonObject = {"to_seq": entry.to_seq, "head_seq": entry.seq}
                if entry.turns:
                    details["turns"] = list(entry.turns)
                if entry.redo:
                    details["redo"] = True
                self.broadcast.announce("rolled_back", details)

    async def append(
        self, draft: EntryT, *, check: Callable[[EntryT], EntryT] | None = None
    ) -> EntryT:
        """Appends the entry; it is on disk when this returns. `check` returns the draft that is
        written; it is called while no other task can write."""
        if self._task_inside is not asyncio.current_task():
            async with self.exclusive():
                return await self.append(draft, check=check)
        if check is not None:
            draft = check(draft)
        if self._record is None or not self.history.head_seq or isinstance(draft, RollbackEntry):
            entry = await self._append_first_or_rollback(draft)
        else:
            entry = await self._commit(self._record, draft)
        self.used_at = monotonic()
        self._unpublished.append(entry)
        return entry

    async def _append_first_or_rollback(self, draft: EntryT) -> EntryT:
        """Appends the first entry, or a rollback. The first entry is preceded by those of
        `_first_entries`; after a rollback the record may have to be read again."""
        is_new = self._record is None
        if is_new:
            self.history.check(draft)  # a bad draft is refused before anything is created
        record = self._record or await self._opened()
        try:
            for first in self._first_entries():
                await self._commit(record, first)
            entry = await self._commit(record, draft)
        except Exception:
            if is_new and not self.history.head_seq:
                await self._discard_new(record)
            raise
        if entry.seq > self.history.head_seq:
            with anyio.CancelScope(shield=True):
                await self._read_again(record)
            if entry.seq > self.history.head_seq:  # reading failed, but this entry is known
                self.history.add(entry)
        return entry

    async def _commit(self, record: Record, draft: EntryT) -> EntryT:
        """Writes one entry. A cancellation during the write is postponed to the caller's next
        `await`. Otherwise an entry could be on disk but not in memory, or a prompt in the history
        but not in the queue."""
        after: ActiveEntries | None = None
        is_rollback = isinstance(draft, RollbackEntry)
        if not is_rollback:
            entry = self._stamp(draft)
        else:
            entry, after = await self.compute(lambda: self._stamp_rollback(draft))
        try:
            appending = record.append(entry)
            writing = appending if isinstance(appending, Unstoppable) else unstoppable(appending)
            try:
                self.row = await writing
            except asyncio.CancelledError as cancelled:
                task = asyncio.current_task()
                if task is None or not writing.done():
                    raise
                task.uncancel()
                task.cancel(*cancelled.args)
                self.row = writing.result()
        except ConversationReadOnly:
            self.profile.check_there()
            raise
        except (WrittenElsewhere, ConversationNotFound) as error:
            self.profile.check_there()
            self.mark_stale(_why_stale(error))
            raise
        if after is not None or not is_rollback:
            self.history.add(entry, after)
        if logs.history.on:
            logs.history("appended", session=self.session_id, seq=entry.seq, kind=entry.kind)
        return entry

    def _stamp_rollback(self, draft: EntryT) -> tuple[EntryT, ActiveEntries | None]:
        """Returns the entry, and the active entries that the rollback leaves, or `None` if some of
        those are not in memory. The old history then stays until the record is read again."""
        entry = self._stamp(draft)
        assert isinstance(entry, RollbackEntry)
        return entry, self.history.active_after(entry)

    def _stamp(self, draft: EntryT) -> EntryT:
        services = self._services
        return self.history.stamp(draft, id=services.new_entry_id(), timestamp=services.clock())

    async def compute(self, work: Callable[[], _T], *, entries: int = 0) -> _T:
        """Runs work whose time grows with the number of entries in memory plus `entries`, in a
        thread if there are many. Call it inside `exclusive`."""
        if len(self.history.entries) + entries <= QUICK_ENTRIES_MAX:
            return work()
        return await self.in_thread(work)

    async def in_thread(self, work: Callable[[], _T]) -> _T:
        """Runs work in a thread, one at a time for each user."""
        return await self._services.heavy.run(self.user, work)

    async def redact(self, seq: int) -> Entry:
        """Erases the text of an entry for good. The history is read again afterwards, because
        the old one still holds the text. Called between turns."""
        tombstone: Entry | None = None
        async with self._write_lock:
            record = await self._opened()
            with anyio.CancelScope(shield=True):  # stopped halfway, some of the text would stay
                try:
                    tombstone = await record.redact(seq, at=self._services.clock())
                finally:
                    await self._read_again(record)
        assert tombstone is not None
        return tombstone

    async def check_owned(self) -> None:
        """Raises `WrittenElsewhere` if the record was leased and another server has it now. Called
        before each call of a model or tool."""
        if self.is_stale:
            raise WrittenElsewhere("another server has taken it over meanwhile")
        if self.lease is not None and self.lease.is_lapsed:
            try:
                await self.lease.reclaim()
            except (WrittenElsewhere, ConversationNotFound) as error:
                self.mark_stale(_why_stale(error))
                raise

    def journal_delta(
        self, turn_id: str, call: int, kind: DeltaKind, text: str
    ) -> asyncio.Future[bool] | None:
        """Writes output of a running call to the live journal, in case this process dies before
        its entry is written. Returns a future that tells whether the output may be sent, or `None`
        if it may be sent now."""
        if self._record is None:
            return None
        return self._record.journal_delta(turn_id, call, kind, text)

    async def with_tools(self, prompt: ModelInputEntry) -> ModelInputEntry:
        """A stored prompt with the tools that its client runs, which an earlier prompt may have."""
        seq = prompt.tools_seq
        if seq is None:
            return prompt
        async for batch in self.profile.store.entries(self.session_id, after=seq - 1, through=seq):
            for entry in batch:
                if isinstance(entry, ModelInputEntry):
                    return replace(prompt, tools=entry.tools)
        return prompt

    async def keep_whole(self, result: ToolCallResult) -> ToolCallResult:
        """Stores a result over the size limit as a blob; the entry holds its beginning."""
        bytes_max = self._services.limits.tool_result_bytes_max
        if len(result.result) * 4 <= bytes_max:
            return result
        data = result.result.encode()
        if len(data) <= bytes_max:
            return result
        blob = await (await self.open()).keep_blob(data)
        beginning = data[:bytes_max].decode(errors="ignore")
        return replace(result, result=beginning, blob=blob)

    # Opening and closing

    async def open(self) -> Record:
        """The record, created if there is none. Concurrent calls get the same record."""
        if self._task_inside is asyncio.current_task():
            return await self._opened()
        async with self._write_lock:
            return await self._opened()

    def abandon(self) -> None:
        """Closes a record that was never stored, so that a request that still holds it can't store
        it."""
        assert self._record is None
        self._is_closed = True

    async def close(self) -> None:
        self._is_closed = True
        if self._record is not None:
            record = self._record
            self._set_record(None)
            await record.close()

    async def reopen(self) -> None:
        """Opens the record again after it was closed for a deletion that failed."""
        self._set_record((await self.profile.store.open(self.session_id)).record)
        self._is_closed = False

    async def _opened(self) -> Record:
        if self._record is None and not self._is_closed:
            # Shielded: if the caller is cancelled, the created record must still be noted here.
            with anyio.CancelScope(shield=True):
                await self._create()
        if self._record is None:
            raise RequestError(
                ErrorCode.UNAVAILABLE, "this conversation was just closed; try again"
            )
        return self._record

    async def _create(self) -> None:
        user, clock = self.user, self._services.clock
        try:
            record = await self.profile.store.create(self.session_id, user=user)
        except (ConversationNotFound, ConversationReadOnly):
            self.profile.check_there()
            raise
        except ConversationExists:
            # A chosen id, which another server on the same store has created meanwhile.
            opened = await self.profile.store.open(self.session_id)
            if opened.row.user != user or self._is_closed:
                await opened.record.close()
                raise no_such_conversation(self.session_id) from None
            self._chosen_model = None
            self._set_record(opened.record)
            self.history, self.row = opened.history, opened.row
            return
        if self._is_closed:
            await self._discard_new(record)
            return
        self.row = new_row(self.session_id, user=user, created_at=clock())
        self._set_record(record)

    def _set_record(self, record: Record | None) -> None:
        self._record = record
        # Checked once, because `isinstance` with a protocol takes longer than writing a short line.
        self.lease = record if isinstance(record, Leased) else None

    async def _discard_new(self, record: Record) -> None:
        self._set_record(None)
        self.row = None
        with anyio.CancelScope(shield=True):
            try:
                await record.close()
                await self.profile.store.delete(self.session_id)
            except ConversationNotFound:
                pass  # the store removed it already
            except StorageError as error:
                log.warning("%s: an empty conversation is left: %s", self.session_id, error)

    # The first entries, and reading the record again

    def expected_history(self) -> ConversationHistory:
        """The history that the next draft will follow. For a new conversation, it contains the
        entries that will be written before the first one."""
        first_entries = self._first_entries()
        if not first_entries:
            return self.history
        history = ConversationHistory(self.session_id, turns_max=self.profile.turns_max)
        now = self._services.clock()
        for place, entry in enumerate(first_entries):
            history.add(history.stamp(entry, id=f"to_come_{place}", timestamp=now))
        return history

    def _first_entries(self) -> list[SystemInstructionEntry | ModelSwitchedEntry]:
        """The entries to be written before a conversation's first entry."""
        if self.history.head_seq:
            return []
        entries: list[SystemInstructionEntry | ModelSwitchedEntry] = []
        if self.profile.system_message:
            entries.append(SystemInstructionEntry(content=self.profile.system_message))
        if self._chosen_model is not None or self._chosen_options:
            options = self._chosen_options or None
            entries.append(ModelSwitchedEntry(model=self._chosen_model or "", options=options))
        return entries

    async def _read_again(self, record: Record) -> None:
        """Reads the history again, because a rollback went back beyond the entries in memory, or
        because text was erased."""
        self._set_record(None)
        try:
            await record.close()
            opened = await self.profile.store.open(self.session_id)
        except StorageError as error:
            self.mark_stale(f"its record could not be read again: {error}")
        else:
            self._set_record(opened.record)
            self.history, self.row = opened.history, opened.row

    def mark_stale(self, why: str = _TAKEN_OVER) -> None:
        """Notes that the history in memory no longer matches the record. The turn queue then ends
        the running turn for the reason `why`; clients attach again and read the current record."""
        if not self.is_stale:
            log.warning("%s must be opened again: %s", self.session_id, why)
            self.staleness.set_result(why)
            self.broadcast.announce("lagged", {"head_seq": self.history.head_seq})


def _why_stale(error: StorageError) -> str:
    if isinstance(error, ConversationNotFound):
        return "it has expired or was deleted"
    return _TAKEN_OVER
