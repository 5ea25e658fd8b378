"""A conversation's record as its writer sees it: history, row and record in step.

The record is created with the first line, so that a conversation in which
nothing was said costs nothing; if that first line can't be written, the record
is gone again. An entry is in the history and the row once it is as safe as the
backend promises, and not before.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import anyio

from nplt_protocol.codes import ErrorCode
from nplt_protocol.errors import RequestError
from nplt_server import debug
from nplt_server.conversations.household import Household
from nplt_server.conversations.library import HistoryProfile
from nplt_server.conversations.voice import Kind
from nplt_storage.conversation.history import ConversationHistory, NotInReach
from nplt_storage.conversation.rows import ConversationRow, fold, new_row
from nplt_storage.errors import BadEntry, ConversationNotFound, StorageError, WrittenElsewhere
from nplt_storage.facts.entries import Entry, RollbackEntry, SystemInstructionEntry
from nplt_storage.facts.tool_calls import BlobReference
from nplt_storage.store import Opened, Record

log = logging.getLogger(__name__)


class Ledger:
    __slots__ = (
        "_house",
        "_is_closed",
        "_opening",
        "_outdated",
        "_record",
        "history",
        "is_stale",
        "profile",
        "row",
        "said",
        "user",
    )

    def __init__(
        self,
        session_id: str,
        *,
        user: str,
        household: Household,
        profile: HistoryProfile,
        opened: Opened | None = None,
        outdated: Callable[[], None] = lambda: None,
    ) -> None:
        self.user = user
        self.profile = profile
        self.history = (
            opened.history
            if opened
            else ConversationHistory(session_id, turns_max=profile.turns_max)
        )
        self.row: ConversationRow | None = opened.row if opened else None
        self.said = opened.said if opened else None
        self.is_stale = False
        """Another server has written to it, or deleted it: to go on it must be
        opened again. `outdated` is told once."""
        self._outdated = outdated
        self._house = household
        self._record: Record | None = opened.record if opened else None
        self._is_closed = False
        self._opening: anyio.Lock | None = None

    @property
    def session_id(self) -> str:
        return self.history.session_id

    @property
    def is_stored(self) -> bool:
        return self._record is not None

    async def append(self, draft: Entry) -> Entry:
        """Only the conversation's writer calls this, one draft after the other."""
        async with self._alone:
            return await self._append(draft)

    async def redact(self, seq: int) -> Entry:
        """Erases that entry's words for good; the history is another one afterwards,
        for the old one still holds them. Called between turns."""
        async with self._alone:
            return await self._redact(await self._opened(), seq)

    async def _redact(self, record: Record, seq: int) -> Entry:
        tombstone: Entry | None = None
        with anyio.CancelScope(shield=True):  # begun is begun: half of it leaves the words
            try:
                tombstone = await record.redact(seq, at=self._house.clock())
            finally:
                await self._read_again(record)
        assert tombstone is not None
        return tombstone

    def expected_history(self) -> ConversationHistory:
        """As the next draft will find it: the profile's instruction is written with the
        first line, and before there is one it stands nowhere else."""
        instruction = self._instruction_to_write()
        if instruction is None:
            return self.history
        history = ConversationHistory(self.session_id, turns_max=self.profile.turns_max)
        history.add(history.stamp(instruction, id="to_come", timestamp=self._house.clock()))
        return history

    async def open(self) -> Record:
        """Whoever else needs the record; two at once are given the same one."""
        async with self._alone:
            return await self._opened()

    @property
    def _alone(self) -> anyio.Lock:
        """While the record is created, taken back or read again, `_record` says little.
        Made late: it would take 700 bytes of every idle connection."""
        if self._opening is None:
            self._opening = anyio.Lock(fast_acquire=True)
        return self._opening

    async def _append(self, draft: Entry) -> Entry:
        self._stamp(draft)  # a bad draft is refused before anything is created
        is_new = self._record is None
        record = await self._opened()
        try:
            instruction = self._instruction_to_write()
            if instruction is not None:
                await self._commit(record, instruction)
            entry = await self._commit(record, draft)
        except Exception:
            if is_new and not self.history.head_seq:
                await self._take_back(record)
            raise
        if self._is_ahead(entry):
            await self._read_again(record)
            if self._is_ahead(entry):  # that failed: what is written is known all the same
                self.history.add(entry)
        return entry

    def _is_ahead(self, entry: Entry) -> bool:
        return entry.seq > self.history.head_seq

    async def _opened(self) -> Record:
        if self._record is None and not self._is_closed:
            # Whoever asked may go away meanwhile: what is created is known here all the same.
            with anyio.CancelScope(shield=True):
                await self._create()
        if self._record is None:
            raise RequestError(ErrorCode.UNAVAILABLE, "this conversation was just closed")
        return self._record

    async def _create(self) -> None:
        record = await self.profile.store.create(self.session_id, user=self.user)
        if self._is_closed:
            await self._take_back(record)
            return
        self._record = record
        self.row = new_row(self.session_id, user=self.user, created_at=self._house.clock())

    def say(self, turn_id: str, call: int, kind: Kind, text: str) -> None:
        if self._record is not None:
            self._record.say(turn_id, call, kind, text)

    async def keep_blob(self, data: bytes) -> BlobReference:
        return await (await self.open()).keep_blob(data)

    async def close(self) -> None:
        self._is_closed = True
        if self._record is not None:
            record, self._record = self._record, None
            await record.close()

    async def reopen(self) -> None:
        """It was closed to be deleted, and could not be."""
        self._record = (await self.profile.store.open(self.session_id)).record
        self._is_closed = False

    def _instruction_to_write(self) -> SystemInstructionEntry | None:
        text = self.profile.system_message
        if self.history.head_seq or not text:
            return None
        return SystemInstructionEntry(content=text)

    def _stamp(self, draft: Entry) -> Entry:
        return self.history.stamp(
            draft, id=self._house.new_entry_id(), timestamp=self._house.clock()
        )

    async def _commit(self, record: Record, draft: Entry) -> Entry:
        entry = self._stamp(draft)
        try:
            await record.append(entry)
        except (WrittenElsewhere, ConversationNotFound):
            self._grow_stale()
            raise
        if not self._leads_away(entry):
            self.history.add(entry)
        if debug.history.on:
            debug.history("appended", session=self.session_id, seq=entry.seq, kind=entry.kind)
        if self.row is not None:
            self.row = fold(self.row, entry)
        return entry

    def _leads_away(self, entry: Entry) -> bool:
        """To before what is held. Until the record is read again, whoever asks is told
        what stood before it: the history here could tell nothing."""
        if not isinstance(entry, RollbackEntry):
            return False
        try:
            self.history.rollback_to(entry.to_seq)
        except (NotInReach, BadEntry):
            return True
        return False

    async def _read_again(self, record: Record) -> None:
        """What stands now lies further back than what is held (a rollback went there),
        or differs from it (words were erased)."""
        self._record = None
        try:
            await record.close()
            opened = await self.profile.store.open(self.session_id)
        except StorageError as error:
            log.warning("%s must be opened anew: %s", self.session_id, error)
            self._grow_stale()
        else:
            self._record, self.history, self.row = opened.record, opened.history, opened.row

    def _grow_stale(self) -> None:
        if not self.is_stale:
            self.is_stale = True
            self._outdated()

    async def _take_back(self, record: Record) -> None:
        self._record = self.row = None
        with anyio.CancelScope(shield=True):
            try:
                await record.close()
                await self.profile.store.delete(self.session_id)
            except ConversationNotFound:
                pass  # a store may do this by itself
            except StorageError as error:
                log.warning("%s: an empty conversation is left: %s", self.session_id, error)
