"""Every step is tried in every state of a running turn: the table says where it leads."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import anyio
import pytest
from anyio.abc import TaskGroup
from tests.server.approvals import obedient, until
from tests.server.conversations import Stage, staged

from nplt_protocol.messages import Approval
from nplt_server.conversations.turn import RUN_STATES, RunState, RunTransition, TurnRun
from nplt_server.settings import ApprovalSettings
from nplt_storage.entries import (
    ApprovalEntry,
    ModelInputEntry,
    ModelInvocationDescriptor,
    ModelOutputEntry,
    ToolCallRequest,
)

MODEL = ModelInvocationDescriptor(provider="test", specification="test", model="model")
CALL = ToolCallRequest(tool_call_id="c1", tool_name="write", raw_arguments="{}", arguments={})

WAYS: dict[RunState, tuple[RunTransition, ...]] = {
    RunState.WAITING: (),
    RunState.RUNNING: (RunTransition.BEGIN,),
    RunState.PAUSED: (RunTransition.BEGIN, RunTransition.PAUSE),
    RunState.SUSPENDED: (RunTransition.BEGIN, RunTransition.PAUSE, RunTransition.SUSPEND),
    RunState.OVER: (RunTransition.BEGIN, RunTransition.END),
}
"""How each state is reached."""


class Run:
    """A turn whose tool call waits for an approval, as it does after a restart of the server."""

    def __init__(self, stage: Stage, turn: TurnRun, tasks: TaskGroup) -> None:
        self.turn = turn
        self._approvals = stage.conversation.approvals
        self._tasks = tasks

    async def take(self, step: RunTransition) -> None:
        match step:
            case RunTransition.BEGIN:
                self.turn.begin("test/model")
            case RunTransition.CANCEL:
                self.turn.cancel("cancelled")
            case RunTransition.PAUSE:
                self._tasks.start_soon(self.turn.ask, CALL)
                await anyio.wait_all_tasks_blocked()
            case RunTransition.GO_ON:
                for question in self._approvals.pending:
                    decision = Approval(approval_id=question.approval_id, decision="allow")
                    await self._approvals.decide(decision, by="ada")
                await anyio.wait_all_tasks_blocked()
            case RunTransition.SUSPEND:
                self.turn.suspend("the server stops")
            case RunTransition.END:
                self.turn.close()


@asynccontextmanager
async def running() -> AsyncIterator[Run]:
    async with staged(obedient) as stage, anyio.create_task_group() as tasks:
        conversation = stage.conversation
        conversation.services.approvals = ApprovalSettings(wait_when_alone=True)
        record = conversation.record
        prompt = await record.append(ModelInputEntry(turn_id="t1", content="write"))
        output = ModelOutputEntry(turn_id="t1", content="", tool_calls=(CALL,), invocation=MODEL)
        await record.append(output)
        turn = TurnRun(
            prompt=prompt,
            record=record,
            context=conversation.context,
            compressible=conversation.summarizer,
            approvals=conversation.approvals,
            later=conversation.later,
            services=conversation.services,
        )
        tasks.start_soon(conversation.approvals.ask, "t1", CALL)
        await until(lambda: bool(conversation.approvals.pending))
        assert any(isinstance(entry, ApprovalEntry) for entry in record.history.entries)
        yield Run(stage, turn, tasks)
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("step", list(RunTransition), ids=lambda step: step.name)
@pytest.mark.parametrize("state", list(WAYS), ids=lambda state: state.name)
async def test_a_running_turn_takes_the_steps_that_its_state_lists_and_no_others(
    state: RunState, step: RunTransition
) -> None:
    async with running() as run:
        for earlier in WAYS[state]:
            await run.take(earlier)
        assert run.turn.state is state
        if step in RUN_STATES[state]:
            await run.take(step)
        else:
            with suppress(KeyError):  # some calls are no step in that state, others a mistake
                await run.take(step)
        assert run.turn.state is RUN_STATES[state].get(step, state)


def test_every_state_of_a_running_turn_is_tried() -> None:
    assert set(WAYS) == set(RunState) == set(RUN_STATES)
