"""The turns of a conversation as its record holds them, and what may follow in each state.

A turn begins with a stored prompt and ends with an answer, a partial answer or a fault, or with
calls of tools that its client runs: their results come later, with another prompt. Its state
follows from its entries alone, so it is the same after a restart. `TURN_STATES` lists which
entries each state allows and the state that follows; an entry that is not listed is refused with
`BadEntry`. docs/architecture.md shows the same table. What a file holds is accepted whatever
it is (a turn without a prompt, results without a call): the table is for what is written.

Models are shown turns in the order of their prompts, whenever they ended, so that a prompt that
was cancelled while it waited is not inserted before what a running turn has seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, Literal, TypeAlias

from msgspec import Struct, field

from nplt_storage.entries import (
    FaultEntry,
    ModelInputEntry,
    ModelOutputEntry,
    ToolCallRequest,
    ToolResultsEntry,
)
from nplt_storage.errors import BadEntry

TurnState: TypeAlias = Literal["waiting", "running", "completed", "interrupted", "failed"]
"""The state of a turn as clients see it."""
ContextEntry: TypeAlias = ModelInputEntry | ModelOutputEntry | ToolResultsEntry


class StoredTurnState(Enum):
    ABSENT = "absent"
    """The record has no entry of the turn."""
    WITHOUT_PROMPT = "without prompt"
    """A file holds entries of the turn, but not its prompt."""
    WAITING = "waiting"
    """The prompt is stored, and nothing after it."""
    IN_TOOLS = "in tools"
    """The latest output calls tools, which have no results yet."""
    BETWEEN_CALLS = "between calls"
    """The model is to be called again, with results or after a rejected answer."""
    AWAITS_CLIENT = "waits for its client"
    """The turn has ended with calls whose results its client has yet to bring."""
    OVER = "over"

    __hash__ = object.__hash__  # the one of Enum is written in Python, and slow


class StoredTurnStep(Enum):
    PROMPT = "a prompt"
    TOOL_CALLS = "an output that calls tools"
    CLIENT_CALLS = "an output that calls only its client's tools"
    RESULTS = "results"
    OWN_RESULTS = "results, except those of its client"
    REJECTED = "a rejected answer"
    ANSWER = "an answer, whole or partial"
    FAULT = "a fault"

    __hash__ = object.__hash__


_S, _E = StoredTurnState, StoredTurnStep

TURN_STATES: Final[Mapping[StoredTurnState, Mapping[StoredTurnStep, StoredTurnState]]] = {
    _S.ABSENT: {_E.PROMPT: _S.WAITING},
    _S.WITHOUT_PROMPT: {},
    _S.WAITING: {
        _E.TOOL_CALLS: _S.IN_TOOLS,
        _E.CLIENT_CALLS: _S.AWAITS_CLIENT,
        _E.REJECTED: _S.BETWEEN_CALLS,
        _E.ANSWER: _S.OVER,
        _E.FAULT: _S.OVER,
    },
    _S.IN_TOOLS: {
        _E.RESULTS: _S.BETWEEN_CALLS,
        _E.OWN_RESULTS: _S.AWAITS_CLIENT,
        _E.FAULT: _S.OVER,
    },
    _S.BETWEEN_CALLS: {
        _E.TOOL_CALLS: _S.IN_TOOLS,
        _E.CLIENT_CALLS: _S.AWAITS_CLIENT,
        _E.REJECTED: _S.BETWEEN_CALLS,
        _E.ANSWER: _S.OVER,
        _E.FAULT: _S.OVER,
    },
    _S.AWAITS_CLIENT: {_E.RESULTS: _S.OVER},
    _S.OVER: {},
}


class Turn(Struct, kw_only=True, gc=False):
    number: int
    """The seq of its prompt or, without a prompt, of its first entry."""
    prompt: ModelInputEntry | None = None
    entries: list[ContextEntry] = field(default_factory=list)
    end: ModelOutputEntry | ToolResultsEntry | FaultEntry | None = None
    awaiting_results: ModelOutputEntry | None = None
    """The latest output, while its calls have no results."""
    last_call: int = -1
    abandoned: bool = False
    """The conversation was forked or rolled back to an entry before its end."""

    @property
    def stored_state(self) -> StoredTurnState:
        if self.is_over:
            return _S.AWAITS_CLIENT if self.awaits_client else _S.OVER
        if self.prompt is None:
            return _S.WITHOUT_PROMPT
        if self.awaiting_results is not None:
            return _S.IN_TOOLS
        return _S.BETWEEN_CALLS if len(self.entries) > 1 else _S.WAITING

    @property
    def state(self) -> TurnState:
        if self.end is not None:
            return self.end.state
        if self.abandoned:
            return "interrupted"
        begun = len(self.entries) > (self.prompt is not None)
        return "running" if begun else "waiting"

    @property
    def never_began(self) -> bool:
        """Whether its prompt was cancelled while it waited."""
        return isinstance(self.end, FaultEntry) and self.end.never_began

    @property
    def is_over(self) -> bool:
        return self.end is not None or self.abandoned

    @property
    def awaits_client(self) -> bool:
        """Whether it has ended, and its client has yet to bring results."""
        end = self.end
        return (
            self.awaiting_results is not None
            and isinstance(end, ModelOutputEntry | ToolResultsEntry)
            and end.awaits_client
        )

    @property
    def open_tool_calls(self) -> tuple[ToolCallRequest, ...]:
        if self.awaiting_results is None or (self.is_over and not self.awaits_client):
            return ()
        return self.awaiting_results.tool_calls


def step_of(entry: ContextEntry | FaultEntry) -> StoredTurnStep:
    match entry:
        case ModelInputEntry():
            return _E.PROMPT
        case ToolResultsEntry():
            return _E.OWN_RESULTS if entry.awaits_client else _E.RESULTS
        case FaultEntry():
            return _E.FAULT
        case _:
            if not entry.ends_turn:
                return _E.TOOL_CALLS if entry.tool_calls else _E.REJECTED
            return _E.CLIENT_CALLS if entry.tool_calls and entry.awaits_client else _E.ANSWER


def check_step(entry: ContextEntry | FaultEntry, turn: Turn | None) -> None:
    """Raises `BadEntry` if the entry can't follow in its turn."""
    state, step = _S.ABSENT if turn is None else turn.stored_state, step_of(entry)
    if step not in TURN_STATES[state]:
        raise BadEntry(_why_not(state, step, entry.turn_id or ""))
    match entry:
        case ModelInputEntry():
            if not entry.content.strip() and entry.results_seq is None:
                raise BadEntry("a prompt is not blank")
            if not entry.turn_id:
                raise BadEntry("a prompt begins a turn: it needs a turn_id")
        case ModelOutputEntry():
            if turn is not None and entry.call <= turn.last_call:
                raise BadEntry(f"call {entry.call} of turn {entry.turn_id} has its output already")
            if not entry.content and not entry.tool_calls and entry.state == "completed":
                raise BadEntry("a completed output has text or tool calls")
        case ToolResultsEntry():
            calls = () if turn is None else turn.open_tool_calls
            asked = [(call.tool_call_id, call.tool_name) for call in calls]
            given = [(result.tool_call_id, result.tool_name) for result in entry.results]
            if asked != given:
                raise BadEntry(
                    f"results for {given} do not pair, in order, with the tool calls {asked}"
                )
        case FaultEntry():
            pass


def _why_not(state: StoredTurnState, step: StoredTurnStep, turn_id: str) -> str:
    if step is _E.PROMPT:
        return f"turn {turn_id} has begun before"
    if state in (_S.ABSENT, _S.WITHOUT_PROMPT):
        return f"there is no prompt of turn {turn_id}"
    if state is _S.OVER:
        return f"turn {turn_id} has ended"
    if step is _E.RESULTS:
        return f"turn {turn_id} has no tool calls that wait for results"
    return f"turn {turn_id} has tool calls without results"
