"""What the compiler does about everything a provider would refuse."""

from __future__ import annotations

from types import MappingProxyType

import orjson
import pytest
from msgspec.structs import replace
from tests.server.providers.compiler_contexts import OWN, asks, call, gives, result, says

from nplt_server.context.messages import (
    ContextMessage,
    ModelInputMessage,
    SystemMessage,
    ToolResultsMessage,
)
from nplt_server.providers.compiler import (
    AssistantStep,
    CompiledContext,
    ContextCompiler,
    UserStep,
    VendorRules,
)
from nplt_storage.json_values import JsonValue


def compiled(*messages: ContextMessage, rules: VendorRules | None = None) -> CompiledContext:
    return ContextCompiler(rules or VendorRules()).compile(messages, origin=OWN)


def user(compiled: CompiledContext, place: int = -1) -> UserStep:
    step = compiled.steps[place]
    assert isinstance(step, UserStep)
    return step


def answer(compiled: CompiledContext, place: int = 1) -> AssistantStep:
    step = compiled.steps[place]
    assert isinstance(step, AssistantStep)
    return step


def test_a_sound_context_is_not_changed() -> None:
    sound = compiled(
        SystemMessage(instruction="be kind"),
        asks("look twice", seq=1),
        says("I look.", call("a", "look", {"at": 1}), call("b"), seq=2),
        gives(result("a", "one"), result("b", "two", "failed"), seq=3),
        says("done", seq=4),
        asks("thanks", seq=5),
    )
    assert sound.system == "be kind"
    assert [step.seqs for step in sound.steps] == [(1,), (2,), (3,), (4,), (5,)]
    assert [(each.call_id, each.arguments_json) for each in answer(sound).calls] == [
        ("a", '{"at":1}'),
        ("b", "{}"),
    ]
    assert [(each.call_id, each.status, each.text) for each in user(sound, 2).results] == [
        ("a", "success", "one"),
        ("b", "failed", "two"),
    ]
    assert user(sound).texts == ("thanks",)


def test_the_live_screen_goes_with_the_prompt_or_the_last_result() -> None:
    shown = compiled(
        ModelInputMessage(content="go", live_screen="# Screen 1"),
        says("", call("a"), call("b")),
        ToolResultsMessage(results=(result("a"), result("b")), live_screen="# Screen 2"),
    )
    assert user(shown, 0).texts == ("go\n\n# Screen 1",)
    assert [each.text for each in user(shown).results] == ["seen", "seen\n\n# Screen 2"]


def test_a_call_without_a_result_gets_one_that_says_so() -> None:
    cut = compiled(
        asks("go"), says("", call("a"), call("b"), seq=2), gives(result("b"), seq=3), says("hm")
    )
    unknown, seen = user(cut, 2).results
    assert (unknown.call_id, unknown.status, unknown.seq) == ("a", "failed", 0)
    assert "unknown" in unknown.text
    assert (seen.call_id, seen.status, seen.seq) == ("b", "success", 3)


def test_a_result_without_a_call_is_shown_as_text_behind_the_real_ones() -> None:
    stray = compiled(
        asks("go"), says("", call("a")), gives(result("x", "stray"), result("a"), seq=3)
    )
    assert [each.call_id for each in user(stray).results] == ["a"]
    assert user(stray).texts == ("[Result of a call that is not shown here: look, success]\nstray",)
    assert user(stray).text_seqs == (3,)


def test_results_that_come_after_the_next_prompt_still_stand_first() -> None:
    late = compiled(asks("go"), says("", call("a")), asks("hurry"), gives(result("a")))
    assert [each.text for each in user(late).results] == ["seen"]
    assert user(late).texts == ("hurry",)


def test_a_second_result_of_the_same_call_is_a_stray_one() -> None:
    twice = compiled(asks("go"), says("", call("a")), gives(result("a", "1"), result("a", "2")))
    assert [each.text for each in user(twice).results] == ["1"]
    assert user(twice).texts[0].endswith("\n2")


