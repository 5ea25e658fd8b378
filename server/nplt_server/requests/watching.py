"""Handles WATCH and SEEN: the states of all conversations of a user, and what the user has seen."""

from __future__ import annotations

from nplt_protocol import ErrorCode, RequestError, messages
from nplt_server.connections.session import Session
from nplt_server.dialects import PendingReply
from nplt_server.requests.conversations import page_limit
from nplt_storage.errors import ConversationNotFound
from nplt_storage.rows import BadCursor, RowQuery


async def watch(session: Session, request: messages.Watch, pending: PendingReply) -> None:
    """Replies with the rows that need attention, and sends those that change from then on."""
    watchers, histories = session.server.watchers, session.server.services.histories
    if not request.watch:
        watchers.leave(session)
        pending.send(messages.Watching(watching=False))
        return
    query = RowQuery(
        limit=page_limit(session, request.limit), cursor=request.cursor, attention=True
    )
    async with watchers.joining(session):
        try:
            page = await histories.list(session.user, query)
        except BadCursor:
            raise RequestError(
                ErrorCode.MALFORMED, "cursor must be a next_cursor of WATCH", field="cursor"
            ) from None
        rows = await watchers.rows.shown(page.rows, current_id=session.current_id)
        pending.send(
            messages.Watching(
                watching=session in watchers,
                sessions=tuple(rows),
                next_cursor=page.next_cursor,
                incomplete=page.incomplete,
            )
        )


async def seen(session: Session, request: messages.Seen, pending: PendingReply) -> None:
    """Notes how far the user has seen a conversation. It may be open at any server."""
    session_manager = session.server.session_manager
    session_id = await session.id_of(request.session_id)
    found = await session_manager.find(session_id, session.user)
    mark, unread = 0, 0
    if found is not None and (mark_seen := getattr(found.profile.store, "mark_seen", None)):
        try:
            mark = await mark_seen(session_id, request.seq, unread=request.unread)
        except ConversationNotFound:  # its id is reserved, or it was deleted just now
            mark = 0
        else:
            unread = session.server.watchers.rows.row(found.row, mark).unread
    pending.send(messages.SeenMark(session_id=session_id, seen_seq=mark, unread=unread))
