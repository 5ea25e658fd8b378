"""The prompts for later of one conversation: those whose time has not come.

Each is an entry of its own in the record, so that models are not shown it, and the conversation's
row lists them. `Conversation` runs them when they are due. If a model is rate-limited when a turn
begins, the turn may put its prompt off: it ends, and its prompt is stored as one for later.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final, Literal

from msgspec.structs import replace

from nplt_protocol.codes import ErrorCode
from nplt_protocol.errors import RequestError
from nplt_protocol.messages import LaterTurn, TurnFinished
from nplt_server.conversations.record import ConversationRecord
from nplt_server.conversations.services import Services
from nplt_storage.entries import LaterChangeEntry, LaterPromptEntry, ModelInputEntry
from nplt_storage.rows import LaterPrompt

_PUT_OFF_MAX: Final = 100
"""How many times in a row a prompt is put off; then its turn fails."""
_PUT_OFF_SECONDS_MIN: Final = 1.0


class LaterPrompts:
    def __init__(self, record: ConversationRecord, services: Services) -> None:
        self._record = record
        self._services = services

    def __iter__(self) -> Iterator[LaterPrompt]:
        row = self._record.row
        return iter(() if row is None else row.later)

    def __len__(self) -> int:
        row = self._record.row
        return 0 if row is None else len(row.later)

    def has(self, turn_id: str) -> bool:
        return any(each.turn_id == turn_id for each in self)

    def shown(self) -> tuple[LaterTurn, ...]:
        """The prompts as clients are shown them."""
        return tuple(
            LaterTurn(
                turn_id=each.turn_id,
                seq=each.seq,
                due_at=each.due_at.isoformat(),
                held=each.held or None,
                limited=each.limited or None,
                preview=each.preview or None,
            )
            for each in self
        )

    def note_due(self) -> None:
        """Notes when the first of them is to be run."""
        if self._record.row is not None:
            self._services.due_times.note(self._record.row)

    async def add(self, draft: ModelInputEntry, due_at: datetime) -> LaterPromptEntry:
        """Stores a prompt that is run when its time has come. It counts toward a limit of its
        own. Called inside `record.exclusive`."""
        most = self._services.limits.later_prompts_max
        if len(self) >= most:
            raise RequestError(
                ErrorCode.BUSY,
                f"{most:,} prompts for later wait in this conversation already; cancel one, or "
                "use another conversation",
                field="not_before",
            )
        entry = await self._record.append(_for_later(draft, due_at))
        self.note_due()
        return entry

    async def put_off(self, prompt: ModelInputEntry, seconds: float) -> LaterPromptEntry | None:
        """Stores the prompt of a turn whose model is rate-limited as one for later, with a turn of
        its own. `None` if it can't be put off. Its `message_id` stays with the first turn."""
        belongs_here = prompt.continues or prompt.results_seq or prompt.tools or prompt.tools_seq
        if belongs_here or prompt.door == "http":  # an HTTP client tries again by itself
            return None
        before = None if prompt.later_seq is None else await self._entry(prompt.later_seq)
        times = 1 if before is None else before.limited_count + 1
        if times > _PUT_OFF_MAX or len(self) >= self._services.limits.later_prompts_max:
            return None
        seconds = max(seconds, _PUT_OFF_SECONDS_MIN)
        if seconds > timedelta(days=self._services.limits.later_days_max).total_seconds():
            return None
        draft = replace(prompt, turn_id=self._services.new_entry_id(), message_id=None)
        later = _for_later(draft, self._services.due_times.now() + timedelta(seconds=seconds))
        later = replace(later, limited_seq=prompt.seq, limited_count=times)
        entry = await self._record.append(later)
        self.note_due()
        return entry

    async def draft(self, prompt: LaterPrompt) -> ModelInputEntry | None:
        """The prompt as its turn begins with it; `None` if its text was erased."""
        stored = await self._entry(prompt.seq)
        if stored is None or stored.redacted_at is not None:
            return None
        return ModelInputEntry(
            turn_id=prompt.turn_id,
            content=stored.content,
            message_id=stored.message_id,
            model=stored.model,
            attachments=stored.attachments,
            options=stored.options,
            metadata=stored.metadata,
            offer=stored.offer,
            door=stored.door,
            client=stored.client,
            body_sha256=stored.body_sha256,
            later_seq=prompt.seq,
            late=self._services.due_times.is_late(prompt.due_at),
        )

    async def _entry(self, seq: int) -> LaterPromptEntry | None:
        store, session_id = self._record.profile.store, self._record.session_id
        async for batch in store.entries(session_id, after=seq - 1, through=seq):
            for entry in batch:
                if isinstance(entry, LaterPromptEntry):
                    return entry
        return None

    async def cancel(self, turn_id: str, reason: str) -> None:
        change = LaterChangeEntry(turn_id=turn_id, change="cancelled", content=reason)
        entry = await self._record.append(change)
        self.note_due()
        self._record.broadcast.emit(
            TurnFinished(
                session_id=self._record.session_id,
                turn_id=turn_id,
                state="interrupted",
                seq=entry.seq,
                error={"code": "cancelled", "message": reason},
            )
        )

    async def change_all(self, change: Literal["held", "released"]) -> None:
        """Holds them, because the conversation is a copy, or releases them."""
        for each in tuple(self):
            if each.held != (change == "held"):
                draft = LaterChangeEntry(turn_id=each.turn_id, change=change)
                await self._record.append(draft)
        self.note_due()

    def cancelled_entry(self, message_id: str) -> LaterPromptEntry | None:
        """The prompt that was sent with this `message_id`, if it was cancelled and is loaded."""
        for entry in reversed(self._record.history.entries):
            if isinstance(entry, LaterPromptEntry) and entry.message_id == message_id:
                return entry
        return None


def _for_later(draft: ModelInputEntry, due_at: datetime) -> LaterPromptEntry:
    return LaterPromptEntry(
        turn_id=draft.turn_id,
        content=draft.content,
        not_before=due_at,
        message_id=draft.message_id,
        model=draft.model,
        attachments=draft.attachments,
        options=draft.options,
        metadata=draft.metadata,
        offer=draft.offer,
        door=draft.door,
        client=draft.client,
        body_sha256=draft.body_sha256,
    )
