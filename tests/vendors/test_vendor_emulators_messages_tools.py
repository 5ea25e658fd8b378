"""The emulated Messages API refuses what Anthropic's refuses, and nothing else:
tools, calls and their results."""

from __future__ import annotations

from tests.vendors.claude_requests import (
    HELLO,
    ONE_CALL,
    TOOL,
    ask,
    assistant,
    call,
    offering,
    result,
    schema,
    text,
    user,
    with_tools,
)
from tests.vendors.rule import Rule, assert_holds, each

RULES = [
    Rule(
        name="text in a result is not empty",
        broken=with_tools(*ONE_CALL, user([result(content=[text("")])])),
        kept=with_tools(*ONE_CALL, user([result(content="")])),
        says="messages: text content blocks must be non-empty",
    ),
    Rule(
        name="users make no calls",
        broken=with_tools(user([call()])),
        kept=with_tools(*ONE_CALL, user([result()])),
        says="messages.0: `tool_use` blocks can only be in `assistant` messages",
    ),
    Rule(
        name="a call is answered at once",
        broken=with_tools(*ONE_CALL, HELLO, assistant("hi"), user([result()])),
        kept=with_tools(*ONE_CALL, user([result()])),
        says="messages.1: `tool_use` ids were found without `tool_result` blocks immediately"
        " after: toolu_1.",
    ),
    Rule(
        name="the last message is no call",
        broken=with_tools(*ONE_CALL),
        kept=with_tools(*ONE_CALL, user([result()])),
        says="messages.1: `tool_use` ids were found without",
    ),
    Rule(
        name="all calls are answered together",
        broken=with_tools(
            HELLO, assistant([call("a"), call("b")]), user([result("a")]), user([result("b")])
        ),
        kept=with_tools(HELLO, assistant([call("a"), call("b")]), user([result("b"), result("a")])),
        says="immediately after: b.",
    ),
    Rule(
        name="results come first",
        broken=with_tools(*ONE_CALL, user([text("look:"), result()])),
        kept=with_tools(*ONE_CALL, user([result(), text("look:")])),
        says="messages.1: `tool_use` ids were found without",
    ),
    Rule(
        name="a result belongs to a call",
        broken=with_tools(HELLO, assistant("hi"), user([text("a"), result("toolu_9")])),
        kept=with_tools(HELLO, assistant([call("toolu_9")]), user([result("toolu_9")])),
        says="messages.2.content.1: unexpected `tool_use_id` found in `tool_result` blocks:"
        " toolu_9.",
    ),
    Rule(
        name="a call has one result",
        broken=with_tools(*ONE_CALL, user([result(), result()])),
        kept=with_tools(*ONE_CALL, user([result()])),
        says="messages.2.content.1: each tool_use must have a single result.",
    ),
    Rule(
        name="ids are unique",
        broken=with_tools(*ONE_CALL, user([result()]), *ONE_CALL[1:], user([result()])),
        kept=with_tools(*ONE_CALL, user([result()]), assistant([call("b")]), user([result("b")])),
        says="messages.3.content.0: `tool_use` ids must be unique",
    ),
    Rule(
        name="ids have plain characters",
        broken=with_tools(HELLO, assistant([call("a:1")]), user([result("a:1")])),
        kept=with_tools(HELLO, assistant([call("a-1")]), user([result("a-1")])),
        says="messages.1.content.0.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'",
    ),
    Rule(
        name="names of calls are plain",
        broken=with_tools(HELLO, assistant([call(name="a b")]), user([result()])),
        kept=with_tools(HELLO, assistant([call(name="a_b")]), user([result()])),
        says="messages.1.content.0.tool_use.name: String should match pattern",
    ),
    Rule(
        name="input is an object",
        broken=with_tools(HELLO, assistant([call(input="{}")]), user([result()])),
        kept=with_tools(HELLO, assistant([call(input={"at": 1})]), user([result()])),
        says="messages.1.content.0.tool_use.input: Input should be a valid dictionary",
    ),
    Rule(
        name="a failure is not silent",
        broken=with_tools(*ONE_CALL, user([result(is_error=True, content="")])),
        kept=with_tools(*ONE_CALL, user([result(is_error=True, content="no")])),
        says="content cannot be empty if `is_error` is true",
    ),
    Rule(
        name="calls ask for tools",
        broken=ask(*ONE_CALL, user([result()])),
        kept=with_tools(*ONE_CALL, user([result()])),
        says="must define tools",
    ),
    Rule(
        name="names of tools are plain",
        broken=offering(name="look at"),
        kept=offering(name="look-at"),
        says="tools.0.custom.name: String should match pattern",
    ),
    Rule(
        name="names of tools are short",
        broken=offering(name="n" * 65),
        kept=offering(name="n" * 64),
        says="tools.0.custom.name: String should match pattern",
    ),
    Rule(
        name="names of tools are unique",
        broken=ask(tools=[TOOL, TOOL]),
        kept=ask(tools=[TOOL, {**TOOL, "name": "listen"}]),
        says="tools: Tool names must be unique.",
    ),
    Rule(
        name="a schema is an object's",
        broken=offering(input_schema={"type": "string"}),
        kept=offering(input_schema={"type": "object"}),
        says="tools.0.custom.input_schema.type: Input should be 'object'",
    ),
    Rule(
        name="a schema has a type",
        broken=offering(input_schema={}),
        kept=schema(),
        says="tools.0.custom.input_schema.type: Field required",
    ),
    Rule(
        name="a schema offers no choice at its top",
        broken=schema(anyOf=[{}]),
        kept=schema(properties={"a": {"anyOf": [{}]}}),
        says="input_schema does not support oneOf, allOf, or anyOf at the top level",
    ),
    Rule(
        name="properties have plain names",
        broken=schema(properties={"a b": {}}),
        kept=schema(properties={"a.b": {}}),
        says="input_schema.properties: Property keys should match pattern",
    ),
    Rule(
        name="a choice of tools asks for tools",
        broken=ask(tool_choice={"type": "auto"}),
        kept=with_tools(tool_choice={"type": "auto"}),
        says="tool_choice may only be specified while providing tools",
    ),
    Rule(
        name="ids of results have plain characters",
        broken=with_tools(*ONE_CALL, user([result("a b")])),
        kept=with_tools(*ONE_CALL, user([result()])),
        says="messages.2.content.0.tool_result.tool_use_id: String should match pattern",
    ),
    Rule(
        name="results hold no calls",
        broken=with_tools(*ONE_CALL, user([result(content=[call()])])),
        kept=with_tools(*ONE_CALL, user([result(content=[text("a")])])),
        says="messages.2.content.0.tool_result.content.0.type: Input should be 'text', 'image'",
    ),
    Rule(
        name="tools are the client's own",
        broken=offering(type="bash_20250124"),
        kept=offering(type="custom"),
        says="tools.0.custom.type: Input should be 'custom'",
    ),
    Rule(
        name="ways to choose are known",
        broken=with_tools(tool_choice={"type": "required"}),
        kept=with_tools(tool_choice={"type": "any"}),
        says="tool_choice.type: Input should be 'auto', 'any', 'tool' or 'none'",
    ),
]


@each(RULES)
def test_the_rule_holds(rule: Rule) -> None:
    assert_holds(rule, "messages")
