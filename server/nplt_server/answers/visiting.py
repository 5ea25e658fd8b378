"""ATTACH, DETACH, SESSION_LIST, _SWITCH, _NEW, _DELETE: moving among conversations."""

from __future__ import annotations

from dataclasses import replace

from nplt_protocol.codes import ErrorCode
from nplt_protocol.errors import RequestError
from nplt_protocol.replies import (
    Detached,
    SessionCreated,
    SessionDeleted,
    SessionRows,
)
from nplt_protocol.requests import (
    Attach,
    Detach,
    SessionDelete,
    SessionList,
    SessionNew,
    SessionSwitch,
)
from nplt_server.answers.arranging import checked_name
from nplt_server.answers.rows import as_row
from nplt_server.connections.premises import Premises
from nplt_server.connections.session import Session, guest_of
from nplt_server.conversations import changes
from nplt_server.conversations.conversation import Conversation
from nplt_server.conversations.presence import clients_with
from nplt_server.presenters.base import Answer
from nplt_storage.conversation.row_lists import BadCursor, RowQuery

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
    observer = cursor.observer if cursor else False
    snapshot = conversation.snapshot(
        clients_with(conversation, guest_of(session, observer=observer))
    )
    answer.give(replace(snapshot, resync=True) if missed.resync else snapshot)
    session.replay(missed.frames)
    session.enter(conversation, observer=observer)
    conversation.profile.store.touch(conversation.session_id, premises.household.clock())


async def detach(premises: Premises, session: Session, request: Detach, answer: Answer) -> None:
    session.depart()
    answer.give(Detached())


async def new(premises: Premises, session: Session, request: SessionNew, answer: Answer) -> None:
    model = premises.household.router.check(request.model) if request.model else None
    name = checked_name(request.name) if request.name is not None else None
    await premises.registry.make_room()
    conversation = premises.registry.fresh(session.user, request.history)
    await conversation.ensure_stored()
    if name is not None:
        await changes.rename(conversation, name)
    if request.system:
        await changes.set_system(conversation, request.system)
    if model is not None:
        await changes.switch_model(conversation, model)
    session.depart()
    answer.give(SessionCreated(session_id=conversation.session_id, name=conversation.name))
    session.enter(conversation)


async def delete(
    premises: Premises, session: Session, request: SessionDelete, answer: Answer
) -> None:
    here = session.conversation
    if here is not None and here.session_id == request.session_id:
        session.check_may_speak()
    await premises.registry.delete(request.session_id, session.user)
    current = session.conversation
    answer.give(
        SessionDeleted(
            session_id=request.session_id,
            current_session_id=current.session_id if current else "",
        )
    )


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
            sessions=tuple(as_row(premises, session, row) for row in page.rows),
            next_cursor=page.next_cursor,
        )
    )
