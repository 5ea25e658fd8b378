"""Questions that were asked before we came, as if they were asked now."""

from __future__ import annotations

from nplt_protocol.errors import RequestError
from nplt_protocol.events import ApprovalRequest
from nplt_protocol.replies import Attached
from nplt_protocol.shapes import read


def pending_questions(attached: Attached) -> list[ApprovalRequest]:
    """What a newer server says differently is left out."""
    questions: list[ApprovalRequest] = []
    for said in attached.pending_approvals:
        try:
            question = read(
                ApprovalRequest, {"session_id": attached.session_id, **said}, lenient=True
            )
        except RequestError:
            continue
        questions.append(question)
    return questions
