"""What may come next in a conversation.

Checked before an entry gets its number, so that a record never holds a result
without its call, an answer to nothing, or a word after a turn's end. What is
already on disk is never judged by these rules: it happened.
"""

from __future__ import annotations

from nplt_storage.entries import (
    Entry,
    FaultEntry,
    ModelInputEntry,
    ModelOutputEntry,
    RenamedEntry,
    ToolResultsEntry,
    UnknownEntry,
)
from nplt_storage.errors import BadEntry
from nplt_storage.turns import Turn, Turns


def check_next(entry: Entry, turns: Turns) -> None:
    match entry:
        case ModelInputEntry():
            _check_prompt(entry, turns)
        case ModelOutputEntry():
            _check_output(entry, _open_turn(entry, turns))
        case ToolResultsEntry():
            _check_results(entry, _open_turn(entry, turns))
        case FaultEntry():
            _open_turn(entry, turns)
        case RenamedEntry():
            if not entry.name.strip():
                raise BadEntry("a name is not blank")
        case UnknownEntry():
            raise BadEntry(f"this version does not know entries of kind {entry.kind!r}")
        case _:
            turn = turns.get(entry.turn_id)
            if turn is not None and turn.end is not None:
                raise BadEntry(f"turn {entry.turn_id} has ended")


def _check_prompt(entry: ModelInputEntry, turns: Turns) -> None:
    if not entry.content.strip():
        raise BadEntry("a prompt is not blank")
    if not entry.turn_id:
        raise BadEntry("a prompt begins a turn: it needs a turn_id")
    if turns.get(entry.turn_id) is not None:
        raise BadEntry(f"turn {entry.turn_id} has begun before")


def _check_output(entry: ModelOutputEntry, turn: Turn) -> None:
    if turn.open_calls:
        raise BadEntry(f"turn {entry.turn_id} has calls without results")
    if entry.call <= turn.last_call:
        raise BadEntry(f"call {entry.call} of turn {entry.turn_id} has its output already")
    if not entry.content and not entry.tool_calls and entry.state == "completed":
        raise BadEntry("a completed output has text or tool calls")


def _check_results(entry: ToolResultsEntry, turn: Turn) -> None:
    asked = [(call.tool_call_id, call.tool_name) for call in turn.open_calls]
    if not asked:
        raise BadEntry(f"turn {entry.turn_id} has no calls that wait for results")
    given = [(result.tool_call_id, result.tool_name) for result in entry.results]
    if asked != given:
        raise BadEntry(f"results for {given} do not pair, in order, with the calls {asked}")


def _open_turn(entry: Entry, turns: Turns) -> Turn:
    turn = turns.get(entry.turn_id)
    if turn is None or turn.prompt is None:
        raise BadEntry(f"there is no prompt of turn {entry.turn_id}")
    if turn.end is not None:
        raise BadEntry(f"turn {entry.turn_id} has ended")
    return turn
