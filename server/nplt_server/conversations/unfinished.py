"""What the last life of the server left undone, taken up when a conversation is opened.

A turn that had begun ends as interrupted and is never run again by itself: its
tools may have done something. What it had said is kept. Prompts that only
waited are run now. A server that shuts down in good order leaves word that all
of them only waited; without that word, whether the first had begun can't be
told, so it counts as begun.
"""

from __future__ import annotations

from nplt_server.conversations.agenda import Agenda
from nplt_server.conversations.ending import Write, end_turn, fault_for
from nplt_server.conversations.turn import Turn
from nplt_server.tools.runner import ToolRunner
from nplt_storage.conversation.history import ConversationHistory
from nplt_storage.facts.entries import DebugEntry, ModelOutputEntry
from nplt_storage.store import SaidSoFar

_REASON = "the server stopped before this turn was finished"
_CATEGORY = "shutdown"


def word_for_later(waiting: int) -> DebugEntry:
    return DebugEntry(category=_CATEGORY, content=f"{waiting} prompts wait for the next start")


async def pick_up(
    history: ConversationHistory,
    agenda: Agenda,
    *,
    said: SaidSoFar | None,
    tools: ToolRunner,
    write: Write,
) -> None:
    unfinished = history.unfinished_turns()
    left_word = bool(unfinished) and _is_word(history)
    for place, prompt in enumerate(unfinished):
        assert prompt.turn_id is not None
        is_running = history.turn_state(prompt.turn_id) == "running"
        if said is not None and said.turn_id == prompt.turn_id and said.text:
            await write(_cut_answer(said))
        elif is_running or (place == 0 and not left_word):
            fault = fault_for(prompt.turn_id, _REASON, code="interrupted", state="interrupted")
            await end_turn(fault, history, tools=tools, write=write)
        else:
            agenda.add(Turn(prompt=prompt))
    agenda.advance()


def _cut_answer(said: SaidSoFar) -> ModelOutputEntry:
    return ModelOutputEntry(
        turn_id=said.turn_id,
        call=said.call,
        content=said.text,
        reasoning=said.reasoning,
        state="interrupted",
        error={"code": "interrupted", "message": _REASON},
    )


def _is_word(history: ConversationHistory) -> bool:
    newest = history.entries[-1]
    return isinstance(newest, DebugEntry) and newest.category == _CATEGORY
