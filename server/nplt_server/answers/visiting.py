"""ATTACH, DETACH and everything SESSION_*: moving among conversations."""

from __future__ import annotations

import base64
import binascii
from datetime import UTC, datetime

import orjson

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
from nplt_server.conversations.conversation import Conversation
from nplt_server.errors import no_such_conversation
from nplt_server.presenters.base import Answer
from nplt_storage.catalog import ConversationRow
from nplt_storage.entries import SystemInstructionEntry

_LIST_ROWS_MAX = 200
_ROW_BYTES_MAX = 4_096


async def attach(premises: Premises, session: Session, request: Attach, answer: Answer) -> None:
    conversation = await premises.registry.get(request.session_id, session.user)
    _stand_in(premises, session, conversation, answer, request)


async def switch(
    premises: Premises, session: Session, request: SessionSwitch, answer: Answer
) -> None:
    session_id = premises.registry.resolve(request.session_id, session.user)
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
    premises.household.store.touch(conversation.session_id, premises.household.clock())


async def detach(premises: Premises, session: Session, request: Detach, answer: Answer) -> None:
    session.depart()
    answer.give(Detached())


async def new(premises: Premises, session: Session, request: SessionNew, answer: Answer) -> None:
    if request.history is not None:
        raise RequestError(
            ErrorCode.UNSUPPORTED, "this server has one kind of history", field="history"
        )
    model = premises.household.router.check(request.model) if request.model else None
    name = _checked_name(request.name) if request.name is not None else None
    await premises.registry.make_room()
    conversation = premises.registry.fresh(session.user)
    await conversation.ensure_stored()
    if name is not None:
        await conversation.rename(name)
    if request.system:
        await conversation.write_fact(SystemInstructionEntry(content=request.system))
    if model is not None:
        await conversation.switch_model(model)
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
    for field in ("archived", "pinned", "deleted"):
        if getattr(request, field) is not None:
            raise RequestError(
                ErrorCode.UNSUPPORTED, f"this server can't change {field} yet", field=field
            )
    session_id = request.session_id or session.here().session_id
    conversation = await premises.registry.get(session_id, session.user)
    if conversation is session.conversation:
        session.check_may_speak()
    if request.name is not None:
        await conversation.rename(_checked_name(request.name))
    if request.system is not None:
        await conversation.write_fact(SystemInstructionEntry(content=request.system))
    row = premises.registry.row(session_id, session.user)
    if row is None:
        raise no_such_conversation(session_id)
    answer.give(_as_row(premises, session, row))


async def list_sessions(
    premises: Premises, session: Session, request: SessionList, answer: Answer
) -> None:
    rows = [
        row
        for row in premises.household.store.rows(session.user)
        if row.archived == request.archived and _matches(row, request.query)
    ]
    rows.sort(key=_newest_first, reverse=True)
    if request.cursor is not None:
        last = _read_cursor(request.cursor)
        rows = [row for row in rows if _newest_first(row) < last]
    page = rows[: min(request.limit, _LIST_ROWS_MAX)]
    # A row is at most a few hundred characters; a page fits any message limit.
    page = page[: premises.household.limits.message_bytes_max // _ROW_BYTES_MAX]
    answer.give(
        SessionRows(
            sessions=tuple(_as_row(premises, session, row) for row in page),
            next_cursor=_write_cursor(page[-1]) if len(rows) > len(page) else None,
        )
    )


def _checked_name(name: str) -> str:
    if not name.strip():
        raise RequestError(ErrorCode.MALFORMED, "a name must not be blank", field="name")
    return name.strip()


def _matches(row: ConversationRow, query: str | None) -> bool:
    return query is None or query.casefold() in row.name.casefold()


_Place = tuple[bool, datetime, str]


def _newest_first(row: ConversationRow) -> _Place:
    return (row.pinned, row.updated_at, row.session_id)


def _write_cursor(row: ConversationRow) -> str:
    pinned, updated_at, session_id = _newest_first(row)
    place = orjson.dumps([pinned, updated_at.isoformat(), session_id])
    return base64.urlsafe_b64encode(place).decode()


def _read_cursor(cursor: str) -> _Place:
    try:
        pinned, updated_at, session_id = orjson.loads(base64.urlsafe_b64decode(cursor))
        return bool(pinned), datetime.fromisoformat(updated_at).astimezone(UTC), str(session_id)
    except (binascii.Error, ValueError, TypeError):
        raise RequestError(
            ErrorCode.MALFORMED, "cursor must be a next_cursor of this list", field="cursor"
        ) from None


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
