"""A conversation's row, as the connection that asks is shown it."""

from __future__ import annotations

from nplt_protocol.replies import SessionRow
from nplt_server.connections.premises import Premises
from nplt_server.connections.session import Session
from nplt_storage.conversation.rows import ConversationRow


def as_row(premises: Premises, session: Session, row: ConversationRow) -> SessionRow:
    here = session.conversation
    return SessionRow(
        session_id=row.session_id,
        name=row.name,
        message_count=row.message_count,
        created_at=row.created_at.isoformat(),
        updated_at=row.updated_at.isoformat(),
        last_accessed=row.last_accessed.isoformat(),
        is_current=here is not None and here.session_id == row.session_id,
        model=premises.household.router.choose(row.model),
        state=premises.registry.state_of(row.session_id),
        preview=row.preview,
        pinned=row.pinned,
        archived=row.archived,
        damaged=row.damaged,
    )
