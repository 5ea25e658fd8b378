"""A turn that waited for people when the server stopped, taken up where it stood.

The record tells what became of each call of its last answer:

    asked, and not too late     still to be decided, under the same id
    asked, too late; denied     not run
    allowed; nothing is said    may have been run: its outcome is unknown, and it is
                                never run again by itself

Only if something is still to be decided does the turn go on.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from nplt_server.conversations.approval_facts import (
    is_open_question,
    last_words_of_step,
    permission_by,
)
from nplt_server.conversations.turn import Turn
from nplt_server.tools.runner import ToolRunner
from nplt_storage.conversation.history import ConversationHistory
from nplt_storage.conversation.turns import Turn as TurnSoFar
from nplt_storage.facts.entries import ApprovalEntry, ModelInputEntry, ModelOutputEntry
from nplt_storage.facts.tool_calls import ToolCallRequest, ToolCallResult

_STOPPED: Final = "the server stopped while it ran"


def taken_up_again(
    prompt: ModelInputEntry, history: ConversationHistory, *, tools: ToolRunner, now: datetime
) -> Turn | None:
    """`None`: nothing is to be decided any more."""
    so_far = history.turn(prompt.turn_id or "")
    if so_far is None or so_far.unanswered is None or so_far.is_over:
        return None
    said = last_words_of_step(history, prompt.turn_id or "")
    results = {
        call.tool_call_id: result_by_record(call, said.get(call.tool_call_id), tools, _STOPPED)
        for call in so_far.open_calls
        if not is_open_question(said.get(call.tool_call_id), now)
    }
    if len(results) == len(so_far.open_calls):
        return None
    answer = so_far.unanswered
    return Turn(
        prompt=prompt,
        model=_model_of(answer),
        call=answer.call,
        has_answer=True,
        results=results,
        usage=_usage(so_far),
    )


def result_by_record(
    call: ToolCallRequest, said: ApprovalEntry | None, tools: ToolRunner, reason: str
) -> ToolCallResult:
    """Of a call whose result was lost, or never came."""
    if said is None or said.state == "allowed":
        return tools.unknown(call, reason)
    if said.state == "denied":
        return tools.skipped(call, permission_by(said).why_not)
    return tools.skipped(call, f"not run: {reason}")


def _model_of(answer: ModelOutputEntry) -> str:
    who = answer.invocation
    return "" if who is None else f"{who.provider}/{who.model}"


def _usage(so_far: TurnSoFar) -> dict[str, int]:
    usage: dict[str, int] = {}
    for entry in so_far.entries:
        if isinstance(entry, ModelOutputEntry):
            for name, tokens in (entry.usage or {}).items():
                if isinstance(tokens, int):
                    usage[name] = usage.get(name, 0) + tokens
    return usage
