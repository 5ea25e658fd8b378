"""A question outlives the server it was asked by; what may have been run is not run again."""

from __future__ import annotations

import anyio
import anyio.lowlevel
from tests.server.approvals import asking, until

from nplt_protocol.messages import ToolFinished, TurnFinished
from nplt_server.tools.executor import ToolExecutor
from nplt_storage.entries import FaultEntry, ModelOutputEntry

UNKNOWN = "outcome unknown: the server stopped while it ran"


async def test_a_pending_approval_keeps_its_id_across_a_restart() -> None:
    async with asking() as here:
        (question,) = await here.ask("write")
        again = await here.restart()
        (pending,) = again.snapshot().pending_approvals
        assert pending["approval_id"] == question.approval_id
        assert pending["expires_at"] == question.expires_at
        assert again.queue.state == "asking"
        await here.restart()
        await here.answer(question.approval_id, "allow")
        assert (await here.ended()).state == "completed"
        assert here.workshop.done == ["write"]
        assert [fact.state for fact in here.facts] == ["asked", "allowed"]
        outputs = [e for e in here.conversation.history.entries if isinstance(e, ModelOutputEntry)]
        assert [output.call for output in outputs] == [0, 1]
        assert len(here.received(TurnFinished)) == 1


async def test_the_usage_of_a_resumed_turn_includes_the_call_before_the_restart() -> None:
    async with asking() as here:
        (question,) = await here.ask("write")
        await here.restart()
        await here.answer(question.approval_id, "allow")
        assert (await here.ended()).usage == {"input_tokens": 60, "output_tokens": 4}


async def test_the_usage_of_a_turn_cancelled_after_a_restart_includes_its_calls() -> None:
    async with asking() as here:
        (question,) = await here.ask("write")
        await here.restart()
        assert here.conversation.cancel(question.turn_id)
        assert (await here.ended()).usage == {"input_tokens": 30, "output_tokens": 2}


async def test_a_pending_approval_can_be_decided_as_soon_as_the_conversation_is_reopened() -> None:
    async with asking() as here:
        (question,) = await here.ask("send")
        await here.restart()
        decided = await here.answer(question.approval_id, "deny")
        assert decided.decision == "deny"
        assert (await here.ended()).state == "completed"
        assert here.results[0].result == "not run: ada said no to this call of send"


async def test_a_tool_that_ran_during_a_pending_approval_has_an_unknown_outcome_after_a_crash() -> (
    None
):
    async with asking() as here:
        denied, _, open_ = await here.ask("send write look write hang", 3)
        await here.answer(denied.approval_id, "deny")
        allowed = here.conversation.approvals.pending[0]
        await here.workshop.looked.wait()
        await here.workshop.hangs.wait()
        await here.answer(allowed.approval_id, "allow")
        await until(lambda: "write" in here.workshop.done)
        here.workshop.done.clear()

        await here.restart()
        assert [one.approval_id for one in here.conversation.approvals.pending] == [
            open_.approval_id
        ]
        await here.answer(open_.approval_id, "allow")
        assert (await here.ended()).state == "completed"
        assert here.workshop.done == ["write"]
        assert [(result.status, result.result) for result in here.results] == [
            ("skipped", "not run: ada said no to this call of send"),
            ("failed", UNKNOWN),
            ("failed", UNKNOWN),
            ("success", "write is done"),
            ("failed", UNKNOWN),
        ]


async def test_a_tool_that_ran_when_the_server_died_has_an_unknown_outcome_and_ends_its_turn() -> (
    None
):
    async with asking() as here:
        await here.prompt("look hang")
        await here.workshop.hangs.wait()
        await until(lambda: here.workshop.done == ["look"])
        await here.restart()
        await here.conversation.activity.quiet()
        assert here.workshop.done == ["look"]
        assert [result.status for result in here.results] == ["failed", "failed"]
        assert all(one.result.startswith("outcome unknown: ") for one in here.results)
        fault = here.conversation.history.entries[-1]
        assert isinstance(fault, FaultEntry)
        assert fault.state == "interrupted"