def test_tool_calls_with_one_id_are_paired_with_results_by_place() -> None:
    shared = compiled(
        asks("go"),
        says("", call("a"), call("a"), seq=2),
        gives(result("a", "first"), result("a", "second")),
        says("", call("a"), seq=4),
        gives(result("a", "third")),
    )
    ids = [each.call_id for place in (1, 3) for each in answer(shared, place).calls]
    assert ids[0] == "a"
    assert len(set(ids)) == 3
    assert [(each.call_id, each.text) for each in user(shared, 2).results] == [
        (ids[0], "first"),
        (ids[1], "second"),
    ]


@pytest.mark.parametrize("own_id", ["", "x" * 41, "has space", "日本", "\ud800"])
def test_an_id_no_vendor_takes_becomes_the_same_other_one_each_time(own_id: str) -> None:
    def sent(*before: ContextMessage) -> str:
        grown = compiled(*before, asks("go"), says("", call(own_id)), gives(result(own_id)))
        assert user(grown).results[0].text == "seen"
        assert user(grown).results[0].call_id != own_id
        return user(grown).results[0].call_id

    assert sent() == sent(asks("hi"), says("", call("b")), gives(result("b")), says("hello"))


def test_an_id_of_exactly_the_longest_length_is_kept() -> None:
    for characters, kept in ((39, True), (40, True), (41, False)):
        fits = compiled(asks("go"), says("", call("x" * characters)))
        assert (answer(fits).calls[0].call_id == "x" * characters) is kept


def test_a_tool_name_no_vendor_takes_stays_legible() -> None:
    odd = compiled(asks("go"), says("", call("a", "read file!", {}), seq=2), gives(result("a")))
    name = answer(odd).calls[0].tool_name
    assert name.startswith("read_file_-")
    other = compiled(asks("go"), says("", call("a", "read file?", {})))
    assert answer(other).calls[0].tool_name != name
    nameless = compiled(asks("go"), says("", call("a", "", {})))
    assert answer(nameless).calls[0].tool_name.startswith("tool-")


@pytest.mark.parametrize("raw", ['{"path": ', "[1]", "", "not json", '{"a": "\\ud800"}'])
def test_a_model_sees_again_what_it_wrote_instead_of_an_object(raw: str) -> None:
    broken = compiled(asks("go"), says("", call("a", raw=raw), seq=2), gives(result("a")))
    assert orjson.loads(answer(broken).calls[0].arguments_json) == {"_unparsed": raw}


def test_arguments_with_lone_surrogates_stay_an_object() -> None:
    odd = compiled(asks("go"), says("", call("a", "look", {"x": ["a\0b", "\ud83d"]}), seq=2))
    assert orjson.loads(answer(odd).calls[0].arguments_json) == {"x": ["a\ufffdb", "\ufffd"]}


def test_arguments_without_a_bottom_are_shown_as_they_were_written() -> None:
    bottomless: JsonValue = "\0"
    for _ in range(5_000):
        bottomless = [bottomless]
    asked = replace(call("a", "look", {"x": bottomless}), raw_arguments="[[[")
    sent = compiled(asks("go"), says("", asked, seq=2), gives(result("a")))
    assert orjson.loads(answer(sent).calls[0].arguments_json) == {"_unparsed": "[[["}


def test_arguments_may_be_any_mapping() -> None:
    asked = replace(call("a"), arguments=MappingProxyType({"x": 1}))
    sent = compiled(asks("go"), says("", asked), gives(result("a")))
    assert answer(sent).calls[0].arguments_json == '{"x":1}'


def test_a_backslash_before_four_zeros_is_no_such_character() -> None:
    literal = compiled(
        asks("go"), says("", call("a", "look", {"x": "\\u0000"})), gives(result("a"))
    )
    assert orjson.loads(answer(literal).calls[0].arguments_json) == {"x": "\\u0000"}


