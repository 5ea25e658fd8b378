"""PROMPT, CANCEL, MODEL_SWITCH, CLEAR_REQUEST, HISTORY_REQUEST."""

from __future__ import annotations

import orjson

from nplt_protocol.codes import ErrorCode
from nplt_protocol.errors import RequestError
from nplt_protocol.json_values import JsonObject
from nplt_protocol.limits import FRAME_PAYLOAD_BYTES_MAX
from nplt_protocol.replies import (
    Cancelled,
    HistoryPage,
    MessageRange,
    ModelChoice,
    PageEdges,
    Receipt,
)
from nplt_protocol.requests import (
    Cancel,
    ClearRequest,
    HistoryRequest,
    ModelSwitch,
    Prompt,
)
from nplt_server.connections.premises import Premises
from nplt_server.connections.session import Session
from nplt_server.conversations import changes
from nplt_server.conversations.library import Found
from nplt_server.presenters.base import Answer
from nplt_storage.conversation.paging import MessagePage, PageQuery
from nplt_storage.conversation.rows import NEW_NAME

_PAGE_MESSAGES_MAX = 200
_PAGE_BYTES_MIN = 4_096
"""Less would hold no message, however it is cut."""
_ENVELOPE_BYTES = 2_048
"""Room for what stands around the messages of a page: id, name, edges."""
_RANGE_CHARACTERS_MAX = 10_000
"""So that a range of a message fits one frame, whatever it is made of."""


async def prompt(premises: Premises, session: Session, request: Prompt, answer: Answer) -> None:
    here = session.conversation
    if request.session_id is None or (here and here.session_id == request.session_id):
        conversation = session.here()
        session.check_may_speak()
        is_foreign = False
    else:
        conversation = await premises.registry.get(request.session_id, session.user)
        is_foreign = True

    if wait := premises.front_desk.seconds_until_prompt(session.user):
        raise RequestError(
            ErrorCode.RATE_LIMITED, "you prompt faster than you may", retry_after=wait
        )

    def receipt(given: Receipt) -> None:
        if not is_foreign and not given.duplicate:
            session.my_turn(given)
        answer.give(given)

    await conversation.accept(request, receipt=receipt)


async def cancel(premises: Premises, session: Session, request: Cancel, answer: Answer) -> None:
    turn_id = request.turn_id or session.last_turn
    conversation = premises.registry.turn_holder(turn_id, session.user) if turn_id else None
    if conversation is not None and conversation is session.conversation:
        session.check_may_speak()
    cancelled = bool(conversation and turn_id and conversation.cancel(turn_id))
    answer.give(Cancelled(cancelled=cancelled))


async def model_switch(
    premises: Premises, session: Session, request: ModelSwitch, answer: Answer
) -> None:
    conversation = session.here()
    previous = conversation.model
    if request.model is not None:
        session.check_may_speak()
        previous = await changes.switch_model(conversation, request.model)
    answer.give(
        ModelChoice(
            model=conversation.model,
            previous_model=previous,
            models=premises.household.router.models,
        )
    )


async def clear(
    premises: Premises, session: Session, request: ClearRequest, answer: Answer
) -> None:
    session.check_may_speak()
    here = session.here()
    here.queue(
        lambda: changes.clear(here),
        done=answer.give,
        failed=lambda error: session.refuse(answer, error),
    )


async def history(
    premises: Premises, session: Session, request: HistoryRequest, answer: Answer
) -> None:
    session_id = request.session_id or session.here().session_id
    found = await premises.registry.find(session_id, session.user)
    if request.seq is not None:
        answer.give(await _message_range(found, session_id, request))
        return
    if found is None:
        cursor = request.before or request.after or request.around or 0
        page = MessagePage(
            messages=(), has_more_before=False, has_more_after=False, before=cursor, after=cursor
        )
    else:
        query = _page_query(premises, request, answer.bytes_max)
        page = await found.profile.store.page(session_id, query)
        found = await premises.registry.find(session_id, session.user) or found
    row = found.row if found else None
    answer.give(
        HistoryPage(
            session_id=session_id,
            name=row.name if row else NEW_NAME,
            message_count=row.message_count if row else 0,
            head_seq=row.head_seq if row else 0,
            messages=page.messages,
            page=PageEdges(
                has_more_before=page.has_more_before,
                has_more_after=page.has_more_after,
                before=page.before,
                after=page.after,
            ),
        )
    )


def _page_query(
    premises: Premises, request: HistoryRequest, client_bytes_max: int | None
) -> PageQuery:
    asked = FRAME_PAYLOAD_BYTES_MAX
    if request.max_bytes is not None:
        asked = max(request.max_bytes, _PAGE_BYTES_MIN)
    server_bytes_max = premises.household.limits.message_bytes_max
    bytes_max = min(asked, server_bytes_max, client_bytes_max or asked)
    return PageQuery(
        before=request.before,
        after=request.after,
        around=request.around,
        limit=min(request.limit, _PAGE_MESSAGES_MAX),
        max_bytes=max(1_024, bytes_max - _ENVELOPE_BYTES),
        roles=request.roles or ("user", "assistant"),
        view=request.view,
        detail=request.detail,
        size=written_size,
    )


def written_size(message: JsonObject) -> int:
    """Bytes of a message in whichever dialect it goes out: brackets count as
    they are written for clients that would take them for markup."""
    data = orjson.dumps(message)
    return len(data) + 5 * data.count(b"[")


async def _message_range(
    found: Found | None, session_id: str, request: HistoryRequest
) -> MessageRange:
    assert request.seq is not None
    text = await found.profile.store.text_of(session_id, request.seq) if found else None
    if text is None:
        raise no_such_message(session_id, request.seq)
    length = _RANGE_CHARACTERS_MAX
    if request.length is not None:
        length = min(request.length, _RANGE_CHARACTERS_MAX)
    return MessageRange(
        session_id=session_id,
        seq=request.seq,
        offset=request.offset,
        content=text[request.offset : request.offset + length],
        size=len(text),
    )


def no_such_message(session_id: str, seq: int) -> RequestError:
    del session_id
    return RequestError(ErrorCode.NOT_FOUND, f"there is no message {seq} here", field="seq")