async def test_an_approved_tool_is_not_run_again_after_a_crash() -> None:
    async with asking() as here:
        (question,) = await here.ask("hang_up")
        await here.answer(question.approval_id, "allow")
        await here.workshop.hangs.wait()
        await here.restart()
        await here.conversation.activity.quiet()
        assert here.results[0].result.startswith("outcome unknown: ")
        assert here.conversation.approvals.pending == ()
        assert (await here.answer(question.approval_id, "deny")).decision == "allow"


async def test_an_approval_that_expired_before_the_restart_is_denied_and_the_turn_interrupted() -> (
    None
):
    # A second passes whenever somebody looks at this clock.
    async with asking(seconds_max=10) as here:
        (question,) = await here.ask("write")
        for _ in range(10):
            here.services.clock()
        await here.restart()
        await here.conversation.activity.quiet()
        assert here.conversation.history.turn_state(question.turn_id) == "interrupted"
        assert here.results[0].status == "skipped"
        assert (await here.answer(question.approval_id, "allow")).decision == "deny"


async def test_a_cancelled_turn_has_no_pending_approval_after_a_restart() -> None:
    async with asking() as here:
        (question,) = await here.ask("write")
        await here.restart()
        assert here.conversation.cancel(question.turn_id)
        assert (await here.ended()).state == "interrupted"
        assert here.conversation.approvals.pending == ()
        await here.restart()
        assert here.conversation.approvals.pending == ()
        assert here.workshop.done == []


async def test_an_approval_of_a_tool_that_is_denied_now_ends_with_its_turn() -> None:
    async with asking() as here:
        (question,) = await here.ask("write")
        here.services.tools = ToolExecutor(
            here.workshop.tools, clock=here.services.clock, policies={"write": "deny"}
        )
        again = await here.restart()
        assert [one.approval_id for one in again.approvals.pending] == [question.approval_id]
        assert (await here.ended()).state == "completed"
        assert here.workshop.done == []
        assert again.snapshot().pending_approvals == ()


async def test_a_graceful_shutdown_suspends_a_turn_that_only_waits_for_an_approval() -> None:
    async with asking() as here:
        (question,) = await here.ask("write")
        here.services.draining = True
        here.conversation.queue.suspend("the server is shutting down")
        await here.conversation.activity.quiet()
        assert here.received(TurnFinished) == []
        assert here.received(ToolFinished) == []
        assert [fact.state for fact in here.facts] == ["asked"]

        here.services.draining = False
        await here.restart()
        await here.answer(question.approval_id, "allow")
        assert (await here.ended()).state == "completed"
        assert here.workshop.done == ["write"]


async def test_a_shutdown_keeps_finished_tool_results_during_a_pending_approval() -> None:
    async with asking() as here:
        await here.ask("write look")
        await here.workshop.looked.wait()
        here.services.draining = True
        here.conversation.queue.suspend("the server is shutting down")
        assert here.conversation.approvals.pending
        here.conversation.interrupt("the server is shutting down")
        assert (await here.ended()).state == "interrupted"
        assert [result.status for result in here.results] == ["skipped", "success"]


async def test_an_approval_that_is_being_written_when_the_server_stops_lets_its_tool_run() -> None:
    async with asking() as here, anyio.create_task_group() as people:
        (question,) = await here.ask("write")
        here.store.append_seconds = 0.3
        decided: list[str] = []

        async def allow() -> None:
            decided.append((await here.answer(question.approval_id, "allow")).decision)

        people.start_soon(allow)
        for _ in range(20):  # until the decision is being written
            await anyio.lowlevel.checkpoint()
        here.conversation.queue.suspend("the server is shutting down")
        finished = await here.ended()
        assert (decided, finished.state, here.workshop.done) == (["allow"], "completed", ["write"])