def test_half_a_surrogate_pair_and_nul_are_replaced_wherever_they_stand() -> None:
    odd = compiled(
        SystemMessage(instruction="s\ud800", seq=1),
        asks("u\0", seq=2),
        says("a\udfff", call("a"), seq=3),
        gives(result("a", "r\0"), seq=4),
    )
    assert odd.system == "s\ufffd"
    assert user(odd, 0).texts == ("u\ufffd",)
    assert answer(odd).text == "a\ufffd"
    assert user(odd).results[0].text == "r\ufffd"


def test_a_text_is_cut_only_above_the_limit() -> None:
    rules = VendorRules(text_characters_max=50)
    for characters in (49, 50, 51):
        sent = compiled(asks("x" * characters, seq=1), rules=rules)
        assert (user(sent).texts[0] == "x" * characters) is (characters <= 50)
        assert len(user(sent).texts[0]) == min(50, characters)


def test_all_instructions_together_keep_the_limit() -> None:
    halves = [SystemMessage(instruction="x" * 30)] * 2
    sent = compiled(*halves, asks("go"), rules=VendorRules(text_characters_max=50))
    assert len(sent.system) <= 50


def test_what_has_no_entry_is_behind_no_step() -> None:
    sent = compiled(asks("go"), says("", call("a"), seq=2), gives(result("a")))
    assert [step.seqs for step in sent.steps] == [(), (2,), ()]


def test_arguments_that_are_too_long_are_shown_as_far_as_there_is_room() -> None:
    rules = VendorRules(text_characters_max=100)
    sent = compiled(asks("go"), says("", call("a", "look", {"x": "\n" * 90}), seq=2), rules=rules)
    written = answer(sent).calls[0].arguments_json
    assert len(written) <= 100
    assert orjson.loads(written)["_unparsed"].startswith('{"x":"')


def test_a_blank_answer_is_left_out() -> None:
    blank = compiled(asks("one", seq=1), says(" \n", seq=2), asks("two", seq=3))
    assert user(blank).texts == ("one", "two")
    assert user(blank).text_seqs == (1, 3)


def test_blank_text_next_to_tool_calls_is_left_out() -> None:
    blank = compiled(asks("go"), says(" \n", call("a")), gives(result("a")))
    assert answer(blank).text == ""


def test_where_a_blank_prompt_or_result_must_stand_there_are_words_instead() -> None:
    blank = compiled(asks(" ", seq=1), says("", call("a")), gives(result("a", "\n"), seq=3))
    assert user(blank, 0).texts == ("(an empty message)",)
    assert user(blank, 0).text_seqs == (1,)
    assert user(blank).results[0].text == "(no output)"


def test_a_blank_prompt_among_others_is_left_out_and_keeps_its_entry() -> None:
    blank = compiled(asks("one", seq=1), asks(" ", seq=2))
    assert user(blank).texts == ("one",)
    assert user(blank).seqs == (1, 2)


def test_answers_in_a_row_are_one() -> None:
    row = compiled(
        asks("go"), says("one", seq=2), says("two", call("a"), seq=3), gives(result("a"))
    )
    assert answer(row).text == "one\n\ntwo"
    assert [each.call_id for each in answer(row).calls] == ["a"]
    assert answer(row).seqs == (2, 3)


def test_a_context_that_begins_or_ends_with_an_answer_gets_the_users_side() -> None:
    alone = compiled(says("hello", seq=1))
    assert [type(step) for step in alone.steps] == [UserStep, AssistantStep, UserStep]


def test_a_context_without_any_message_still_asks_something() -> None:
    assert [type(step) for step in compiled().steps] == [UserStep]
    assert user(compiled()).texts[0].strip()


def test_instructions_are_joined_wherever_they_stand() -> None:
    late = compiled(
        SystemMessage(instruction="one"), asks("go"), SystemMessage(instruction="two", seq=9)
    )
    assert late.system == "one\n\ntwo"
