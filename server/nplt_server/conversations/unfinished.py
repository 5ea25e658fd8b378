"""What the last life of the server left undone, taken up when a conversation is opened.

A turn that had begun ends as interrupted and is never run again by itself: its
tools may have done something. What it had said is kept. One that was waiting for
people to allow a tool goes on waiting (`resuming`). Prompts that only
waited are run now. A server that shuts down in good order leaves word that all
of them only waited; without that word, whether the first had begun can't be
told, so it counts as begun. The word is answered before the first is run, so
that it counts for one start only. Where nothing can be written now (a full
disk), the ends are owed: the conversation can be read meanwhile.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from datetime import datetime

from nplt_server.conversations.agenda import Agenda
from nplt_server.conversations.ending import Write, end_turn, fault_for
from nplt_server.conversations.resuming import taken_up_again
from nplt_server.conversations.turn import Turn
from nplt_server.tools.runner import ToolRunner
from nplt_storage.conversation.history import ConversationHistory
from nplt_storage.errors import StorageError
from nplt_storage.facts.entries import DebugEntry, EpochEntry, ModelOutputEntry
from nplt_storage.store import SaidSoFar

log = logging.getLogger(__name__)

_REASON = "the server stopped before this turn was finished"
_CATEGORY = "shutdown"
_WAIT = "prompts wait for the next start"


def word_for_later(waiting: int) -> DebugEntry:
    return DebugEntry(category=_CATEGORY, content=f"{waiting} {_WAIT}")


async def pick_up(
    history: ConversationHistory,
    agenda: Agenda,
    *,
    said: SaidSoFar | None,
    tools: ToolRunner,
    now: datetime,
    write: Write,
) -> None:
    unfinished = history.unfinished_turns()
    left_word = bool(unfinished) and _is_word(history)
    for place, prompt in enumerate(unfinished):
        assert prompt.turn_id is not None
        is_running = history.turn_state(prompt.turn_id) == "running"
        has_spoken = said is not None and said.turn_id == prompt.turn_id and bool(said.text)
        if not (is_running or has_spoken or (place == 0 and not left_word)):
            agenda.add(Turn(prompt=prompt))
            continue
        waiting = taken_up_again(prompt, history, tools=tools, now=now)
        if waiting is not None and not has_spoken:
            agenda.approvals.take_up(waiting)
            agenda.add(waiting)
            continue
        fault = fault_for(prompt.turn_id, _REASON, code="interrupted", state="interrupted")
        try:
            if said is not None and has_spoken:
                await write(_cut_answer(said))
            else:
                await end_turn(fault, history, tools=tools, write=write)
        except StorageError as error:
            log.warning("%s: the end of a turn is owed: %s", history.session_id, error)
            agenda.owe(fault)
    if left_word and len(agenda):
        with suppress(StorageError):  # then its prompts may be run once more
            await write(DebugEntry(category=_CATEGORY, content="the prompts that waited run now"))
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
    """Whether it is the last that was said of turns. A name, a clear or a summary may
    have come after it: that no turn wrote. An epoch begins right before a call."""
    entries = history.entries
    for place in range(len(entries) - 1, -1, -1):
        entry = entries[place]
        if isinstance(entry, DebugEntry) and entry.category == _CATEGORY:
            return entry.content.endswith(_WAIT)
        if entry.turn_id is not None or isinstance(entry, EpochEntry):
            return False
    return False
