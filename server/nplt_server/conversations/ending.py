"""Ends a turn that can't end by itself: its calls get results, then a fault says why."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal

from nplt_server.conversations.approval_facts import last_words_of_step
from nplt_server.conversations.resuming import result_by_record
from nplt_server.tools.runner import ToolRunner
from nplt_storage.conversation.history import ConversationHistory
from nplt_storage.facts.entries import Entry, FaultEntry, ToolResultsEntry

Write = Callable[[Entry], Awaitable[Entry]]


async def end_turn(
    fault: FaultEntry, history: ConversationHistory, *, tools: ToolRunner, write: Write
) -> None:
    turn_id = fault.turn_id
    assert turn_id is not None
    if history.end_of_turn(turn_id) is not None:
        return
    calls = history.open_calls(turn_id)
    if calls:
        said = last_words_of_step(history, turn_id)
        results = tuple(
            result_by_record(call, said.get(call.tool_call_id), tools, fault.content)
            for call in calls
        )
        await write(ToolResultsEntry(turn_id=turn_id, results=results))
    await write(fault)


def fault_for(
    turn_id: str, reason: str, *, code: str, state: Literal["failed", "interrupted"]
) -> FaultEntry:
    return FaultEntry(turn_id=turn_id, content=reason, code=code, state=state)
