"""People are asked about tools that write or reach the network: once, and they decide."""

from __future__ import annotations

import math
import random
from datetime import UTC, datetime
from functools import partial
from typing import Literal

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.server.approvals import SOMEONE, Asked, asking, until
from tests.server.services import EventRecorder
from tests.storage.conversations import REMEMBERED_APPROVAL

from nplt_protocol.errors import RequestError
from nplt_protocol.messages import (
    AgentThought,
    ApprovalRequest,
    Cleared,
    Prompt,
    SessionEvent,
    ToolFinished,
    ToolStarted,
)
from nplt_server.conversations import operations
from nplt_server.conversations.approvals import question_event, remembered_decisions
from nplt_server.conversations.broadcast import ConnectedClient
from nplt_server.conversations.turn import TurnClock
from nplt_server.tasks import TurnSlots
from nplt_storage.entries import (
    ApprovalEntry,
    DebugEntry,
    Entry,
    ForkedEntry,
    RollbackEntry,
    ToolCallRequest,
)
from nplt_storage.errors import StorageUnavailable
from nplt_storage.history import ConversationHistory

OBSERVER = ConnectedClient(client_id="c9", user="ada", client="test", observer=True)


async def test_an_approval_runs_the_tool_and_a_denial_skips_it_with_the_user_name() -> None:
    async with asking() as here:
        (question,) = await here.ask("write")
        assert here.workshop.done == []
        decided = await here.answer(question.approval_id, "allow")
        assert (decided.decision, decided.decided_by) == ("allow", "ada")
        assert (await here.ended()).state == "completed"
        assert here.workshop.done == ["write"]

        (question,) = await here.ask("send")
        await here.answer(question.approval_id, "deny")
        assert (await here.ended()).state == "completed"
        assert here.workshop.done == ["write"]
        (started,) = here.received(ToolStarted)
        assert started.tool_name == "write"
        last = here.received(ToolFinished)[-1]
        assert (last.status, last.result) == (
            "skipped",
            "not run: ada said no to this call of send",
        )


async def test_the_first_approval_decision_counts_and_the_second_client_gets_it() -> None:
    async with asking() as here:
        (question,) = await here.ask("write")
        await here.answer(question.approval_id, "deny")
        late = await here.answer(question.approval_id, "allow", remember=True)
        assert (late.decision, late.decided_by) == ("deny", "ada")
        await here.ended()
        even_later = await here.answer(question.approval_id, "allow")
        assert even_later.decision == "deny"
        assert [fact.state for fact in here.facts] == ["asked", "denied"]
        assert len(here.decisions) == 1
        assert here.workshop.done == []


async def test_other_tool_calls_of_the_step_run_during_a_pending_approval() -> None:
    async with asking() as here:
        (question,) = await here.ask("write look")
        await here.workshop.looked.wait()
        assert here.workshop.done == ["look"]
        await here.answer(question.approval_id, "allow")
        await here.ended()
        assert [result.result for result in here.results] == ["write is done", "look is done"]


async def test_a_pending_approval_pauses_the_turn_and_its_time_limit() -> None:
    async with asking() as here:
        (question,) = await here.ask("write")
        states = [here.conversation.queue.state]
        await here.answer(question.approval_id, "allow")
        await here.ended()
        assert [*states, here.conversation.queue.state] == ["asking", "idle"]


async def test_the_time_limit_of_a_turn_resumes_after_an_approval() -> None:
    clock = TurnClock()
    with clock.start(1_000) as scope:
        was = scope.deadline
        clock.stop()
        assert scope.deadline == math.inf
        clock.go_on()
        assert was <= scope.deadline < math.inf


async def test_a_turn_stays_paused_until_the_last_of_its_approvals_is_decided() -> None:
    async with asking() as here:
        first, second = await here.ask("write send", 2)
        await here.answer(first.approval_id, "deny")
        await anyio.wait_all_tasks_blocked()
        states = [here.conversation.queue.state]
        await here.answer(second.approval_id, "deny")
        await here.ended()
        assert [*states, here.conversation.queue.state] == ["asking", "idle"]


async def test_a_turn_that_waits_for_an_approval_holds_no_slot() -> None:
    async with asking() as here:
        here.services.slots = TurnSlots(turns_max=1, per_user_max=1)
        (question,) = await here.ask("write")
        other = here.session_manager.new("ada")
        await other.accept(Prompt(text="look"), receipt=lambda receipt: None)
        await other.activity.quiet()
        assert here.workshop.done == ["look"]
        await here.answer(question.approval_id, "allow")
        assert (await here.ended()).state == "completed"


async def test_an_approval_that_times_out_is_denied() -> None:
    async with asking(seconds_max=0.01) as here:
        await here.prompt("write")
        assert (await here.ended()).state == "completed"
        assert [(fact.state, fact.reason) for fact in here.facts] == [
            ("asked", None),
            ("denied", "expired"),
        ]
        assert "no decision came in time" in here.results[0].result
        assert here.decisions[0]["decided_by"] is None


