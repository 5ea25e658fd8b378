"""The rows of conversations as clients are shown them, with state and unread answers.

The row of the store tells the state of a conversation that is not open here. Of one that is, the
turn queue knows better whether its turn runs or waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import orjson

from nplt_protocol.messages import SessionRow
from nplt_server.conversations.services import Services
from nplt_server.conversations.session_manager import SessionManager
from nplt_storage.rows import ConversationRow, has_failed, unread_answers

State: TypeAlias = Literal["idle", "running", "waiting", "asking", "failed"]


class SessionRows:
    def __init__(self, services: Services, session_manager: SessionManager) -> None:
        self._services = services
        self._session_manager = session_manager

    async def shown(
        self, rows: Sequence[ConversationRow], *, current_id: str | None = None
    ) -> list[SessionRow]:
        """`current_id` is the conversation that the client is attached to."""
        seen = await self._services.histories.seen([row.session_id for row in rows])
        return [
            self.row(row, seen.get(row.session_id), is_current=row.session_id == current_id)
            for row in rows
        ]

    def row(
        self, row: ConversationRow, seen_seq: int | None, *, is_current: bool = False
    ) -> SessionRow:
        """`seen_seq` is the mark of what the user has seen."""
        # The same text as `isoformat` returns, four times faster; a list has many dates.
        created_at, updated_at, last_accessed, running_since, due_at = orjson.loads(
            orjson.dumps(
                (row.created_at, row.updated_at, row.last_accessed, row.running_since, row.due_at)
            )
        )
        warning = None
        if row.lost is not None:
            first, last = row.lost
            which = f"entry {first} is" if first == last else f"entries {first} to {last} are"
            warning = f"{which} gone: an older copy of its file was put back"
        return SessionRow(
            session_id=row.session_id,
            name=row.name,
            message_count=row.message_count,
            created_at=created_at,
            updated_at=updated_at,
            last_accessed=last_accessed,
            is_current=is_current,
            model=self._services.router.choose(row.model),
            state=self._state(row, seen_seq),
            preview=row.preview,
            door=row.door,
            pinned=row.pinned,
            archived=row.archived,
            damaged=row.damaged,
            warning=warning,
            head_seq=row.head_seq,
            seen_seq=row.head_seq if seen_seq is None else min(seen_seq, row.head_seq),
            unread=unread_answers(row, seen_seq),
            running_since=running_since,
            due_at=due_at,
            later=len(row.later) or None,
        )

    def _state(self, row: ConversationRow, seen_seq: int | None) -> State:
        if not row.unfinished:
            return "failed" if has_failed(row, seen_seq) else "idle"
        conversation = self._session_manager.opened(row.session_id)
        if conversation is not None and not conversation.record.may_be_elsewhere:
            state = conversation.queue.state
            if state != "idle":
                return state
        if row.asking:
            return "asking"
        # Another server may have it open. Otherwise its turn runs when it is opened.
        return "running" if self._services.histories.shared is not None else "waiting"
