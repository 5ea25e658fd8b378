"""The live screen in force is shown once, wherever the entry that carried it has gone."""

from __future__ import annotations

from itertools import pairwise

import pytest
from tests.server.context.context_stage import Request, Talk, turns_searched_for_screens, words

from nplt_server.context.projection import Policy


def screens_in(request: Request) -> list[str]:
    screens = (getattr(message, "live_screen", None) for message in request.messages)
    return [screen for screen in screens if screen]


def test_prompts_that_waited_see_the_screen_of_a_turn_that_slid_out_of_the_window() -> None:
    talk = Talk(turns_max=2)
    talk.note("old")
    for _ in range(4):
        talk.turn()
    talk.note("new")
    talk.turn()
    waiting = [talk.prompt(waits=True) for _ in range(4)]
    for turn_id in waiting:
        talk.run(turn_id, steps=1)
    asked = [request for request in talk.requests if request.turn_id in waiting]
    assert [screens_in(request) for request in asked] == [["old", "new"]] * 4 + [["new"]] * 4
    assert talk.reasons == ["window"]


def test_where_the_head_changes_with_the_window_the_calls_of_a_turn_still_extend_each_other() -> (
    None
):
    talk = Talk(turns_max=2)
    for number in range(8):
        talk.note(f"note {number}")
        talk.turn(steps=2)
    for before, after in pairwise(talk.requests):
        if before.turn_id == after.turn_id:
            assert after.messages[: len(before.messages)] == before.messages


@pytest.mark.parametrize("policy", ["newest_live", "epochs"])
def test_a_call_looks_for_screens_in_no_turn_that_was_looked_at_before(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at = turns_searched_for_screens(monkeypatch)
    talk = Talk(policy=policy, budget=20_000)
    for _ in range(20):
        talk.turn(words(50))
    talk.budget = 300
    talk.turn(steps=2)
    talk.call(talk.prompt())
    assert talk.epochs == []
    assert all(request.view.is_trimmed for request in talk.requests[-4:])
    assert looked_at == [turn.number for turn in talk.history.shown_turns]
