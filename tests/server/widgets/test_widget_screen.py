"""A model always has the present screen before its eyes, and none is written twice."""

from __future__ import annotations

import pytest
from hypothesis import given
from tests.server.context.context_stage import render_context, turns_searched_for_screens
from tests.server.widgets.widget_lives import Life, events, windows
from tests.server.widgets.widget_stage import WIDGETS, Stage, now

from nplt_server.context.messages import ModelInputMessage
from nplt_server.context.screens import ScreensInTurns
from nplt_server.context.steps import message_of
from nplt_server.conversations.agent_state import BLANK_SCREEN, render_screen
from nplt_storage.entries import (
    LIVE_SCREEN,
    ClearEntry,
    Entry,
    EpochEntry,
    ModelInputEntry,
    Sections,
    ToolResultsEntry,
)
from nplt_storage.history import ConversationHistory

NOTED = "# [Live Screen]\n\n## Notebook\ntea"


def screen_of(entry: Entry) -> str | None:
    match entry:
        case ModelInputEntry(sections=sections) if sections:
            return _text_of(sections.live)
        case ToolResultsEntry(results=(*_, last)) if last.sections:
            return _text_of(last.sections.live)
        case _:
            return None


def _text_of(sections: Sections) -> str | None:
    return next((text for name, text in sections if name == LIVE_SCREEN), None)


def seen_last(history: ConversationHistory, turn_id: str | None) -> str:
    """Of all that the turn's model is shown, the last screen."""
    shown = render_context(history, turn_id)
    screens = [getattr(message, "live_screen", None) for message in shown]
    return next((screen for screen in reversed(screens) if screen), "")


@pytest.fixture
def stage() -> Stage:
    stage = Stage()
    now(stage.state.update_memory_notebook("tea"))
    return stage


def test_widgets_are_shown_in_a_fixed_order_under_one_heading(stage: Stage) -> None:
    stage.use("todo", action="add", texts=["brew"])
    together = f"{NOTED}\n\n## Todo\n- [ ] 1 brew"
    assert render_screen(WIDGETS, stage) == together
    assert stage.state.screen() == together


def test_a_screen_with_nothing_on_it_is_empty() -> None:
    assert render_screen(WIDGETS, Stage()) == ""


def test_a_prompt_carries_its_text_and_the_live_screen(stage: Stage) -> None:
    prompt = stage.ask("t1", "hello")
    assert prompt.sections is not None
    assert prompt.sections.live == (("", "hello"), ("[LiveScreen]", NOTED))
    for level in ("summary", "gist"):
        shown = message_of(prompt, level)
        assert isinstance(shown, ModelInputMessage)
        assert (shown.content, shown.live_screen) == ("hello", None)


def test_the_same_screen_is_not_written_twice(stage: Stage) -> None:
    assert screen_of(stage.ask("t1")) == NOTED
    stage.call_tools("t1", "c1")
    assert screen_of(stage.give_results("t1", "c1")) is None
    stage.answer("t1", call=1)
    assert screen_of(stage.ask("t2")) is None


def test_a_changed_live_screen_is_in_the_last_tool_result_of_its_step(stage: Stage) -> None:
    stage.ask("t1")
    stage.call_tools("t1", "c1", "c2")
    now(stage.state.update_memory_notebook("coffee"))
    first, last = stage.give_results("t1", "c1", "c2").results
    assert first.sections is None
    assert last.sections is not None
    assert last.sections.live == (("", "ok"), ("[LiveScreen]", NOTED.replace("tea", "coffee")))


def test_a_prompt_that_waits_carries_no_screen(stage: Stage) -> None:
    stage.ask("t1")
    now(stage.state.update_memory_notebook("coffee"))
    assert screen_of(stage.ask("t2")) is None


def test_an_emptied_live_screen_is_written_once(stage: Stage) -> None:
    stage.ask("t1")
    stage.answer("t1")
    now(stage.state.update_memory_notebook(""))
    assert screen_of(stage.ask("t2")) == BLANK_SCREEN
    stage.answer("t2")
    assert screen_of(stage.ask("t3")) is None


def test_the_screen_an_epoch_began_with_counts_as_written(stage: Stage) -> None:
    stage.put(EpochEntry(reason="asked", screen=stage.state.screen()))
    assert screen_of(stage.ask("t1")) is None


def test_a_screen_from_before_the_epoch_counts_no_more(stage: Stage) -> None:
    stage.ask("t1")
    stage.answer("t1")
    stage.put(EpochEntry(reason="asked"))
    assert screen_of(stage.ask("t2")) == NOTED


def test_a_live_screen_of_the_running_turn_is_not_written_again_after_an_epoch(
    stage: Stage,
) -> None:
    stage.ask("t1")
    now(stage.state.update_memory_notebook("coffee"))
    stage.put(EpochEntry(reason="asked", screen=stage.state.screen()))
    stage.call_tools("t1", "c1")
    assert screen_of(stage.give_results("t1", "c1")) is None


def test_after_a_clear_the_screen_is_written_again(stage: Stage) -> None:
    stage.ask("t1")
    stage.answer("t1")
    stage.put(ClearEntry())
    assert screen_of(stage.ask("t2")) == NOTED


def test_a_live_screen_outside_max_turns_is_shown_first_and_not_written_again() -> None:
    stage = Stage(turns_max=2)
    now(stage.state.update_memory_notebook("tea"))
    carried = []
    for turn_id in ("t1", "t2", "t3", "t4"):
        carried.append(screen_of(stage.ask(turn_id)))
        stage.answer(turn_id)
    assert carried == [NOTED, None, None, None]
    shown = render_context(stage.history, "t4")
    assert [getattr(message, "live_screen", None) for message in shown][:2] == [NOTED, None]


def test_finished_turns_are_searched_for_a_live_screen_once(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at = turns_searched_for_screens(monkeypatch)
    for turn_id in ("t1", "t2", "t3", "t4", "t5"):
        stage.ask(turn_id)
        stage.answer(turn_id)
    assert looked_at == [2, 4, 6, 8]


@given(events=events, turns_max=windows)
def test_whatever_happens_a_model_that_is_spoken_to_sees_the_present_screen(
    events: list[int], turns_max: int | None
) -> None:
    life = Life(turns_max)
    history = life.stage.history
    screens = ScreensInTurns(history)
    for event in events:
        life.happens(event)
        unfinished = [prompt.turn_id for prompt in history.unfinished_turns()]
        for turn_id in (None, *unfinished):
            seen = seen_last(history, turn_id)
            assert screens.last_shown_to(turn_id) == seen
            assert ScreensInTurns(history).last_shown_to(turn_id) == seen
            if turn_id is not None and turn_id == life.spoke:
                present = life.stage.state.screen()
                assert seen == present or (not present and seen == BLANK_SCREEN)