@pytest.mark.parametrize(
    "guest", [OBSERVER, ConnectedClient(client_id="c2", user="ada", client="plain")]
)
async def test_without_a_client_that_can_decide_an_approval_is_denied_at_once(
    guest: ConnectedClient,
) -> None:
    async with asking() as here:
        here.conversation.broadcast.leave(here.ear)
        here.ear = here.listen(guest)
        await here.prompt("write")
        await here.ended()
        assert [(fact.state, fact.reason) for fact in here.facts] == [("denied", "nobody_there")]
        assert "nobody is here who could be asked" in here.results[0].result


async def test_with_wait_when_alone_an_approval_waits_for_a_client() -> None:
    async with asking(seconds_max=1e6, wait_when_alone=True) as here:
        here.conversation.broadcast.leave(here.ear)
        (question,) = await here.ask("write")
        here.ear = here.listen()
        (pending,) = here.conversation.snapshot().pending_approvals
        assert pending["approval_id"] == question.approval_id
        await here.answer(question.approval_id, "allow")
        assert (await here.ended()).state == "completed"


async def test_a_pending_approval_stays_open_when_all_clients_leave() -> None:
    async with asking() as here:
        (question,) = await here.ask("write")
        here.conversation.broadcast.leave(here.ear)
        assert here.conversation.approvals.pending == (question,)
        here.ear = here.listen()
        await here.answer(question.approval_id, "allow")
        assert (await here.ended()).state == "completed"


async def test_a_remembered_approval_is_not_asked_again() -> None:
    async with asking() as here:
        approvals = here.conversation.approvals
        (question,) = await here.ask("write")
        assert await approvals.remembered() == {}
        await here.answer(question.approval_id, "allow", remember=True)
        await here.ended()
        await here.prompt("write write")
        await here.ended()
        assert here.workshop.done == ["write"] * 3
        assert await approvals.remembered() == {"write": "allow"}


async def test_a_remembered_approval_decides_the_other_pending_ones_of_that_tool() -> None:
    async with asking() as here:
        first, *_ = await here.ask("write send write", 3)
        await here.answer(first.approval_id, "deny", remember=True)
        (left,) = here.conversation.approvals.pending
        assert left.tool_name == "send"
        await here.answer(left.approval_id, "allow")
        await here.ended()
        assert here.workshop.done == ["send"]
        assert [result.status for result in here.results] == ["skipped", "success", "skipped"]


async def test_a_cancel_closes_the_pending_approval_and_the_turn_ends_once() -> None:
    async with asking() as here:
        (question,) = await here.ask("write look")
        assert here.conversation.cancel(question.turn_id)
        assert (await here.ended()).state == "interrupted"
        assert [(fact.state, fact.reason) for fact in here.facts][-1] == ("denied", "cancelled")
        assert here.conversation.approvals.pending == ()
        assert (await here.answer(question.approval_id, "allow")).decision == "deny"
        assert "write" not in here.workshop.done


async def test_an_unknown_approval_id_is_not_found() -> None:
    async with asking() as here:
        assert not here.conversation.approvals.knows("nothing")
        with pytest.raises(RequestError, match="no tool call waits under"):
            await here.answer("nothing", "allow")


async def test_an_approval_that_can_not_be_written_is_not_asked_and_the_tool_is_skipped() -> None:
    async with asking() as here:
        await here.prompt("look")
        await here.ended()
        here.store.full_for = ("approval",)
        await here.prompt("write")
        assert (await here.ended()).state == "completed"
        last = here.received(ToolFinished)[-1]
        assert (last.status, here.workshop.done) == ("skipped", ["look"])
        assert "nothing can be stored now" in last.result


async def test_an_approval_decision_that_can_not_be_written_is_refused_and_can_be_repeated() -> (
    None
):
    async with asking() as here:
        (question,) = await here.ask("write")
        here.store.full_for = ("approval",)
        with pytest.raises(StorageUnavailable):
            await here.answer(question.approval_id, "deny")
        assert here.conversation.approvals.pending == (question,)
        here.store.full_for = ()
        await here.answer(question.approval_id, "allow")
        assert (await here.ended()).state == "completed"
        assert here.workshop.done == ["write"]


def test_a_remembered_approval_is_undone_by_rollback_and_not_copied_by_a_fork() -> None:
    def remembers(*more: Entry) -> list[str]:
        history = ConversationHistory("s")
        for draft in (DebugEntry(category="c", content="first"), REMEMBERED_APPROVAL, *more):
            history.add(history.stamp(draft, id="e", timestamp=datetime(2026, 1, 1, tzinfo=UTC)))
        return list(remembered_decisions(history))

    assert remembers() == ["write"]
    assert remembers(RollbackEntry(to_seq=1)) == []
    fork = ForkedEntry(from_session_id="other", at_seq=2)
    assert remembers(fork) == []
    assert remembers(fork, RollbackEntry(to_seq=2)) == [], "not to before the fork"


