"""What the last life of the server left undone, taken up when a conversation is opened.

A turn that had begun ends as interrupted and is never run again by itself: its
tools may have done something. Prompts that only waited are run now. Which of
the two holds for the first one can't be told from the record, so it counts as
begun.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from nplt_server.agenda import Agenda
from nplt_server.tools.runner import ToolRunner
from nplt_server.turn import Turn
from nplt_storage.entries import Entry, FaultEntry, ModelOutputEntry, ToolResultsEntry
from nplt_storage.history import ConversationHistory

_REASON = "the server stopped before this turn was finished"

Write = Callable[[Entry], Awaitable[Entry]]


async def pick_up(
    history: ConversationHistory, agenda: Agenda, *, tools: ToolRunner, write: Write
) -> None:
    for place, prompt in enumerate(history.unfinished_turns()):
        assert prompt.turn_id is not None
        if place == 0 or history.turn_state(prompt.turn_id) == "running":
            await _end(prompt.turn_id, history, tools, write)
        else:
            agenda.add(Turn(prompt=prompt))
    agenda.advance()


async def _end(turn_id: str, history: ConversationHistory, tools: ToolRunner, write: Write) -> None:
    calls = history.open_calls(turn_id)
    if calls:
        results = tuple(tools.skipped(call, _REASON) for call in calls)
        call = _latest_call(history, turn_id)
        await write(ToolResultsEntry(turn_id=turn_id, call=call, results=results))
    await write(
        FaultEntry(turn_id=turn_id, content=_REASON, code="interrupted", state="interrupted")
    )


def _latest_call(history: ConversationHistory, turn_id: str) -> int:
    outputs = (
        entry
        for entry in reversed(history.entries)
        if isinstance(entry, ModelOutputEntry) and entry.turn_id == turn_id
    )
    return next(outputs).call
