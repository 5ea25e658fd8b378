"""ATTACH, DETACH and everything SESSION_*: moving among conversations."""

from __future__ import annotations

from nplt_protocol.codes import ErrorCode
from nplt_protocol.errors import RequestError
from nplt_protocol.replies import (
    Detached,
    SessionCreated,
    SessionDeleted,
    SessionRow,
    SessionRows,
)
from nplt_protocol.requests import (
    Attach,
    Detach,
    SessionDelete,
    SessionList,
    SessionNew,
    SessionSwitch,
    SessionUpdate,
)
from nplt_server.connections.premises import Premises
from nplt_server.connections.session import Session
from nplt_server.conversations import changes
from nplt_server.conversations.conversation import Conversation
from nplt_server.errors import no_such_conversation
from nplt_server.presenters.base import Answer
from nplt_storage.conversation.row_lists import BadCursor, RowQuery
from nplt_storage.conversation.rows import ConversationRow
from nplt_storage.facts.entries import (
    ArchivedEntry,
    PinnedEntry,
    SystemInstructionEntry,
)

_LIST_ROWS_MAX = 200
_ROW_BYTES_MAX = 4_096


async def attach(premises: Premises, session: Session, request: Attach, answer: Answer) -> None:
    conversation = await premises.registry.get(request.session_id, session.user)
    _stand_in(premises, session, conversation, answer, request)


async def switch(
    premises: Premises, session: Session, request: SessionSwitch, answer: Answer
) -> None:
    session_id = await premises.registry.resolve(request.session_id, session.user)
    conversation = await premises.registry.get(session_id, session.user)
    _stand_in(premises, session, conversation, answer, None)


def _stand_in(
    premises: Premises,
    session: Session,
    conversation: Conversation,
    answer: Answer,
    cursor: Attach | None,
) -> None:
    """Without a gap: the old one is left, the reply is sent, what was missed
    is sent, the new one is entered. Nothing can be said in between."""
    missed = conversation.replay(cursor)
    session.depart()
    clients = tuple(
        guest.description() for guest in conversation.audience if isinstance(guest, Session)
    )
    answer.give(conversation.snapshot(clients))
    session.replay(missed)
    session.enter(conversation, observer=cursor.observer if cursor else False)
    conversation.profile.store.touch(conversation.session_id, premises.household.clock())


async def detach(premises: Premises, session: Session, request: Detach, answer: Answer) -> None:
    session.depart()
    answer.give(Detached())


async def new(premises: Premises, session: Session, request: SessionNew, answer: Answer) -> None:
    model = premises.household.router.check(request.model) if request.model else None
    name = _checked_name(request.name) if request.name is not None else None
    await premises.registry.make_room()
    conversation = premises.registry.fresh(session.user, request.history)
    await conversation.ensure_stored()
    if name is not None:
        await changes.rename(conversation, name)
    if request.system:
        await conversation.write_fact(SystemInstructionEntry(content=request.system))
    if model is not None:
        await changes.switch_model(conversation, model)
    session.depart()
    answer.give(SessionCreated(session_id=conversation.session_id, name=conversation.name))
    session.enter(conversation)


async def delete(
    premises: Premises, session: Session, request: SessionDelete, answer: Answer
) -> None:
    await premises.registry.delete(request.session_id, session.user)
    current = session.conversation
    answer.give(
        SessionDeleted(
            session_id=request.session_id,
            current_session_id=current.session_id if current else "",
        )
    )


async def update(
    premises: Premises, session: Session, request: SessionUpdate, answer: Answer
) -> None:
    if request.deleted is not None:
        raise RequestError(
            ErrorCode.UNSUPPORTED,
            "this server can't change deleted yet",
            field="deleted",
        )
    session_id = request.session_id or session.here().session_id
    conversation = await premises.registry.get(session_id, session.user)
    if conversation is session.conversation:
        session.check_may_speak()
    if request.name is not None:
        await changes.rename(conversation, _checked_name(request.name))
    if request.system is not None:
        await conversation.write_fact(SystemInstructionEntry(content=request.system))
    if request.pinned is not None:
        await conversation.write_fact(PinnedEntry(pinned=request.pinned))
    if request.archived is not None:
        await conversation.write_fact(ArchivedEntry(archived=request.archived))
    if conversation.row is None:
        raise no_such_conversation(session_id)
    answer.give(_as_row(premises, session, conversation.row))


async def list_sessions(
    premises: Premises, session: Session, request: SessionList, answer: Answer
) -> None:
    # A row is at most a few hundred characters; a page fits any message limit.
    rows_max = min(_LIST_ROWS_MAX, premises.household.limits.message_bytes_max // _ROW_BYTES_MAX)
    query = RowQuery(
        limit=min(request.limit, rows_max),
        cursor=request.cursor,
        archived=request.archived,
        name_has=request.query,
    )
    try:
        page = await premises.household.library.list(session.user, query)
    except BadCursor:
        raise RequestError(
            ErrorCode.MALFORMED,
            "cursor must be a next_cursor of this list",
            field="cursor",
        ) from None
    answer.give(
        SessionRows(
            sessions=tuple(_as_row(premises, session, row) for row in page.rows),
            next_cursor=page.next_cursor,
        )
    )


def _checked_name(name: str) -> str:
    if not name.strip():
        raise RequestError(ErrorCode.MALFORMED, "a name must not be blank", field="name")
    return name.strip()


def _as_row(premises: Premises, session: Session, row: ConversationRow) -> SessionRow:
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
