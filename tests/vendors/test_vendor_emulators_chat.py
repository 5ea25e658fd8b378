"""The emulated chat completions refuse what OpenAI's refuse, and nothing else."""

from __future__ import annotations

from typing import Any

from tests.vendors.emulator import Limits
from tests.vendors.models import GptModel
from tests.vendors.rule import Json, Rule, assert_holds, each

PLAIN = "gpt-4.1"
REASONING = "gpt-5.6"

SCHEMA = {"type": "object", "properties": {"at": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}


def user(content: object) -> Json:
    return {"role": "user", "content": content}


def calling(*call_ids: str, **function: object) -> Json:
    called = {"name": "look", "arguments": "{}", **function}
    calls = [{"id": each, "type": "function", "function": called} for each in call_ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def result(call_id: str, content: object = "seen") -> Json:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def ask(*messages: Json, model: str = PLAIN, **fields: Any) -> Json:
    return {"model": model, "messages": list(messages) or [user("hello")], **fields}


HELLO = user("hello")

RULES = [
    Rule(
        name="newer models call tools only without reasoning",
        broken=ask(model=REASONING, tools=[TOOL]),
        kept=ask(model=REASONING, tools=[TOOL], reasoning_effort="none"),
        says="To use function tools, use /v1/responses or set reasoning_effort to 'none'.",
        param="reasoning_effort",
    ),
    Rule(
        name="an effort is one the model has",
        broken=ask(model=REASONING, reasoning_effort="minimal"),
        kept=ask(model=REASONING, reasoning_effort="max"),
        says="Unsupported value: 'minimal' is not supported with the 'gpt-5.6' model.",
        param="reasoning_effort",
        code="unsupported_value",
    ),
    Rule(
        name="messages are required",
        broken={"model": PLAIN},
        kept=ask(),
        says="Missing required parameter: 'messages'.",
        param="messages",
        code="missing_required_parameter",
    ),
    Rule(
        name="there is a message",
        broken={"model": PLAIN, "messages": []},
        kept=ask(),
        says="Invalid 'messages': empty array.",
        param="messages",
        code="empty_array",
    ),
    Rule(
        name="fields are known",
        broken=ask(max_output_tokens=5),
        kept=ask(seed=5),
        says="Unknown parameter: 'max_output_tokens'.",
        param="max_output_tokens",
        code="unknown_parameter",
    ),
    Rule(
        name="fields are of their kind",
        broken=ask(user(7)),
        kept=ask(user("7")),
        says="Invalid type for 'messages[0].content': expected one of a string or array of"
        " objects, but got an integer instead.",
        param="messages[0].content",
        code="invalid_type",
    ),
    Rule(
        name="the model exists",
        broken=ask(model="gpt-nobody"),
        kept=ask(),
        says="The model `gpt-nobody` does not exist or you do not have access to it.",
        status=404,
        code="model_not_found",
    ),
    Rule(
        name="roles are known",
        broken=ask(HELLO, {"role": "model", "content": "hi"}),
        kept=ask(HELLO, {"role": "assistant", "content": "hi"}, HELLO),
        says="Invalid value: 'model'. Supported values are: 'system', 'developer', 'user',",
        param="messages[1].role",
        code="invalid_value",
    ),
    Rule(
        name="a role is required",
        broken=ask({"content": "hello"}),
        kept=ask(HELLO),
        says="Missing required parameter: 'messages[0].role'.",
        param="messages[0].role",
        code="missing_required_parameter",
    ),
    Rule(
        name="fields of messages are known",
        broken=ask(HELLO, {"role": "assistant", "content": "hi", "reasoning_content": "hm"}),
        kept=ask(HELLO, {"role": "assistant", "content": "hi", "refusal": None}),
        says="Unknown parameter: 'messages[1].reasoning_content'.",
        param="messages[1].reasoning_content",
        code="unknown_parameter",
    ),
    Rule(
        name="content is there",
        broken=ask(HELLO, {"role": "assistant", "content": None}),
        kept=ask(HELLO, {"role": "assistant", "content": ""}),
        says="Invalid value for 'content': expected a string, got null.",
        param="messages.[1].content",
    ),
    Rule(
        name="parts are there",
        broken=ask(user([])),
        kept=ask(user([{"type": "text", "text": "hello"}])),
        says="Invalid 'messages[0].content': empty array.",
        param="messages[0].content",
        code="empty_array",
    ),
    Rule(
        name="parts are of the role",
        broken=ask({"role": "system", "content": [{"type": "image_url", "image_url": {}}]}),
        kept=ask(user([{"type": "image_url", "image_url": {"url": "data:,"}}])),
        says="Invalid value: 'image_url'. Supported values are: 'text'.",
        param="messages[0].content[0]",
        code="invalid_value",
    ),
    Rule(
        name="calls are there",
        broken=ask(HELLO, {"role": "assistant", "content": "hi", "tool_calls": []}),
        kept=ask(HELLO, calling("a"), result("a")),
        says="Invalid 'messages[1].tool_calls': empty array.",
        param="messages[1].tool_calls",
        code="empty_array",
    ),
    Rule(
        name="a result follows a call",
        broken=ask(HELLO, result("a")),
        kept=ask(HELLO, calling("a"), result("a")),
        says="messages with role 'tool' must be a response to a preceeding message with"
        " 'tool_calls'.",
        param="messages.[1].role",
    ),
    Rule(
        name="a result follows its call at once",
        broken=ask(HELLO, calling("a"), HELLO, result("a")),
        kept=ask(HELLO, calling("a"), result("a"), HELLO),
        says="The following tool_call_ids did not have response messages: a",
        param="messages.[2].role",
    ),
    Rule(
        name="all calls are answered",
        broken=ask(HELLO, calling("a", "b"), result("b"), HELLO),
        kept=ask(HELLO, calling("a", "b"), result("b"), result("a"), HELLO),
        says="did not have response messages: a",
        param="messages.[3].role",
    ),
    Rule(
        name="the last message is no call",
        broken=ask(HELLO, calling("a", "b")),
        kept=ask(HELLO, calling("a"), result("a")),
        says="did not have response messages: a, b",
        param="messages.[1].role",
    ),
    Rule(
        name="a result names a call",
        broken=ask(HELLO, calling("a"), result("b")),
        kept=ask(HELLO, calling("b"), result("b")),
        says="'tool_call_id' of 'b' not found in 'tool_calls' of previous message.",
        param="messages.[2].tool_call_id",
    ),
    Rule(
        name="a call has one result",
        broken=ask(HELLO, calling("a"), result("a"), result("a")),
        kept=ask(HELLO, calling("a"), result("a"), calling("a"), result("a")),
        says="Duplicate value for 'tool_call_id' of 'a'",
        param="messages.[3].tool_call_id",
    ),
    Rule(
        name="ids of one message are unique",
        broken=ask(HELLO, calling("a", "a"), result("a")),
        kept=ask(HELLO, calling("a", "b"), result("a"), result("b")),
        says="Duplicate value for 'tool_call_id' of 'a'",
        param="messages.[1].tool_call_id",
    ),
    Rule(
        name="ids of calls are short",
        broken=ask(HELLO, calling("i" * 41), result("i" * 41)),
        kept=ask(HELLO, calling("i" * 40), result("i" * 40)),
        says="Invalid 'messages[1].tool_calls[0].id': string too long. Expected a string with"
        " maximum length 40, but got a string with length 41 instead.",
        param="messages[1].tool_calls[0].id",
        code="string_above_max_length",
    ),
    Rule(
        name="names of calls are plain",
        broken=ask(HELLO, calling("a", name="look at"), result("a")),
        kept=ask(HELLO, calling("a", name="look-at"), result("a")),
        says="Invalid 'messages[1].tool_calls[0].function.name': string does not match pattern.",
        param="messages[1].tool_calls[0].function.name",
        code="invalid_value",
    ),
    Rule(
        name="arguments are JSON",
        broken=ask(HELLO, calling("a", arguments='{"at": '), result("a")),
        kept=ask(HELLO, calling("a", arguments='{"at": 1}'), result("a")),
        says="Failed to parse tool call arguments as JSON",
        status=500,
        param="messages[1].tool_calls[0].function.arguments",
    ),
    Rule(
        name="arguments are a text",
        broken=ask(HELLO, calling("a", arguments={}), result("a")),
        kept=ask(HELLO, calling("a", arguments="{}"), result("a")),
        says="expected a string, but got an object instead.",
        param="messages[1].tool_calls[0].function.arguments",
        code="invalid_type",
    ),
    Rule(
        name="temperature is at most two",
        broken=ask(temperature=2.5),
        kept=ask(temperature=2),
        says="Invalid 'temperature': decimal above maximum value. Expected a value <= 2, but got"
        " 2.5 instead.",
        param="temperature",
        code="decimal_above_max_value",
    ),
    Rule(
        name="who reasons has no temperature",
        broken=ask(model=REASONING, temperature=0.2),
        kept=ask(model=REASONING, temperature=1),
        says="Unsupported value: 'temperature' does not support 0.2 with this model.",
        param="temperature",
        code="unsupported_value",
    ),
    Rule(
        name="who reasons has max_completion_tokens",
        broken=ask(model=REASONING, max_tokens=100),
        kept=ask(model=REASONING, max_completion_tokens=100),
        says="'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
        param="max_tokens",
        code="unsupported_parameter",
    ),
    Rule(
        name="who does not reason makes no effort",
        broken=ask(reasoning_effort="low"),
        kept=ask(model=REASONING, reasoning_effort="low"),
        says="Unrecognized request argument supplied: reasoning_effort",
    ),
    Rule(
        name="max_tokens is bounded by the model",
        broken=ask(max_tokens=32_769),
        kept=ask(max_tokens=32_768),
        says="max_tokens is too large: 32769. This model supports at most 32768",
        param="max_tokens",
    ),
    Rule(
        name="there is one choice",
        broken=ask(n=2),
        kept=ask(n=1),
        says="Invalid 'n': integer above maximum value. Expected a value <= 1, but got 2 instead.",
        param="n",
        code="integer_above_max_value",
    ),
    Rule(
        name="options of a stream are known",
        broken=ask(stream=True, stream_options={"usage": True}),
        kept=ask(stream=True, stream_options={"include_usage": False}),
        says="Unknown parameter: 'stream_options.usage'.",
        param="stream_options.usage",
        code="unknown_parameter",
    ),
    Rule(
        name="options of a stream ask for one",
        broken=ask(stream_options={"include_usage": True}),
        kept=ask(stream=True, stream_options={"include_usage": True}),
        says="The 'stream_options' parameter is only allowed when 'stream' is enabled.",
        param="stream_options",
    ),
]


@each(RULES)
def test_the_rule_holds(rule: Rule) -> None:
    assert_holds(rule, "chat")


def test_the_window_is_counted_at_four_characters_a_token() -> None:
    rule = Rule(
        name="the prompt fits the window",
        broken=ask(user("x" * 400)),
        kept=ask(user("x" * 300)),
        says="This model's maximum context length is 100 tokens. However, your messages resulted"
        " in 109 tokens. Please reduce the length of the messages.",
        param="messages",
        code="context_length_exceeded",
    )
    small = Limits(gpt_models=(GptModel(name=PLAIN, window_tokens=100),))
    assert_holds(rule, "chat", limits=small)
