"""Decides what becomes of turns that a stopped server left unfinished.

The record shows how far each turn came:

    the record holds                             the prompt
    -------------------------------------------  -------------------------------------------
    nothing of its turn, and it only waited      is run
    an open approval, and no output after it     keeps waiting for the approval
    anything else                                ends as interrupted, and is not run again

A server that shuts down normally leaves a note that all prompts were only waiting. Without the
note it is unknown whether the first had begun, so it counts as begun. These are functions over
the record; the turn queue acts on what they return.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from nplt_server.conversations.approvals import is_open_question, last_approvals_of_step, why_denied
from nplt_server.conversations.record import ConversationRecord
from nplt_server.conversations.turn import InterruptedStep
from nplt_server.tools.executor import ToolExecutor
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
from nplt_storage.history import ConversationHistory
from nplt_storage.rows import INTERRUPTED

_STOPPED: Final = "the server stopped while it ran"
_INCOMPLETE: Final = "the server stopped before this answer was complete; ask again"
_SHUTDOWN: Final = "shutdown"
_WAIT: Final = "prompts wait for the next start"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfinishedPrompt:
    """A prompt whose turn has no end in the record. It is run, keeps waiting for an approval
    (`step`), or ends (`is_interrupted`)."""

    prompt: ModelInputEntry
    step: InterruptedStep | None = None
    is_interrupted: bool = False


def unfinished_prompts(
    record: ConversationRecord, tools: ToolExecutor, now: datetime
) -> Iterator[UnfinishedPrompt]:
    """Yields the unfinished prompts in the order in which they were accepted."""
    history, partial = record.history, record.partial_answer
    unfinished = history.unfinished_turns()
    only_waited = bool(unfinished) and has_shutdown_note(history)
    for place, prompt in enumerate(unfinished):
        turn_id = prompt.turn_id or ""
        is_running = history.turn_state(turn_id) == "running"
        has_output = partial is not None and partial.turn_id == turn_id
        if not (is_running or has_output or (place == 0 and not only_waited)):
            yield UnfinishedPrompt(prompt=prompt)
            continue
        step = None if has_output else _interrupted_step(history, turn_id, tools, now)
        yield UnfinishedPrompt(prompt=prompt, step=step, is_interrupted=step is None)


def interruption(turn_id: str) -> FaultEntry:
    return FaultEntry(turn_id=turn_id, content=_INCOMPLETE, code=INTERRUPTED, state="interrupted")


async def end_turn(record: ConversationRecord, tools: ToolExecutor, fault: FaultEntry) -> None:
    """Ends a turn that can't end by itself: with the text or reasoning that a stopped server had
    sent, or else with results for its open tool calls and the fault."""
    history, turn_id, why = record.history, fault.turn_id or "", fault.content
    if history.end_of_turn(turn_id) is not None:
        return
    partial = record.partial_answer
    if partial is not None and partial.turn_id == turn_id:
        await record.append(
            ModelOutputEntry(
                turn_id=turn_id,
                call=partial.call,
                content=partial.text,
                reasoning=partial.reasoning,
                state=fault.state,
                error={"code": fault.code, "message": why},
            )
        )
        return
    if tool_calls := history.open_tool_calls(turn_id):
        last = last_approvals_of_step(history, turn_id)
        results = tuple(_result_by_record(each, last, why, tools) for each in tool_calls)
        await record.append(ToolResultsEntry(turn_id=turn_id, results=results, execute_error=why))
    await record.append(fault)


def shutdown_note(waiting: int) -> DebugEntry:
    return DebugEntry(category=_SHUTDOWN, content=f"{waiting} {_WAIT}")


def shutdown_note_used() -> DebugEntry:
    """An entry that cancels the note. It is written before the first prompt is run, so that the
    note counts for one start only."""
    return DebugEntry(category=_SHUTDOWN, content="the prompts that waited run now")


def has_shutdown_note(history: ConversationHistory) -> bool:
    """Whether there is a note, and no turn has written anything since. Entries that no turn writes
    (a name, a clear, a summary) do not matter; an epoch does, because it precedes a call."""
    for entry in reversed(history.entries):
        if isinstance(entry, DebugEntry) and entry.category == _SHUTDOWN:
            return entry.content.endswith(_WAIT)
        if entry.turn_id is not None or isinstance(entry, EpochEntry):
            return False
    return False


def _interrupted_step(
    history: ConversationHistory, turn_id: str, tools: ToolExecutor, now: datetime
) -> InterruptedStep | None:
    """Returns where to resume a turn that was waiting for an approval when the server stopped, or
    `None` if no approval is still open. The record decides about each tool call of its last output:

        asked, not expired          still to be decided, under the same approval id
        asked, expired; denied      not run
        allowed; no approval entry  may have run: its outcome is unknown, and the server
                                    does not run it again
    """
    turn = history.turn(turn_id)
    if turn is None or turn.awaiting_results is None or turn.is_over:
        return None
    last = last_approvals_of_step(history, turn_id)
    own_calls = [each for each in turn.open_tool_calls if not each.by_client]
    results = {
        tool_call.tool_call_id: _result_by_record(tool_call, last, _STOPPED, tools)
        for tool_call in own_calls
        if not is_open_question(last.get(tool_call.tool_call_id), now)
    }
    if len(results) == len(own_calls):
        return None
    usage: dict[str, int] = {}
    for entry in turn.entries:
        reported = entry.usage if isinstance(entry, ModelOutputEntry) else None
        for name, tokens in (reported or {}).items():
            if isinstance(tokens, int):
                usage[name] = usage.get(name, 0) + tokens
    invocation = turn.awaiting_results.invocation
    return InterruptedStep(
        model="" if invocation is None else f"{invocation.provider}/{invocation.model}",
        call=turn.awaiting_results.call,
        results=results,
        usage=usage,
    )


def _result_by_record(
    tool_call: ToolCallRequest, last: dict[str, ApprovalEntry], reason: str, tools: ToolExecutor
) -> ToolCallResult:
    """The result of a tool call whose own result was lost, or was never produced."""
    approval = last.get(tool_call.tool_call_id)
    if approval is None or approval.state == "allowed":
        return tools.unknown(tool_call, reason)
    if approval.state == "denied":
        return tools.skipped(tool_call, why_denied(approval) or "")
    return tools.skipped(tool_call, f"not run: {reason}")
