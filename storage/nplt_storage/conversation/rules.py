"""What may come next in a conversation.

Checked before an entry gets its number, so that a record never holds a result
without its call, an answer to nothing, or a word after a turn's end. What is
already on disk is never judged by these rules: it happened.
"""

from __future__ import annotations

from nplt_storage.conversation.turns import Turn, Turns
from nplt_storage.errors import BadEntry
from nplt_storage.facts.entries import (
    CompactionEntry,
    Entry,
    EpochEntry,
    FaultEntry,
    ForkedEntry,
    ModelInputEntry,
    ModelOutputEntry,
    QuarantineEntry,
    RenamedEntry,
    RollbackEntry,
    ToolResultsEntry,
    UnknownEntry,
)


def check_next(entry: Entry, turns: Turns, head_seq: int) -> None:
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
        case RollbackEntry():
            _check_rollback(entry, turns, head_seq)
        case EpochEntry():
            if entry.summary_through:
                _check_there(entry, entry.summary_through, head_seq)
            _check_open(entry, turns)
        case (
            CompactionEntry(through_seq=seq)
            | QuarantineEntry(target_seq=seq)
            | ForkedEntry(at_seq=seq)
        ):
            _check_there(entry, seq, head_seq)
        case UnknownEntry():
            raise BadEntry(f"this version does not know entries of kind {entry.kind!r}")
        case _:
            _check_open(entry, turns)


def _check_open(entry: Entry, turns: Turns) -> None:
    turn = turns.get(entry.turn_id)
    if turn is not None and turn.is_over:
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
    if turn.is_over:
        raise BadEntry(f"turn {entry.turn_id} has ended")
    return turn


def _check_rollback(entry: RollbackEntry, turns: Turns, head_seq: int) -> None:
    if entry.to_seq:  # 0: to before the first entry
        _check_there(entry, entry.to_seq, head_seq)
    if entry.to_seq == head_seq:
        raise BadEntry(f"there is nothing after entry {head_seq} to take back")
    if turns.unfinished():
        raise BadEntry("a turn has not ended: nothing is taken back under its feet")


def _check_there(entry: Entry, seq: int, head_seq: int) -> None:
    if not 1 <= seq <= head_seq:
        raise BadEntry(f"a {entry.kind} can't name entry {seq}: there are 1 to {head_seq}")
