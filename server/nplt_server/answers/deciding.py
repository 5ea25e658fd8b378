"""APPROVAL: someone says whether a tool may be run."""

from __future__ import annotations

from nplt_protocol.requests import Approval
from nplt_server.connections.premises import Premises
from nplt_server.connections.session import Session
from nplt_server.conversations.approvals import no_such_question
from nplt_server.conversations.conversation import Conversation
from nplt_server.presenters.base import Answer


async def approval(premises: Premises, session: Session, request: Approval, answer: Answer) -> None:
    conversation = _asked_in(premises, session, request.approval_id)
    if conversation is session.conversation:
        session.check_may_speak()
    answer.give(await conversation.approvals.decide(request, by=session.user))


def _asked_in(premises: Premises, session: Session, approval_id: str) -> Conversation:
    """The one it stands in, or any other of theirs in which that waits to be decided."""
    here = session.conversation
    if here is not None and here.approvals.knows(approval_id):
        return here
    for conversation in premises.registry:
        if conversation.user == session.user and conversation.approvals.holds(approval_id):
            return conversation
    raise no_such_question(approval_id)
