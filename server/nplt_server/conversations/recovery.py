"""Resumes or ends what a stopped server left unfinished, when a conversation is opened.

A turn that had begun ends as interrupted and is never run again by itself; what it had
said is kept. A turn that waited for an approval goes on waiting. Prompts that only waited
are run. If nothing can be written now, the ends are written later.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from nplt_server.conversations.approvals import is_open_question, last_words_of_step, permission_by
from nplt_server.conversations.turn import TurnRun
from nplt_server.tools.runner import ToolRunner
from nplt_storage.entries import (
    ApprovalEntry,
    DebugEntry,
    EpochEntry,
    FaultEntry,
    ModelInputEntry,
    ModelOutputEntry,
    ToolCallRequest,
    ToolCallResult,
    ToolResultsEntry,
)
from nplt_storage.errors import StorageError
from nplt_storage.history import ConversationHistory

if TYPE_CHECKING:
    from nplt_server.conversations.conversation import Conversation

log = logging.getLogger(__name__)


_STOPPED: Final = "the server stopped while it ran"


def resumed_turn(conversation: Conversation, prompt: ModelInputEntry) -> TurnRun | None:
    """A turn that waited for an approval when the server stopped; `None` if no approval is
    open any more. The record decides about each tool call of its last output:

        asked, not expired          still to be decided, under the same approval id
        asked, expired; denied      not run
        allowed; no approval entry  may have run: its outcome is unknown, and the server
                                    does not run it again
    """

    history, services = conversation.history, conversation.services
    so_far = history.turn(prompt.turn_id or "")
    if so_far is None or so_far.unanswered is None or so_far.is_over:
        return None
    said = last_words_of_step(history, prompt.turn_id or "")
    now = services.clock()
    results = {
        tool_call.tool_call_id: result_by_record(
            tool_call, said.get(tool_call.tool_call_id), services.tools, _STOPPED
        )
        for tool_call in so_far.open_tool_calls
        if not is_open_question(said.get(tool_call.tool_call_id), now)
    }
    if len(results) == len(so_far.open_tool_calls):
        return None
    turn, answer = TurnRun(conversation, prompt), so_far.unanswered
    who = answer.invocation
    turn.model = "" if who is None else f"{who.provider}/{who.model}"
    turn.call, turn.has_answer = answer.call, True
    turn.results = results
    for entry in so_far.entries:
        usage = entry.usage if isinstance(entry, ModelOutputEntry) else None
        for name, tokens in (usage or {}).items():
            if isinstance(tokens, int):
                turn.usage[name] = turn.usage.get(name, 0) + tokens
    return turn


def result_by_record(
    tool_call: ToolCallRequest, said: ApprovalEntry | None, tools: ToolRunner, reason: str
) -> ToolCallResult:
    """Of a call whose result was lost, or never came."""
    if said is None or said.state == "allowed":
        return tools.unknown(tool_call, reason)
    if said.state == "denied":
        return tools.skipped(tool_call, permission_by(said).why_not)
    return tools.skipped(tool_call, f"not run: {reason}")


async def end_turn(conversation: Conversation, fault: FaultEntry) -> None:
    """Ends a turn that can't end by itself: its calls get results, then the fault."""
    history, writer = conversation.history, conversation.writer
    turn_id = fault.turn_id
    assert turn_id is not None
    if history.end_of_turn(turn_id) is not None:
        return
    tool_calls = history.open_tool_calls(turn_id)
    if tool_calls:
        said = last_words_of_step(history, turn_id)
        results = tuple(
            result_by_record(
                tool_call,
                said.get(tool_call.tool_call_id),
                conversation.services.tools,
                fault.content,
            )
            for tool_call in tool_calls
        )
        await writer.append(
            ToolResultsEntry(turn_id=turn_id, results=results, execute_error=fault.content)
        )
    await writer.append(fault)


_REASON = "the server stopped before this answer was complete; ask again"
_CATEGORY = "shutdown"
_WAIT = "prompts wait for the next start"


def shutdown_note(waiting: int) -> DebugEntry:
    return DebugEntry(category=_CATEGORY, content=f"{waiting} {_WAIT}")


async def resume_unfinished(conversation: Conversation) -> None:
    """A server that shuts down in good order leaves a note that all prompts only waited.
    Without it, whether the first had begun can't be told, so it counts as begun. The note
    is answered before the first is run, so that it counts for one start only."""
    history, queue, writer = conversation.history, conversation.queue, conversation.writer
    said = writer.partial_answer
    unfinished = history.unfinished_turns()
    has_note = bool(unfinished) and _has_shutdown_note(history)
    for place, prompt in enumerate(unfinished):
        assert prompt.turn_id is not None
        is_running = history.turn_state(prompt.turn_id) == "running"
        has_spoken = said is not None and said.turn_id == prompt.turn_id and bool(said.text)
        if not (is_running or has_spoken or (place == 0 and not has_note)):
            queue.add(TurnRun(conversation, prompt))
            continue
        waiting = resumed_turn(conversation, prompt)
        if waiting is not None and not has_spoken:
            conversation.approvals.take_up(waiting)
            queue.add(waiting)
            continue
        fault = FaultEntry(
            turn_id=prompt.turn_id, content=_REASON, code="interrupted", state="interrupted"
        )
        try:
            if said is not None and has_spoken:
                await writer.append(
                    ModelOutputEntry(
                        turn_id=said.turn_id,
                        call=said.call,
                        content=said.text,
                        reasoning=said.reasoning,
                        state="interrupted",
                        error={"code": "interrupted", "message": _REASON},
                    )
                )
            else:
                await end_turn(conversation, fault)
        except StorageError as error:
            log.warning("%s: the end of a turn is owed: %s", history.session_id, error)
            queue.owe(fault)
    if has_note and len(queue):
        with suppress(StorageError):  # then its prompts may be run once more
            await writer.append(
                DebugEntry(category=_CATEGORY, content="the prompts that waited run now")
            )
    queue.advance()


def _has_shutdown_note(history: ConversationHistory) -> bool:
    """Whether it is the last that was said of turns. A name, a clear or a summary may
    have come after it: that no turn wrote. An epoch begins right before a call."""
    for entry in reversed(history.entries):
        if isinstance(entry, DebugEntry) and entry.category == _CATEGORY:
            return entry.content.endswith(_WAIT)
        if entry.turn_id is not None or isinstance(entry, EpochEntry):
            return False
    return False
