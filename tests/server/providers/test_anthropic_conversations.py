"""Claude takes back whatever it said, finds it in its cache, and refuses nothing we send."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.server.providers.anthropic_stage import (
    ADAPTIVE,
    BUDGETED,
    LOOK,
    Json,
    Talk,
    body_of,
    request,
)
from tests.server.providers.compiler_contexts import contexts
from tests.vendors.answers import Part, Text, Thinking, ToolCall
from tests.vendors.emulator import Emulator

from nplt_protocol import JsonObject
from nplt_server.context.messages import ContextMessage

THINKS: JsonObject = {"effort": "high"}
LONG = "word " * 100


def kinds(content: list[Json]) -> list[str]:
    return [block["type"] for block in content]


@pytest.mark.parametrize(("model", "turns"), [(BUDGETED, 3), (ADAPTIVE, 20)])
def test_turns_with_tools_and_thinking_read_all_they_sent_before_from_the_cache(
    model: str, turns: int
) -> None:
    talk = Talk(model, system=LONG, options={**THINKS})
    for turn in range(turns):
        talk.prompt(f"question {turn}: {LONG}")
        talk.answers(Thinking("hm"), ToolCall("look", '{"at": "x"}'), ToolCall("look", "{}"))
        talk.runs_tools(LONG)
        talk.answers(Thinking("so"), Text("aha"))
    for before, after in pairwise(talk.usages):
        assert after.read_tokens == before.input_tokens
    assert all(use.read_tokens + use.written_tokens == use.input_tokens for use in talk.usages)
    read, sent = (
        sum(counts)
        for counts in zip(
            *((use.read_tokens, use.input_tokens) for use in talk.usages), strict=True
        )
    )
    assert read / sent > (0.94 if turns == 20 else 0.6)


def test_outputs_of_other_models_keep_the_cached_prefix() -> None:
    talk = Talk(ADAPTIVE, system=LONG)
    for turn in range(4):
        talk.prompt(f"plan {turn}")
        talk.answers(Thinking("hm"), Text("a plan"))
        talk.prompt(f"do {turn}")
        talk.overhears("done", calls=15)  # far more blocks than a cache looks back
    for before, after in pairwise(talk.usages):
        assert after.read_tokens == before.input_tokens


def test_many_calls_at_once_do_not_hide_what_is_cached() -> None:
    talk = Talk(system=LONG)
    for turn in range(3):
        talk.prompt(f"question {turn}")
        talk.answers(*[ToolCall("look", f'{{"at": "{place}"}}') for place in range(25)])
        talk.runs_tools()
        talk.answers(Text("aha"))
    for before, after in pairwise(talk.usages):
        assert after.read_tokens == before.input_tokens


def test_a_turn_that_is_taken_back_leaves_the_rest_in_the_cache() -> None:
    talk = Talk(system=LONG)
    talk.prompt("one")
    talk.answers(Text("aha"))
    stands = len(talk.context)
    talk.prompt("two")
    for _ in range(12):
        talk.answers(ToolCall("look"))
        talk.runs_tools()
    sent_first = talk.usages[0].input_tokens
    del talk.context[stands:]
    talk.prompt("another two")
    talk.answers(Text("oh"))
    assert talk.usages[-1].read_tokens >= sent_first


def test_another_conversation_finds_tools_and_instruction_in_the_cache() -> None:
    one = Talk(system=LONG)
    another = Talk(system=LONG, api=one.api)
    for talk, prompt in ((one, "this"), (another, "that")):
        talk.prompt(prompt)
        talk.answers(Text("aha"))
    assert another.usages[0].read_tokens > len(LONG) / 4


def test_there_are_never_more_than_four_marks() -> None:
    talk = Talk(system=LONG)
    for _ in range(3):
        talk.prompt("go")
        for _ in range(3):
            talk.answers(ToolCall("look"))
            talk.runs_tools()
        talk.answers(Text("aha"))
    marks = [str(body).count("cache_control") for body in talk.bodies]
    assert max(marks) == 4


def test_thinking_between_the_calls_of_one_answer_goes_back_with_the_vendors_own_ids() -> None:
    talk = Talk(ADAPTIVE)
    talk.prompt("go")
    talk.answers(
        Thinking("first"), ToolCall("look"), Thinking("then"), Text("and"), ToolCall("look")
    )
    talk.runs_tools()
    talk.answers(Text("aha"))
    content, results = (message["content"] for message in talk.bodies[-1]["messages"][1:3])
    assert kinds(content) == ["thinking", "tool_use", "thinking", "text", "tool_use"]
    assert content[1]["id"].startswith("toolu_")
    assert [each["tool_use_id"] for each in results] == [content[1]["id"], content[4]["id"]]


def test_hidden_and_redacted_thinking_goes_back_where_it_stood() -> None:
    talk = Talk()
    talk.prompt("go")
    talk.answers(
        Thinking(""), Thinking("secret", redacted=True), Text("a"), Thinking("b"), Text("c")
    )
    talk.prompt("on")
    talk.answers(Text("aha"))
    content = talk.bodies[-1]["messages"][1]["content"]
    assert kinds(content) == ["thinking", "redacted_thinking", "text", "thinking", "text"]


@pytest.mark.parametrize("last", [Thinking("x"), Thinking(""), Thinking("x", redacted=True)])
def test_an_answer_never_ends_with_thinking(last: Part) -> None:
    talk = Talk()
    talk.prompt("go")
    talk.answers(Thinking("hm"), Text("and then"), last)
    talk.prompt("on")
    talk.answers(Text("aha"))
    assert kinds(talk.bodies[-1]["messages"][1]["content"]) == ["thinking", "text"]


def test_two_texts_in_a_row_stay_two() -> None:
    talk = Talk()
    talk.prompt("go")
    talk.answers(Text("one"), Text("two"), Thinking("hm"), Text("three"))
    talk.prompt("on")
    talk.answers(Text("aha"))
    content = talk.bodies[-1]["messages"][1]["content"]
    assert kinds(content) == ["text", "text", "thinking", "text"]


def test_thinking_after_what_can_not_be_sent_back_stays_here() -> None:
    talk = Talk(ADAPTIVE)
    talk.prompt("go")
    talk.answers(Thinking("a"), Text(" \n"), Thinking("b"), Text("so"))
    talk.prompt("on")
    talk.answers(Text("aha"))
    content = talk.bodies[-1]["messages"][1]["content"]
    assert "thinking" not in kinds(content)[1:]
    assert content[-1]["text"].strip() == "so"


def test_a_round_of_tools_that_began_without_thinking_goes_on_without() -> None:
    talk = Talk(BUDGETED)
    talk.prompt("go")
    talk.answers(ToolCall("look"))
    talk.runs_tools()
    talk.options = {**THINKS}
    talk.answers(Text("aha"))
    assert "thinking" not in talk.bodies[-1]
    talk.prompt("and now")
    talk.answers(Thinking("hm"), Text("aha"))
    assert talk.bodies[-1]["thinking"]["type"] == "enabled"


def test_calls_of_tools_that_are_gone_can_still_be_shown() -> None:
    talk = Talk()
    talk.prompt("go")
    talk.answers(ToolCall("look"))
    talk.runs_tools()
    talk.tools = ()
    talk.answers(Text("aha"))
    assert [tool["name"] for tool in talk.bodies[-1]["tools"]] == ["look"]
    assert talk.bodies[-1]["tool_choice"] == {"type": "none"}


PARTS: st.SearchStrategy[Part] = st.one_of(
    st.builds(Text, st.text(min_size=1, alphabet="ab é👋\n\0")),
    st.builds(Thinking, st.text(alphabet="ab \0"), st.booleans()),
    st.sampled_from(
        [ToolCall("look", '{"at": 1.0}'), ToolCall("look", "{broken"), ToolCall("x", "")]
    ),
)
ANSWERS = st.lists(st.lists(PARTS, min_size=1, max_size=5), min_size=1, max_size=3)


@given(ANSWERS, st.sampled_from([BUDGETED, ADAPTIVE]))
def test_whatever_claude_says_can_be_sent_back_to_it(answers: list[list[Part]], model: str) -> None:
    talk = Talk(model, options={**THINKS})
    talk.prompt("go")
    for parts in answers:
        message = talk.answers(*parts)
        if message.tool_calls:
            talk.runs_tools()
        else:
            talk.prompt("go on")
    talk.answers(Text("done"))


@settings(max_examples=settings().max_examples // 2)  # the compiler's own tests try them too
@given(contexts, st.sampled_from([BUDGETED, ADAPTIVE]), st.booleans())
def test_claude_accepts_the_outputs_of_every_vendor(
    context: list[ContextMessage], model: str, has_tools: bool
) -> None:
    asked = request(*context, model=model, tools=(LOOK,) if has_tools else (), options={**THINKS})
    Emulator().api("messages").admit(body_of(asked))
