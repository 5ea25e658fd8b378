"""When what was sent can no longer be extended, and that an entry says so."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.server.context.context_stage import Quarters, Talk, words
from tests.storage.conversations import START

from nplt_server.context.messages import ModelInputMessage
from nplt_server.context.projection import Projection
from nplt_server.context.selection import SHORTENED, ContextView, EpochPlan, Selection, plan_levels
from nplt_server.context.steps import Measure
from nplt_server.tools import ToolDescription, ToolOffer
from nplt_storage.entries import (
    ClearEntry,
    CompactionEntry,
    Entry,
    EpochEntry,
    LevelOfDetail,
    QuarantineEntry,
    RenamedEntry,
    RollbackEntry,
    SystemInstructionEntry,
)
from nplt_storage.history import ConversationHistory
from nplt_storage.rows import fold_all, new_row
from nplt_storage.turns import Turn


def test_two_hundred_turns_with_a_notebook_extend_each_other_or_an_epoch_says_why_not() -> None:
    talk = Talk(budget=8_000)
    talk.write(SystemInstructionEntry(content=words(50)))
    for number in range(200):
        if number % 5 == 0:
            talk.note(f"edit {number}: {words(20)}")
        talk.turn(f"{number} {words(25)}", steps=number % 3 // 2, answer=words(40))
    sent = again = 0
    for before, after in zip(talk.requests, talk.requests[1:], strict=False):
        extends = after.messages[: len(before.messages)] == before.messages
        assert extends or before.epoch is not after.epoch
        sent += after.view.tokens
        again += before.view.tokens if extends else 0
    assert set(talk.reasons) == {"budget"}
    assert again / sent >= 0.95
    assert not any(request.view.is_trimmed for request in talk.requests)


def test_nothing_is_due_before_anything_was_sent() -> None:
    talk = Talk()
    talk.write(SystemInstructionEntry(content="be kind"))
    talk.write(ClearEntry())
    talk.turn()
    assert talk.reasons == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (ClearEntry(), "clear"),
        (RollbackEntry(to_seq=2), "rollback"),
        (QuarantineEntry(target_seq=1, code="refused", content="no"), "quarantine"),
        (CompactionEntry(content="they met", from_seq=1, through_seq=2), "compaction"),
        (SystemInstructionEntry(content="be brief"), "system"),
    ],
)
def test_what_changes_the_past_begins_an_epoch_once(change: Entry, reason: str) -> None:
    talk = Talk()
    talk.turn()
    talk.turn()
    talk.write(change)
    talk.turn(steps=1)
    talk.turn()
    assert talk.reasons == [reason]


def test_a_change_is_noticed_although_the_call_before_it_failed() -> None:
    talk = Talk()
    failed = talk.prompt()
    talk.call(failed)
    talk.fail(failed)
    talk.write(SystemInstructionEntry(content="be brief"))
    talk.turn()
    assert talk.reasons == ["system"]


def test_what_does_not_concern_models_begins_nothing() -> None:
    talk = Talk()
    talk.turn()
    talk.write(RenamedEntry(name="tea"))
    talk.note("tea")
    talk.turn()
    assert talk.reasons == []


def test_other_tools_begin_an_epoch_once() -> None:
    talk = Talk()
    talk.turn()
    talk.tools_digest = "more tools"
    talk.turn()
    talk.turn()
    assert talk.reasons == ["tools"]


def test_a_window_that_begins_to_move_says_so_once_and_again_after_a_clear() -> None:
    talk = Talk(turns_max=2)
    for _ in range(6):
        talk.turn()
    talk.tools_digest = "more tools"
    talk.turn()
    talk.turn()
    assert talk.reasons == ["window", "tools"]
    talk.write(ClearEntry())
    for _ in range(6):
        talk.turn()
    assert talk.reasons == ["window", "tools", "clear", "window"]


def test_a_window_that_is_held_whole_needs_nothing_older() -> None:
    talk = Talk(turns_max=2)
    for _ in range(20):
        talk.turn()
    tail = opened_from(talk, talk.history.shown_turns[-2].number, turns_max=2)
    assert Projection(tail, Measure(Quarters())).due_epoch(None, talk.call_budget) is None


def test_a_full_budget_begins_an_epoch_that_leaves_half_of_it_free() -> None:
    talk = Talk(budget=2_000)
    while not talk.epochs:
        talk.turn(words(100))
    before, after = (request.view for request in talk.requests[-2:])
    assert before.tokens > 1_500
    assert 500 < after.tokens <= 1_000 + 110
    assert talk.epochs[0].budget_tokens == 2_000
    levels = [message.level for message in after.messages[after.has_head :]]
    assert levels == sorted(levels, key=("gist", "summary", "live").index)


def head_of(view: ContextView) -> str:
    first = view.messages[0]
    assert isinstance(first, ModelInputMessage)
    return first.text if view.has_head else ""


def test_the_context_states_how_many_turns_are_omitted_and_keeps_the_sentence_for_the_epoch() -> (
    None
):
    talk = Talk(budget=2_000)
    for number in range(60):
        talk.turn(f"{number} {words(60)}")
    summary_input = 0
    for before, after in pairwise(talk.requests):
        head = head_of(after.view)
        if before.epoch is after.epoch:
            assert head == head_of(before.view)
        shown = {message.seq for message in after.view.messages}
        older = (turn for turn in talk.history.shown_turns if turn.number < after.view.head_seq)
        missing = sum(
            turn.prompt is not None
            and turn.prompt.turn_id != after.turn_id
            and turn.number not in shown
            for turn in older
        )
        if missing:
            summary_input += 1
            which = "turn" if missing == 1 else f"{missing} turns"
            assert head.startswith(f"[The oldest {which} of this conversation ")
            assert "search_history" not in head
        else:
            assert "oldest" not in head
        is_marked = any(m.level in ("gist", "summary") for m in after.view.messages)
        assert (SHORTENED in head) == is_marked
    assert summary_input > 20


def test_the_tool_that_finds_what_is_left_out_is_named_if_it_is_offered() -> None:
    talk = Talk(budget=2_000)
    for _ in range(40):
        talk.turn(words(60))
    turn_id = talk.prompt("now")
    search = ToolDescription(name="search_history", description="", parameters={})
    with_tool = replace(talk.call_budget, offer=ToolOffer(digest="search", descriptions=(search,)))
    heads = [
        head_of(Projection(talk.history, Measure(Quarters())).context(turn_id, budget))
        for budget in (talk.call_budget, with_tool)
    ]
    assert "search_history" not in heads[0]
    assert "turns of this conversation are left out here; the tool search_history" in heads[1]
    # A projection that is kept takes them for two different contexts, too.
    assert head_of(talk.projection.context(turn_id, talk.call_budget)) == heads[0]
    assert head_of(talk.projection.context(turn_id, with_tool)) == heads[1]


def test_turns_that_a_smaller_window_leaves_out_are_counted_too() -> None:
    talk = Talk(budget=20_000)
    for _ in range(20):
        talk.turn(words(60))
    turn_id = talk.prompt("now")
    small = replace(talk.call_budget, budget_tokens=1_000)
    view = talk.projection.context(turn_id, small)
    assert view.is_trimmed
    prompts = {turn.number for turn in talk.history.shown_turns}
    shown = prompts & {message.seq for message in view.messages}
    assert head_of(view).startswith(f"[The oldest {20 - len(shown)} turns of this conversation ")
    assert view.tokens <= 1_000


def test_turns_left_out_are_counted_over_a_restart_and_not_after_a_clear() -> None:
    talk = Talk(budget=2_000)
    while len(talk.epochs) < 5:
        talk.turn(words(60))
    epoch = talk.history.epoch
    assert epoch is not None
    assert epoch.omitted_turns > 10
    tail = opened_from(talk, epoch.omitted_through + 1)
    before, after = (Projection(history, Measure(Quarters())) for history in (talk.history, tail))
    views = [each.context(None, talk.call_budget) for each in (before, after)]
    assert views[0].messages == views[1].messages
    for draft in (each.epoch_for("asked", talk.call_budget) for each in (before, after)):
        left_out = [t for t in talk.history.shown_turns if t.number <= draft.omitted_through]
        assert draft.omitted_turns == len(left_out)
    talk.write(ClearEntry())
    talk.turn("fresh")
    assert talk.epochs[-1].omitted_turns == 0
    assert not talk.requests[-1].view.has_head


def test_models_in_turns_do_not_begin_epochs_in_turns() -> None:
    talk = Talk()
    for number in range(30):
        talk.budget = (20_000, 300)[number % 2]
        talk.turn(words(50), steps=1)
    assert talk.reasons == []
    assert any(request.view.is_trimmed for request in talk.requests)


def test_an_epoch_that_falls_into_the_turn_of_a_smaller_model_is_made_for_the_larger_one() -> None:
    talk = Talk(budget=20_000)
    for _ in range(20):
        talk.turn(words(50))
    talk.write(SystemInstructionEntry(content="be brief"))
    talk.budget = 300
    talk.turn()
    talk.budget = 20_000
    assert [epoch.budget_tokens for epoch in talk.epochs] == [20_000]
    assert all(message.level == "live" for message in talk.call(talk.prompt()).messages)


def test_who_stays_with_a_smaller_model_gets_an_epoch_that_fits_it() -> None:
    talk = Talk(budget=20_000)
    for _ in range(20):
        talk.turn(words(50))
    talk.budget = 1_000
    for _ in range(3):
        talk.turn(words(50), steps=1)
    assert talk.reasons == []
    talk.turn(words(50))
    assert talk.reasons == ["budget"]
    assert not talk.requests[-1].view.is_trimmed


def test_a_turn_that_fills_the_window_by_itself_does_not_begin_an_epoch_with_every_call() -> None:
    talk = Talk(budget=1_000)
    talk.turn(words(50))
    talk.turn(words(50), steps=12, result=words(100))
    assert len(talk.epochs) <= 3
    assert all(request.view.tokens <= 1_000 for request in talk.requests)


def test_an_epoch_somebody_wishes_for_halves_what_is_shown() -> None:
    talk = Talk(budget=20_000)
    for _ in range(20):
        talk.turn(words(90))
    before = talk.projection.context(None, talk.call_budget).tokens
    talk.write(talk.projection.asked_epoch(talk.call_budget))
    after = talk.projection.context(None, talk.call_budget).tokens
    assert after <= before / 2
    assert talk.epochs[0].budget_tokens == 20_000


def test_what_an_epoch_will_show_is_known_before_it_is_written() -> None:
    talk = Talk(budget=1_000)
    for _ in range(8):
        talk.turn(words(90))
    mine = talk.prompt(words(200))
    draft = talk.projection.due_epoch(mine, talk.call_budget, screen="tea")
    assert draft is not None
    foreseen = talk.projection.context(mine, talk.call_budget, epoch=draft)
    talk.write(draft)
    view = talk.projection.context(mine, talk.call_budget)
    # The head carries the number of the epoch, which was not known then.
    assert list(foreseen.messages[1:]) == list(view.messages[1:])
    assert foreseen.tokens == view.tokens


def test_a_conversation_opened_from_its_end_goes_on_as_if_it_had_never_been_closed() -> None:
    talk = Talk(budget=1_000)
    for _ in range(40):
        talk.turn(words(40))
    epoch = talk.history.epoch
    assert epoch is not None
    tail = opened_from(talk, epoch.omitted_through + 1)
    projection = Projection(tail, Measure(Quarters()))
    assert tail.first_seq > 1
    assert projection.due_epoch(None, talk.call_budget) is None
    assert list(projection.context(None).messages) == list(talk.projection.context(None).messages)


def test_without_all_that_the_epoch_shows_a_new_one_begins() -> None:
    talk = Talk(budget=1_000)
    for _ in range(40):
        talk.turn(words(40))
    epoch = talk.history.epoch
    assert epoch is not None
    tail = opened_from(talk, epoch.omitted_through + 3)
    projection = Projection(tail, Measure(Quarters()))
    draft = projection.due_epoch(None, talk.call_budget)
    assert draft is not None
    assert draft.reason == "reach"
    tail.add(replace(draft, seq=tail.head_seq + 1, id="e", timestamp=START))
    assert projection.due_epoch(None, talk.call_budget) is None


def test_a_summary_is_asked_for_of_what_fades_and_stands_for_just_that() -> None:
    talk = Talk(budget=1_000)
    for number in range(12):
        talk.turn(f"{number} {words(60)}")
    mine = talk.prompt(words(300))
    draft = talk.projection.due_epoch(mine, talk.call_budget)
    assert draft is not None
    task = talk.projection.summary_task(mine, draft)
    assert task is not None
    talk.write(
        CompactionEntry(content="sums", from_seq=task.from_seq, through_seq=task.through_seq)
    )
    view = talk.call(mine)
    assert talk.reasons[-1] == "compaction"
    summary_input = {message.seq for message in task.messages}
    shown = {message.seq for message in view.messages}
    assert not summary_input & shown
    assert all(message.level == "live" for message in (*task.messages, *view.messages))
    asked = {turn.number for turn in talk.history.shown_turns} | {talk.history.head_seq - 2}
    assert {seq for seq in summary_input | shown if seq in asked} == asked


def test_a_summary_is_made_of_a_prompt_too_that_was_cancelled_while_it_waited() -> None:
    talk = Talk()
    running = talk.prompt("one")
    mine = talk.prompt("two", waits=True)
    talk.fail(talk.prompt("never mind", waits=True))
    talk.run(running)
    draft = EpochEntry(reason="asked", omitted_through=1, gist_through=1, summary_through=1)
    task = talk.projection.summary_task(mine, draft)
    assert task is not None
    assert (task.from_seq, task.through_seq) == (1, 5)
    assert [message.seq for message in task.messages] == [1, 5, 3]


def test_a_running_turn_is_shown_live_also_after_an_epoch_shortened_others() -> None:
    talk = Talk(budget=100)
    running = talk.prompt("one")
    talk.fail(talk.prompt(words(300), waits=True))
    talk.write(talk.projection.asked_epoch(talk.call_budget))
    talk.output(running, "first")
    levels = {message.seq: message.level for message in talk.projection.context(None).messages}
    assert levels[1] == "live"


def test_after_a_clear_nothing_that_came_before_is_needed() -> None:
    talk = Talk()
    talk.turn()
    talk.write(ClearEntry())
    assert talk.projection.asked_epoch(talk.call_budget).omitted_through == talk.history.head_seq


def opened_from(talk: Talk, seq: int, turns_max: int | None = None) -> ConversationHistory:
    entries = list(talk.history.entries)
    row = fold_all(new_row("s1", user="u", created_at=START), entries)
    return ConversationHistory("s1", entries[seq - 1 :], row=row, turns_max=turns_max)


@given(
    st.lists(st.tuples(st.integers(0, 80), st.integers(0, 60), st.integers(0, 30)), max_size=12),
    st.integers(0, 400),
    st.integers(0, 300),
)
def test_a_plan_fits_and_shows_no_turn_in_more_detail_than_a_newer_one(
    sizes: list[tuple[int, int, int]], budget: int, fixed: int
) -> None:
    turns = [Turn(number=number) for number in range(1, len(sizes) + 1)]

    def tokens(turn: Turn, level: LevelOfDetail) -> int:
        gist, summary, live = sorted(sizes[turn.number - 1])
        return {"live": live, "summary": summary, "gist": gist}[level]

    plan = plan_levels(reversed(turns), budget=budget, fixed=fixed, tokens=tokens)
    assert 0 <= plan.omitted_through <= plan.gist_through <= plan.summary_through
    selection = Selection(plan=plan)
    shown: list[tuple[Turn, LevelOfDetail | None]]
    shown = [(turn, selection.level_of(turn)) for turn in turns]
    taken = sum(tokens(turn, level) for turn, level in shown if level is not None)
    assert fixed + taken <= max(0.85 * budget, fixed)
    if turns and fixed + tokens(turns[-1], "summary") <= 0.85 * budget - 1:
        assert shown[-1][1] in ("live", "summary")
    if fixed + sum(map(max, sizes)) <= int(budget / 2):
        assert plan == EpochPlan()


def test_what_fits_whole_is_shown_whole() -> None:
    turns = [Turn(number=number) for number in (1, 2, 3, 4)]
    plan = plan_levels(reversed(turns), budget=100, fixed=10, tokens=lambda turn, level: 10)
    assert plan == EpochPlan()


def test_planning_looks_no_further_back_than_what_fits() -> None:
    looked_at: list[int] = []

    def tokens(turn: Turn, level: LevelOfDetail) -> int:
        looked_at.append(turn.number)
        return 10

    turns = [Turn(number=number) for number in range(1, 10_001)]
    plan_levels(reversed(turns), budget=200, fixed=0, tokens=tokens)
    assert min(looked_at) == 10_000 - 10
