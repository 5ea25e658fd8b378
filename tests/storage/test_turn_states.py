"""Every entry is tried in every state of a turn: the table says which of them may follow."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import count

import pytest
from msgspec.structs import replace

from nplt_storage.entries import (
    FaultEntry,
    ModelInputEntry,
    ModelInvocationDescriptor,
    ModelOutputEntry,
    ToolCallRequest,
    ToolCallResult,
    ToolResultsEntry,
)
from nplt_storage.errors import BadEntry
from nplt_storage.history import ConversationHistory
from nplt_storage.turns import (
    TURN_STATES,
    ContextEntry,
    StoredTurnState,
    StoredTurnStep,
    step_of,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MODEL = ModelInvocationDescriptor(provider="test", specification="test", model="model")
CALL = ToolCallRequest(tool_call_id="c1", tool_name="now", raw_arguments="{}", arguments={})
CLIENT_CALL = ToolCallRequest(
    tool_call_id="c1", tool_name="now", raw_arguments="{}", arguments={}, by_client=True
)
RESULT = ToolCallResult(
    tool_call_id="c1", tool_name="now", status="success", result="", duration=0.0, timestamp=NOW
)


def _entry(step: StoredTurnStep, call: int) -> ContextEntry | FaultEntry:
    match step:
        case StoredTurnStep.PROMPT:
            return ModelInputEntry(turn_id="t1", content="hello")
        case StoredTurnStep.TOOL_CALLS:
            return ModelOutputEntry(
                turn_id="t1", call=call, content="", tool_calls=(CALL,), invocation=MODEL
            )
        case StoredTurnStep.CLIENT_CALLS:
            return ModelOutputEntry(
                turn_id="t1", call=call, content="", tool_calls=(CLIENT_CALL,), invocation=MODEL
            )
        case StoredTurnStep.RESULTS:
            return ToolResultsEntry(turn_id="t1", results=(RESULT,))
        case StoredTurnStep.OWN_RESULTS:
            return ToolResultsEntry(turn_id="t1", results=(replace(RESULT, status="pending"),))
        case StoredTurnStep.REJECTED:
            return ModelOutputEntry(
                turn_id="t1", call=call, content="[]", rejected="no object", invocation=MODEL
            )
        case StoredTurnStep.ANSWER:
            return ModelOutputEntry(turn_id="t1", call=call, content="yes", invocation=MODEL)
        case StoredTurnStep.FAULT:
            return FaultEntry(turn_id="t1", content="no", code="cancelled", state="failed")


WAYS: dict[StoredTurnState, tuple[StoredTurnStep, ...]] = {
    StoredTurnState.ABSENT: (),
    StoredTurnState.WAITING: (StoredTurnStep.PROMPT,),
    StoredTurnState.IN_TOOLS: (StoredTurnStep.PROMPT, StoredTurnStep.TOOL_CALLS),
    StoredTurnState.BETWEEN_CALLS: (
        StoredTurnStep.PROMPT,
        StoredTurnStep.TOOL_CALLS,
        StoredTurnStep.RESULTS,
    ),
    StoredTurnState.AWAITS_CLIENT: (StoredTurnStep.PROMPT, StoredTurnStep.CLIENT_CALLS),
    StoredTurnState.OVER: (StoredTurnStep.PROMPT, StoredTurnStep.ANSWER),
}
"""How each state is reached. A turn without a prompt is not written, only read."""


def _state(history: ConversationHistory) -> StoredTurnState:
    turn = history.turn("t1")
    return StoredTurnState.ABSENT if turn is None else turn.stored_state


@pytest.mark.parametrize("step", list(StoredTurnStep), ids=lambda step: step.name)
@pytest.mark.parametrize("state", list(WAYS), ids=lambda state: state.name)
def test_a_turn_takes_the_entries_that_its_state_lists_and_refuses_all_others(
    state: StoredTurnState, step: StoredTurnStep
) -> None:
    history, numbers = ConversationHistory("s1"), count()

    def add(which: StoredTurnStep) -> None:
        number = next(numbers)
        draft = _entry(which, number)
        assert step_of(draft) is which
        history.add(history.stamp(draft, id=f"e{number}", timestamp=NOW))

    for earlier in WAYS[state]:
        add(earlier)
    assert _state(history) is state
    if step in TURN_STATES[state]:
        add(step)
        assert _state(history) is TURN_STATES[state][step]
    else:
        with pytest.raises(BadEntry):
            add(step)
        assert _state(history) is state