def test_giant_arguments_are_cut_in_an_approval_request_and_marked() -> None:
    text = "x" * 100_000
    asked = ApprovalEntry(
        turn_id="t",
        approval_id="a",
        tool_call_id="c",
        tool_name="write",
        state="asked",
        expires_at=datetime(2026, 1, 1, tzinfo=UTC),
    )
    call = ToolCallRequest(
        tool_call_id="c",
        tool_name="write",
        raw_arguments=text,
        arguments={"path": "a", "text": text, "lines": [text], "mode": 7},
    )
    event = question_event("s", asked, call)
    assert (event.truncated, event.size) == (True, 100_000)
    assert event.arguments["path"] == "a"
    assert event.arguments["mode"] == 7
    assert all(len(str(value)) <= 1_001 for value in event.arguments.values())


Answers = list[tuple[int, Literal["allow", "deny"], bool]]
answers = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(("allow", "deny")), st.booleans()),
    min_size=1,
    max_size=9,
)


async def test_a_question_that_expires_while_the_shared_store_is_away_is_not_asked_again() -> None:
    async with asking(seconds_max=0.05) as here:
        here.store.is_leased = True
        (question,) = await here.ask("write")
        here.store.full_for = ("approval",)
        thoughts = partial(here.received, AgentThought)
        await until(lambda: any(each.type == "waiting" for each in thoughts()))
        here.store.full_for = ()
        assert (await here.ended()).state == "completed"
        assert [fact.state for fact in here.facts] == ["asked", "denied"]
        assert {fact.approval_id for fact in here.facts} == {question.approval_id}
        assert len(here.received(ApprovalRequest)) == 1


@settings(max_examples=20)
@given(answers, st.integers())
async def test_concurrent_decisions_give_each_approval_one_decision_known_to_all(
    given_answers: Answers, seed: int
) -> None:
    async with asking() as here:
        others = [here.listen(), here.listen()]
        questions = await here.ask("write send write", 3)
        reported: dict[str, set[str]] = {}

        async def answer(place: int, decision: Literal["allow", "deny"], remember: bool) -> None:
            approval_id = questions[place].approval_id
            decided = await here.answer(approval_id, decision, remember=remember)
            reported.setdefault(approval_id, set()).add(decided.decision)

        at_once = [*given_answers, *((place, "deny", False) for place in range(3))]
        random.Random(seed).shuffle(at_once)
        async with anyio.create_task_group() as people:
            for one in at_once:
                people.start_soon(answer, *one)
        await here.ended()
        _check_one_decision_each(here, others, reported)


def _check_one_decision_each(
    here: Asked, others: list[EventRecorder], reported: dict[str, set[str]]
) -> None:
    decided = {fact.approval_id: fact for fact in here.facts if fact.state != "asked"}
    assert len(here.facts) == 6
    assert len(decided) == 3
    for approval_id, fact in decided.items():
        assert reported[approval_id] == {"allow" if fact.state == "allowed" else "deny"}
    allowed = sorted(fact.tool_name for fact in decided.values() if fact.state == "allowed")
    assert sorted(here.workshop.done) == allowed
    for ear in others:
        assert ear.received == here.ear.received[-len(ear.received) :]  # from when it joined


async def test_an_event_emitted_during_a_delivery_comes_after_it_for_every_subscriber() -> None:
    class Leaver(EventRecorder):
        def deliver(self, event: object) -> None:
            here.conversation.broadcast.leave(self)

    async with asking() as here:
        before, leaver, after = here.ear, Leaver(), EventRecorder()
        here.conversation.broadcast.join(leaver, SOMEONE)
        here.conversation.broadcast.join(after)
        before.received.clear()
        here.conversation.announce("renamed", {"name": "x"})
        events = [event.event for event in after.received if isinstance(event, SessionEvent)]
        assert events == ["renamed", "presence"]
        assert after.received == before.received


async def test_a_job_behind_an_open_approval_is_busy_and_the_error_names_the_tool() -> None:
    async with asking() as here:
        reported: list[object] = []

        def hand_in() -> None:
            here.conversation.add_job(
                partial(operations.clear, here.conversation),
                done=reported.append,
                failed=reported.append,
            )

        await here.prompt("write")
        hand_in()
        await until(lambda: len(here.conversation.approvals.pending) == 1)
        with pytest.raises(RequestError, match="write") as refused:
            hand_in()
        await until(lambda: bool(reported))
        (dropped,) = reported
        assert isinstance(dropped, RequestError)
        for error in (dropped, refused.value):
            assert (error.code, error.retryable) == ("busy", True)
            assert "approval" in error.message
        (question,) = here.conversation.approvals.pending
        await here.answer(question.approval_id, "allow")
        hand_in()
        await here.ended()
        assert len(reported) == 2
        assert isinstance(reported[1], Cleared)
