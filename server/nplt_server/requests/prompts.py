"""Handles requests that continue the current conversation, or roll it back.

PROMPT, CANCEL, MODEL_SWITCH, CLEAR_REQUEST, ROLLBACK, COMPACT, APPROVAL.
"""

from __future__ import annotations

from functools import partial
from hashlib import sha256
from itertools import islice
from typing import Final

from msgspec.structs import replace

from nplt_protocol import ErrorCode, JsonObject, RequestError, messages
from nplt_server.connections.session import Session
from nplt_server.conversations import operations
from nplt_server.conversations.approvals import no_such_question
from nplt_server.conversations.conversation import Conversation, ForkNeeded
from nplt_server.dialects import PendingReply
from nplt_server.providers import check_options
from nplt_storage.errors import BadEntry
from nplt_storage.history import check_metadata


async def prompt(session: Session, request: messages.Prompt, pending: PendingReply) -> None:
    if request.options:
        await check_options(request.options)
    if request.metadata:
        _check_metadata(request.metadata)
    conversation = await session.find_conversation(
        request.session_id, to_change=True, create=request.create, history=request.history
    )
    is_foreign = not session.is_in(conversation)

    admission, services = session.server.admission, session.server.services
    if admission.need_tokens:  # a server without tokens has one user, who is not limited
        admission.take_prompt(session.user, services)
        await services.quotas.check_conversations(session.user)

    def send_receipt(receipt: messages.Receipt) -> None:
        # A plain client has no message_id: if its prompt is a duplicate, the relay sent it twice.
        if not is_foreign and not (receipt.duplicate and session.can_attach):
            session.own_turns[receipt.turn_id] = receipt.seq
        pending.send(receipt)

    try:
        await conversation.accept(request, receipt=send_receipt)
    except ForkNeeded as fork:
        is_foreign = True
        original = conversation
        conversation = await _fork(session, conversation, fork.at_seq, request)
        files = {file_id for message in fork.new for file_id in message.attachments}
        await operations.copy_files(original, conversation, files)
        request = replace(request, messages=fork.new)
        await conversation.accept(request, receipt=send_receipt, compares=False)


async def _fork(
    session: Session, conversation: Conversation, at_seq: int, request: messages.Prompt
) -> Conversation:
    """Returns a conversation for a prompt that belongs after entry `at_seq`: a fork that ends
    there, or a new one if nothing is shared. Its id follows from the prompt's, so a prompt that is
    sent again finds the fork that was made for it."""
    session_manager, user, source = session.server.session_manager, session.user, conversation
    ids = [
        sha256(f"{user}\n{source.session_id}\n{sent_as}".encode()).hexdigest()[:32]
        for sent_as in (request.message_id, *request.earlier_ids)
        if sent_as
    ]
    if source.row is None or at_seq < source.row.first_seq:
        history = source.record.profile.id
        for made_before in ids[1:]:
            if await session_manager.lookup(made_before, user) is not None:
                return await session_manager.get(made_before, user)
        new_id = ids[0] if ids else session.server.services.new_session_id()
        return await session.find_conversation(new_id, to_change=True, create=True, history=history)
    made = await operations.fork(
        session.server.services,
        session_manager,
        session_id=source.session_id,
        user=user,
        at_seq=at_seq,
        name=None,
        ids=ids,
    )
    return await session_manager.get(made.session_id, user)


def _check_metadata(metadata: JsonObject) -> None:
    try:
        check_metadata(metadata)
    except BadEntry as error:
        raise RequestError(ErrorCode.MALFORMED, str(error), field="metadata") from None


async def cancel(session: Session, request: messages.Cancel, pending: PendingReply) -> None:
    turn_id = request.turn_id or session.last_turn
    conversation = (
        session.server.session_manager.turn_holder(turn_id, session.user) if turn_id else None
    )
    if conversation is not None and session.is_in(conversation):
        session.check_may_speak()
    cancelled = bool(conversation and turn_id and conversation.cancel(turn_id))
    if turn_id and not cancelled:
        later = await session.server.session_manager.later_holder(turn_id, session.user)
        if later is not None:
            if session.is_in(later):
                session.check_may_speak()
            cancelled = await later.cancel_later(turn_id)
    pending.send(messages.Cancelled(cancelled=cancelled))


async def model_switch(
    session: Session, request: messages.ModelSwitch, pending: PendingReply
) -> None:
    conversation, router = session.here(), session.server.services.router
    previous = conversation.model
    wanted = router.wished(model=request.model, role=request.role)
    await check_options(request.options or {})
    if wanted is not None or request.options:
        session.check_may_speak()
    if wanted is not None:
        previous = await operations.switch_model(conversation, wanted)
    if request.options:
        await operations.set_options(conversation, request.options)
    if request.listed:
        await router.lists.load()
        # In the background, because a provider may be slow or unreachable.
        session.server.services.spawn(router.begin_lists())
    pending.send(
        messages.ModelChoice(
            model=conversation.model,
            previous_model=previous,
            models=router.models,
            roles={**router.roles},
            options={**conversation.options} or None,
            listed=router.lists.as_json() if request.listed else None,
            learned=(router.learned.as_json() or None) if request.listed else None,
            facts=_facts(session) if request.listed else None,
        )
    )


_DESCRIBED_MAX: Final = 1_000


def _facts(session: Session) -> JsonObject:
    services = session.server.services
    names = dict.fromkeys((*services.router.models, *services.router.lists.names))
    return {
        name: services.context.models.facts(name).as_json()
        for name in islice(names, _DESCRIBED_MAX)
    }


async def clear(session: Session, request: messages.ClearRequest, pending: PendingReply) -> None:
    session.check_may_speak()
    here = session.here()
    session.reply_later(here, partial(operations.clear, here), pending)


async def rollback(session: Session, request: messages.Rollback, pending: PendingReply) -> None:
    conversation = await session.find_conversation(request.session_id, to_change=True)
    given = (request.to_seq is not None, bool(request.turns), request.redo)
    if given.count(True) != 1:
        raise RequestError(
            ErrorCode.MALFORMED,
            "say what to take back: to_seq, or turns, or redo to bring it back",
            field="turns",
        )
    pending.send(
        await operations.roll_back(
            conversation, request.to_seq or 0, turns=request.turns, redo=request.redo
        )
    )


async def compact_context(
    session: Session, request: messages.Compact, pending: PendingReply
) -> None:
    conversation = await session.find_conversation(request.session_id, to_change=True)
    session.reply_later(conversation, partial(operations.compact, conversation), pending)


async def approval(session: Session, request: messages.Approval, pending: PendingReply) -> None:
    """Decides an approval that was requested in this session's conversation, or in another one of
    the user."""
    here, approval_id = session.conversation, request.approval_id
    if isinstance(here, Conversation) and here.approvals.knows(approval_id):
        session.check_may_speak()
        pending.send(await here.approvals.decide(request, by=session.user))
        return
    mine = [each for each in session.server.session_manager if each.user == session.user]
    asked_in = next((each for each in mine if each.approvals.holds(approval_id)), None)
    if asked_in is None:  # it may have been decided already
        asked_in = next((each for each in mine if each.approvals.knows(approval_id)), None)
    if asked_in is None:
        raise no_such_question(approval_id)
    pending.send(await asked_in.approvals.decide(request, by=session.user))
