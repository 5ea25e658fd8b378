"""Always a context that fits, without asking anybody."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.server.context.context_stage import Quarters, Talk, render_context, words
from tests.storage.conversations import call

from nplt_server.context.fit import cut_middle, fair_shares
from nplt_server.context.messages import ModelInputMessage, ToolResultsMessage
from nplt_server.context.projection import Projection
from nplt_server.context.selection import CallBudget
from nplt_server.context.steps import Measure, shorten_call
from nplt_server.errors import WindowTooSmall
from nplt_storage.entries import EpochEntry, SystemInstructionEntry, ToolCallRequest

count = Quarters().count


def test_a_history_ten_times_the_window_gives_a_context_that_fits_and_fills_it_well() -> None:
    talk = Talk(budget=None)
    talk.write(SystemInstructionEntry(content=words(100)))
    turns = 0
    while talk.projection.context(None).tokens < 80_000:
        for _ in range(50):
            talk.turn(words(200), steps=turns % 3 // 2, result=words(100), answer=words(150))
            turns += 1
    mine = talk.prompt("and now?")
    call_budget = CallBudget(budget_tokens=8_000, tools_tokens=200)
    measure = Measure(Quarters())
    view = Projection(talk.history, measure).context(mine, call_budget)
    assert measure.counted < len(talk.history.entries)
    assert 4_000 <= view.tokens <= 8_000
    assert {message.level for message in view.messages} == {"live", "summary", "gist"}
    last = view.messages[-1]
    assert isinstance(last, ModelInputMessage)
    assert last.content == "and now?"


def test_of_a_giant_prompt_beginning_and_end_are_shown_and_how_much_is_missing() -> None:
    talk = Talk(budget=500)
    text = f"BEGIN {words(5_000)} END"
    view = talk.call(talk.prompt(text))
    [message] = view.messages
    assert isinstance(message, ModelInputMessage)
    assert message.level == "cut"
    assert message.content.startswith("BEGIN word")
    assert message.content.endswith("END")
    assert "characters left out …]" in message.content
    assert 400 <= view.tokens <= 500


def test_of_giant_results_each_says_how_to_read_what_is_left_out() -> None:
    talk = Talk(budget=600)
    mine = talk.prompt("look")
    talk.output(mine, "wait", calls=2)
    talk.results(mine, words(3_000))
    view = talk.call(mine)
    results = view.messages[-1]
    assert isinstance(results, ToolResultsMessage)
    for result in results.results:
        assert f'read_result reads them, tool_call_id "{result.tool_call_id}" …]' in result.result
    assert 500 <= view.tokens <= 600
    assert [message.level for message in view.messages] == ["live", "live", "cut"]


def test_the_older_steps_of_a_turn_lose_detail_before_the_newest_does() -> None:
    talk = Talk(budget=600)
    mine = talk.prompt("look")
    for _ in range(4):
        talk.output(mine, "wait", calls=1)
        talk.results(mine, words(150))
    levels = [message.level for message in talk.call(mine).messages]
    assert levels[0] == levels[-1] == "live"
    assert levels[1] in ("summary", "gist")
    assert levels[1:] == sorted(levels[1:], key=("gist", "summary", "live").index)


def test_the_calls_of_a_turn_see_the_same_older_turns_while_there_is_room() -> None:
    talk = Talk(budget=None)
    for _ in range(30):
        talk.turn(words(50))
    mine = talk.prompt("look")
    call_budget = CallBudget(budget_tokens=1_000)
    first = talk.projection.context(mine, call_budget)
    talk.output(mine, "wait", calls=1)
    talk.results(mine, words(150))
    second = talk.projection.context(mine, call_budget)
    assert first.is_trimmed
    assert list(second.messages)[: len(first.messages)] == list(first.messages)


def test_nothing_is_shown_in_more_detail_than_the_epoch_shows_it() -> None:
    talk = Talk(budget=None)
    for _ in range(6):
        talk.turn(words(100))
    talk.write(EpochEntry(reason="asked", gist_through=8, summary_through=8))
    mine = talk.prompt(words(100))
    view = talk.projection.context(mine, CallBudget(budget_tokens=380))
    assert view.is_trimmed
    assert {message.level for message in view.messages if message.seq <= 8} == {"gist"}


def test_results_too_many_for_the_room_go_with_the_calls() -> None:
    talk = Talk(budget=100)
    mine = talk.prompt("look")
    talk.output(mine, "wait", calls=8)
    talk.results(mine, words(30))
    assert [message.role for message in talk.call(mine).messages] == ["model_input"]


def test_the_screen_in_force_is_shown_although_its_entry_is_left_out() -> None:
    talk = Talk(budget=None)
    talk.note("remember the tea")
    for _ in range(30):
        talk.turn(words(50))
    talk.budget = 400
    head = talk.call(talk.prompt("look")).messages[0]
    assert isinstance(head, ModelInputMessage)
    assert head.live_screen == "remember the tea"


def test_a_giant_screen_takes_no_more_than_a_quarter() -> None:
    talk = Talk(budget=400)
    talk.note(words(2_000))
    view = talk.call(talk.prompt(words(100)))
    assert [message.level for message in view.messages] == ["cut", "live"]
    assert view.sizes[0] <= 100
    assert view.tokens <= 400


def test_only_where_instruction_and_tools_do_not_fit_there_is_none() -> None:
    talk = Talk(budget=150, tools_tokens=10)
    talk.write(SystemInstructionEntry(content=words(100)))
    talk.turn(words(1_000), steps=3, result=words(500))
    talk.tools_tokens = 20
    with pytest.raises(WindowTooSmall) as caught:
        talk.projection.context(talk.prompt(), talk.call_budget)
    assert caught.value.needed_tokens == 124


def test_the_same_record_gives_the_same_context() -> None:
    talk = Talk(budget=300)
    talk.turn(words(100), steps=2, result=words(200))
    mine = talk.prompt(words(400))
    contexts = [
        render_context(
            talk.history, mine, measure=Measure(Quarters()), call_budget=talk.call_budget
        )
        for _ in range(2)
    ]
    assert contexts[0] == contexts[1]


@given(st.text(min_size=1, max_size=12), st.integers(1, 60), st.integers(20, 60))
def test_a_cut_text_fits_and_consists_of_its_beginning_a_mark_and_its_end(
    piece: str, times: int, tokens_max: int
) -> None:
    text = piece * times
    cut = cut_middle(text, tokens_max, count=count)
    assert count(cut) <= tokens_max
    if count(text) > tokens_max:
        before, _, rest = cut.partition("[… ")
        number, _, after = rest.partition(" characters left out …]")
        before, after = before.removesuffix("\n"), after.removeprefix("\n")
        assert text.startswith(before)
        assert text.endswith(after)
        assert int(number.replace(",", "")) == len(text) - len(before) - len(after)


@pytest.mark.parametrize(
    ("sizes", "room", "shares"),
    [
        ([5, 5], 10, [5, 5]),
        ([100, 2, 100], 42, [20, 2, 20]),
        ([100, 30, 2], 62, [30, 30, 2]),
        ([9, 9], -1, [0, 0]),
        ([], 10, []),
    ],
)
def test_who_needs_little_gets_it_and_the_others_share_the_rest(
    sizes: list[int], room: int, shares: list[int]
) -> None:
    assert fair_shares(sizes, room) == shares


def test_arguments_no_one_could_parse_and_arguments_of_many_names_are_shortened_too() -> None:
    broken = replace(call(), raw_arguments="{" * 5_000, arguments=None)
    assert len(shorten_call(broken, 200).raw_arguments) <= 200
    names = {f"name {number}": number for number in range(500)}
    many = ToolCallRequest(
        tool_call_id="c", tool_name="t", raw_arguments=str(names), arguments=names
    )
    assert shorten_call(many, 200).arguments == {
        "arguments": f"[… {len(str(names)):,} characters left out …]"
    }
