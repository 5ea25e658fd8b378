"""What is asked of Claude, and how; whatever was asked of us, its API takes it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.server.providers.anthropic_stage import (
    ADAPTIVE,
    BUDGETED,
    LOOK,
    Json,
    body_of,
    rendered,
    request,
    result,
)
from tests.vendors.emulator import Emulator

from nplt_protocol import JsonObject
from nplt_server.context.messages import (
    ModelInputMessage,
    ModelOutputMessage,
    SystemMessage,
    ToolResultsMessage,
)
from nplt_server.providers.anthropic import abilities_of
from nplt_server.tools import ToolDescription
from nplt_storage.entries import ToolCallRequest

BOTH = "claude-opus-4-6"  # thinks as it likes, or on a budget


def admitted(body: Json) -> Json:
    Emulator().api("messages").admit(body)
    return body


def asked(model: str, **options: Any) -> Json:
    return admitted(body_of(request(model=model, options=options)))


# Which model takes what


@pytest.mark.parametrize(
    ("name", "thinking"),
    [
        ("claude-3-5-haiku-20241022", "none"),
        ("claude-3-7-sonnet-latest", "budget"),
        ("claude-opus-4-20250514", "budget"),
        ("claude-haiku-4-5-20251001", "budget"),
        ("claude-sonnet-4-6", "adaptive"),
        ("anthropic.claude-opus-4-6-v1:0", "adaptive"),
        ("anthropic/claude-opus-4.7", "adaptive"),
        ("claude-sonnet-5", "adaptive"),
        ("claude-fable-5-1", "adaptive"),
        ("claude-mythos-preview", "adaptive"),
        ("qwen3-coder", "none"),
    ],
)
def test_a_models_name_tells_how_it_thinks(name: str, thinking: str) -> None:
    assert abilities_of(name).thinking == thinking


def test_only_models_of_others_behind_the_same_api_are_sent_a_temperature() -> None:
    cool = request(model=ADAPTIVE, options={"temperature": 0.5})
    assert "temperature" not in body_of(cool)
    assert body_of(request(model="other", options={"temperature": 0.5}))["temperature"] == 0.5


# How it is asked to answer


def test_older_models_think_on_a_budget_when_effort_is_asked_for() -> None:
    assert "thinking" not in asked(BUDGETED)
    assert asked(BUDGETED, effort="high")["thinking"] == {"type": "enabled", "budget_tokens": 3072}
    assert asked(BUDGETED, effort="minimal")["thinking"]["budget_tokens"] == 1024


def test_a_short_answer_leaves_no_room_to_think() -> None:
    assert "thinking" not in asked(BUDGETED, effort="high", output_tokens=1200)


def test_newer_models_think_as_they_like_and_show_it() -> None:
    assert asked(ADAPTIVE)["thinking"] == {"type": "adaptive", "display": "summarized"}
    body = asked(ADAPTIVE, effort="max")
    assert body["thinking"]["type"] == "adaptive"
    assert body["output_config"] == {"effort": "max"}


def test_effort_is_never_more_than_was_asked_for_and_never_a_level_the_model_lacks() -> None:
    assert asked(BOTH, effort="xhigh")["output_config"] == {"effort": "high"}
    assert asked(BUDGETED, effort="max")["output_config"] == {"effort": "high"}
    assert "output_config" not in asked("claude-haiku-4-5", effort="high")


def test_no_thinking_can_be_asked_for_where_a_model_can_do_without() -> None:
    assert asked("claude-opus-4-6", effort="none")["thinking"] == {"type": "disabled"}


@pytest.mark.parametrize("model", [ADAPTIVE, "claude-fable-5-1"])
def test_a_model_that_always_thinks_is_asked_for_little_of_it_instead(model: str) -> None:
    body = body_of(request(model=model, options={"effort": "none"}))
    assert body["thinking"]["type"] == "adaptive"
    assert body["output_config"] == {"effort": "low"}


@pytest.mark.parametrize("model", [BUDGETED, BOTH, ADAPTIVE, "claude-3-5-haiku-20241022"])
def test_no_claude_is_sent_a_temperature_since_its_api_refuses_one(model: str) -> None:
    assert "temperature" not in body_of(request(model=model, options={"temperature": 0.3}))


def test_a_model_of_others_behind_the_same_api_is_sent_one_within_its_range() -> None:
    warm = request(model="qwen3-coder", options={"temperature": 1.7})
    assert body_of(warm)["temperature"] == 1.0


def test_an_answer_is_as_long_as_was_asked_for_and_no_longer_than_it_may_be() -> None:
    assert asked(BUDGETED)["max_tokens"] == 4096
    assert asked(BUDGETED, output_tokens=100)["max_tokens"] == 100
    assert asked(BUDGETED, output_tokens=9000)["max_tokens"] == 4096
    assert body_of(request(answer_tokens_max=None))["max_tokens"] == 8192


ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4), st.just([1])
)
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "temperature": ANYTHING,
        "output_tokens": ANYTHING,
        "effort": ANYTHING | st.sampled_from(["none", "minimal", "low", "medium", "xhigh", "max"]),
        "unknown": ANYTHING,
    },
)


@given(OPTIONS, st.sampled_from([BUDGETED, BOTH, ADAPTIVE]), st.integers(1, 8000))
def test_no_option_makes_a_request_the_api_refuses(
    options: JsonObject, model: str, most: int
) -> None:
    admitted(body_of(request(model=model, options=options, answer_tokens_max=most)))


# What was said


def call(call_id: str, name: str = "look") -> ToolCallRequest:
    return ToolCallRequest(tool_call_id=call_id, tool_name=name, raw_arguments="{}", arguments={})


def test_all_results_of_an_answer_stand_first_in_the_next_message() -> None:
    body = admitted(
        body_of(
            request(
                SystemMessage(instruction="be brief", seq=1),
                ModelInputMessage(content="go", seq=2),
                ModelOutputMessage(content="well", tool_calls=(call("a"), call("b")), seq=3),
                ToolResultsMessage(
                    results=(result("a"), result("b", "no such thing", status="failed")), seq=4
                ),
                ModelInputMessage(content="stop", seq=5),
            )
        )
    )
    assert [block["text"] for block in body["system"]] == ["be brief"]
    output, answered = (message["content"] for message in body["messages"][1:])
    assert [block["type"] for block in output] == ["text", "tool_use", "tool_use"]
    assert [block["type"] for block in answered] == ["tool_result", "tool_result", "text"]
    assert [block.get("is_error") for block in answered] == [None, True, None]


def test_each_message_knows_its_entries() -> None:
    sent = rendered(
        request(
            SystemMessage(instruction="be brief", seq=1),
            ModelInputMessage(content="a", seq=2),
            ModelInputMessage(content="b", seq=3),
            ModelOutputMessage(content="c", seq=4),
            ModelInputMessage(content="d", seq=5),
        )
    )
    assert sent.seqs == ((2, 3), (4,), (5,))
    assert len(sent.body["messages"]) == 3


# What may be called


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"properties": None},
        {"properties": [1]},
        {"type": "string"},
        {"type": "object", "anyOf": [{"required": ["a"]}]},
        {"type": "object", "properties": {"wörter und mehr": {"type": "string"}}},
    ],
)
def test_no_schema_makes_a_request_the_api_refuses(parameters: JsonObject) -> None:
    tool = ToolDescription(name="odd", description="Odd.", parameters=parameters)
    [offered] = admitted(body_of(request(tools=(tool,))))["tools"]
    assert offered["input_schema"]["type"] == "object"
    if "anyOf" in parameters:
        assert '"anyOf":[{"required":["a"]}]' in offered["description"]


def test_a_tool_of_any_name_is_offered_under_one_the_api_takes_and_called_by_its_own() -> None:
    odd = ToolDescription(name="files.read/all 你好" + "x" * 80, description="", parameters={})
    sent = rendered(request(tools=(odd, LOOK, LOOK)))
    admitted(sent.body)
    names = [tool["name"] for tool in sent.body["tools"]]
    assert [sent.own_names[name] for name in names] == [odd.name, "look"]
