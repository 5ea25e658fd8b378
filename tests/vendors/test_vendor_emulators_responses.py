"""The emulated Responses API refuses what OpenAI's refuses, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from tests.vendors.answers import Answer, Text, Thinking, ToolCall
from tests.vendors.emulator import Emulator, Limits
from tests.vendors.models import GptModel
from tests.vendors.rejections import Rejection
from tests.vendors.rule import Json, Rule, assert_holds, each

PLAIN = "gpt-4.1"
REASONING = "gpt-5.6"

HELLO = {"role": "user", "content": "hello"}


def call(call_id: str = "call_1", **more: object) -> Json:
    called = {"type": "function_call", "call_id": call_id, "name": "look", "arguments": "{}"}
    return {**called, **more}


def result(call_id: str = "call_1", **more: object) -> Json:
    return {"type": "function_call_output", "call_id": call_id, "output": "seen", **more}


def assistant(*parts: Json, **more: object) -> Json:
    return {"type": "message", "role": "assistant", "content": list(parts), **more}


def output_text(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": []}


def ask(*items: Json, model: str = PLAIN, **fields: Any) -> Json:
    return {"model": model, "input": list(items) or "hello", **fields}


RULES = [
    Rule(
        name="the model is required",
        broken={"input": "hello"},
        kept=ask(),
        says="Missing required parameter: 'model'.",
        param="model",
        code="missing_required_parameter",
    ),
    Rule(
        name="fields are known",
        broken=ask(messages=[]),
        kept=ask(instructions="be brief"),
        says="Unknown parameter: 'messages'.",
        param="messages",
        code="unknown_parameter",
    ),
    Rule(
        name="there is an item",
        broken={"model": PLAIN, "input": []},
        kept=ask(HELLO),
        says="Invalid 'input': empty array.",
        param="input",
        code="empty_array",
    ),
    Rule(
        name="items are known",
        broken=ask(HELLO, {"type": "tool_result", "output": "seen"}),
        kept=ask(HELLO, call(), result()),
        says="Invalid value: 'tool_result'. Supported values are: 'message', 'function_call',",
        param="input[1].type",
        code="invalid_value",
    ),
    Rule(
        name="fields of items are known",
        broken=ask(HELLO, call(parsed_arguments={}), result()),
        kept=ask(HELLO, call(status="completed"), result()),
        says="Unknown parameter: 'input[1].parsed_arguments'.",
        param="input[1].parsed_arguments",
        code="unknown_parameter",
    ),
    Rule(
        name="assistants say output_text",
        broken=ask(HELLO, assistant({"type": "input_text", "text": "hi"})),
        kept=ask(HELLO, assistant(output_text("hi"))),
        says="Invalid value: 'input_text'. Supported values are: 'output_text' and 'refusal'.",
        param="input[1].content[0]",
        code="invalid_value",
    ),
    Rule(
        name="a call has its output",
        broken=ask(HELLO, call()),
        kept=ask(HELLO, call(), result()),
        says="No tool output found for function call call_1.",
        param="input",
    ),
    Rule(
        name="an output has its call",
        broken=ask(HELLO, result()),
        kept=ask(HELLO, call(), HELLO, result()),
        says="No tool call found for function call output with call_id call_1.",
        param="input",
    ),
    Rule(
        name="an output follows its call",
        broken=ask(result(), call()),
        kept=ask(call(), result()),
        says="No tool call found for function call output with call_id call_1.",
        param="input",
    ),
    Rule(
        name="ids of calls are short",
        broken=ask(call("c" * 65), result("c" * 65)),
        kept=ask(call("c" * 64), result("c" * 64)),
        says="Invalid 'input[0].call_id': string too long. Expected a string with maximum length"
        " 64, but got a string with length 65 instead.",
        param="input[0].call_id",
        code="string_above_max_length",
    ),
    Rule(
        name="ids of calls are unique",
        broken=ask(call(), call(), result()),
        kept=ask(call(), call("call_2"), result(), result("call_2")),
        says="Duplicate 'call_id': call_1",
        param="input",
    ),
    Rule(
        name="ids of items are short",
        broken=ask(call(id="fc_" + "i" * 62), result()),
        kept=ask(call(id="fc_" + "i" * 61), result()),
        says="Invalid 'input[0].id': string too long.",
        param="input[0].id",
        code="string_above_max_length",
    ),
    Rule(
        name="ids of items tell their kind",
        broken=ask(call(id="call_1"), result()),
        kept=ask(call(id="fc_1"), result()),
        says="Invalid 'input[0].id': 'call_1'. Expected an ID that begins with 'fc'.",
        param="input[0].id",
        code="invalid_value",
    ),
    Rule(
        name="ids of messages tell their kind",
        broken=ask(HELLO, assistant(output_text("hi"), id="item_1")),
        kept=ask(HELLO, assistant(output_text("hi"), id="msg_1")),
        says="Expected an ID that begins with 'msg'.",
        param="input[1].id",
        code="invalid_value",
    ),
    Rule(
        name="ids of items have plain characters",
        broken=ask(call(id="fc_a+b"), result()),
        kept=ask(call(id="fc_a-b"), result()),
        says="Expected an ID that contains letters, numbers, underscores, or dashes",
        param="input[0].id",
        code="invalid_value",
    ),
    Rule(
        name="ids of items are unique",
        broken=ask(call("a", id="fc_1"), call("b", id="fc_1"), result("a"), result("b")),
        kept=ask(call("a", id="fc_1"), call("b", id="fc_2"), result("a"), result("b")),
        says="Duplicate item found with id fc_1.",
        param="input",
    ),
    Rule(
        name="reasoning that was not kept is not found",
        broken=ask(
            HELLO,
            {"type": "reasoning", "id": "rs_1", "summary": []},
            assistant(output_text("hi")),
            model=REASONING,
            store=False,
        ),
        kept=ask(HELLO, assistant(output_text("hi")), model=REASONING, store=False),
        says="Item with id 'rs_1' not found. Items are not persisted when `store` is set to false.",
        status=404,
        param="input",
    ),
    Rule(
        name="encrypted reasoning is not made up",
        broken=ask(
            HELLO,
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"},
            assistant(output_text("hi")),
            model=REASONING,
        ),
        kept=ask(HELLO, assistant(output_text("hi")), model=REASONING),
        says="The encrypted content for item rs_1 could not be verified.",
        code="invalid_encrypted_content",
    ),
    Rule(
        name="references are never found",
        broken=ask(HELLO, {"type": "item_reference", "id": "msg_1"}),
        kept=ask(HELLO),
        says="Item with id 'msg_1' not found.",
        status=404,
        param="input",
    ),
    Rule(
        name="earlier responses are never found",
        broken=ask(previous_response_id="resp_1"),
        kept=ask(previous_response_id=None),
        says="Previous response with id 'resp_1' not found.",
        param="previous_response_id",
        code="previous_response_not_found",
    ),
    Rule(
        name="max_output_tokens is at least sixteen",
        broken=ask(max_output_tokens=15),
        kept=ask(max_output_tokens=16),
        says="Invalid 'max_output_tokens': integer below minimum value. Expected a value >= 16,"
        " but got 15 instead.",
        param="max_output_tokens",
        code="integer_below_min_value",
    ),
    Rule(
        name="who reasons has no temperature",
        broken=ask(model=REASONING, temperature=1),
        kept=ask(temperature=1),
        says="Unsupported parameter: 'temperature' is not supported with this model.",
        param="temperature",
        code="unsupported_parameter",
    ),
    Rule(
        name="who does not reason makes no effort",
        broken=ask(reasoning={"effort": "low"}),
        kept=ask(model=REASONING, reasoning={"effort": "low"}),
        says="Unsupported parameter: 'reasoning.effort' is not supported with this model.",
        param="reasoning.effort",
        code="unsupported_parameter",
    ),
    Rule(
        name="roles are known",
        broken=ask({"role": "tool", "content": "seen"}),
        kept=ask({"role": "developer", "content": "be brief"}),
        says="Invalid value: 'tool'. Supported values are: 'user', 'system', 'developer', and",
        param="input[0].role",
        code="invalid_value",
    ),
    Rule(
        name="what is included is known",
        broken=ask(include=["reasoning"]),
        kept=ask(include=["reasoning.encrypted_content"]),
        says="Invalid value: 'reasoning'.",
        param="include[0]",
        code="invalid_value",
    ),
    Rule(
        name="temperature is at most two",
        broken=ask(temperature=3),
        kept=ask(temperature=2),
        says="Invalid 'temperature': integer above maximum value.",
        param="temperature",
        code="integer_above_max_value",
    ),
]


@each(RULES)
def test_the_rule_holds(rule: Rule) -> None:
    assert_holds(rule, "responses")


def test_the_window_is_counted_at_four_characters_a_token() -> None:
    rule = Rule(
        name="the prompt fits the window",
        broken=ask({"role": "user", "content": "x" * 400}),
        kept=ask({"role": "user", "content": "x" * 300}),
        says="Your input exceeds the context window of this model.",
        param="input",
        code="context_length_exceeded",
    )
    small = Limits(gpt_models=(GptModel(name=PLAIN, window_tokens=100),))
    assert_holds(rule, "responses", limits=small)


INCLUDED: Json = {"include": ["reasoning.encrypted_content"], "model": REASONING, "store": False}


def thought(vendors: Emulator, *parts: Any) -> list[Json]:
    """A reasoning item and what it led to, as they may be sent back."""
    api = vendors.api("responses")
    body = ask(HELLO, **INCLUDED)
    answer = Answer(parts=(Thinking("hm"), *(parts or (Text("aha"),))))
    items: list[Json] = api.whole(body, answer, api.admit(body))["output"]
    return items


def test_reasoning_comes_back_with_what_it_led_to() -> None:
    vendors = Emulator()
    items = thought(vendors, ToolCall("look"))
    output = result(items[1]["call_id"])
    vendors.api("responses").admit(ask(HELLO, *items, output, HELLO, **INCLUDED))


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        (
            lambda items: ask(HELLO, items[0], HELLO, **INCLUDED),
            "of type 'reasoning' was provided without its required following item.",
        ),
        (
            lambda items: ask(HELLO, items[1], HELLO, **INCLUDED),
            "was provided without its required 'reasoning' item:",
        ),
        (
            lambda items: ask(HELLO, *items, HELLO, **{**INCLUDED, "model": "gpt-6"}),
            "could not be verified",
        ),
        (
            lambda items: ask(HELLO, {**items[0], "id": "rs_other"}, items[1], **INCLUDED),
            "could not be verified",
        ),
    ],
)
def test_reasoning_is_refused_alone_or_elsewhere(sent: Any, says: str) -> None:
    models = tuple(GptModel(name=name, reasons=True) for name in (REASONING, "gpt-6"))
    vendors = Emulator(limits=Limits(gpt_models=models))
    items = thought(vendors)
    with pytest.raises(Rejection) as caught:
        vendors.api("responses").admit(sent(items))
    assert says in caught.value.message


def test_a_message_without_its_id_needs_no_reasoning() -> None:
    vendors = Emulator()
    [_, message] = thought(vendors)
    message.pop("id")
    vendors.api("responses").admit(ask(HELLO, message, HELLO, **INCLUDED))
