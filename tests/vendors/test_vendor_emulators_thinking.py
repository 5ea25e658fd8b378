"""Claude thinks in one conversation and for one model; its emulator holds everybody to it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.vendors.answers import Answer, Text, Thinking, ToolCall
from tests.vendors.claude_requests import (
    HELLO,
    MARK,
    NEWER,
    ONE_CALL,
    Json,
    ask,
    assistant,
    result,
    text,
    user,
    with_tools,
)
from tests.vendors.emulator import Emulator
from tests.vendors.rejections import Rejection
from tests.vendors.rule import Rule, assert_holds, each

RULES = [
    Rule(
        name="who thinks is not forced to call",
        broken=with_tools(
            tool_choice={"type": "any"}, thinking={"type": "enabled", "budget_tokens": 1024}
        ),
        kept=with_tools(
            tool_choice={"type": "auto"}, thinking={"type": "enabled", "budget_tokens": 1024}
        ),
        says="Thinking may not be enabled when tool_choice forces tool use.",
    ),
    Rule(
        name="newer models take no budget",
        broken=ask(model=NEWER, thinking={"type": "enabled", "budget_tokens": 1024}),
        kept=ask(model=NEWER, thinking={"type": "adaptive"}),
        says='"thinking.type.enabled" is not supported for this model.',
    ),
    Rule(
        name="older models take nothing but a budget",
        broken=ask(thinking={"type": "adaptive"}),
        kept=ask(thinking={"type": "enabled", "budget_tokens": 1024}),
        says="adaptive thinking is not supported on this model",
    ),
    Rule(
        name="a budget is at least 1024",
        broken=ask(thinking={"type": "enabled", "budget_tokens": 1023}),
        kept=ask(thinking={"type": "enabled", "budget_tokens": 1024}),
        says="thinking.enabled.budget_tokens: Input should be greater than or equal to 1024",
    ),
    Rule(
        name="a budget is below max_tokens",
        broken=ask(thinking={"type": "enabled", "budget_tokens": 2000}),
        kept=ask(thinking={"type": "enabled", "budget_tokens": 1999}),
        says="`max_tokens` must be greater than `thinking.budget_tokens`.",
    ),
    Rule(
        name="a tool loop begins with thinking where that is on",
        broken=with_tools(
            *ONE_CALL, user([result()]), thinking={"type": "enabled", "budget_tokens": 1024}
        ),
        kept=with_tools(*ONE_CALL, user([result()]), thinking={"type": "disabled"}),
        says="messages.1.content.0.type: Expected `thinking` or `redacted_thinking`, but found"
        " `tool_use`.",
    ),
    Rule(
        name="a signature is not made up",
        broken=ask(
            HELLO,
            assistant([{"type": "thinking", "thinking": "hm", "signature": "aGVsbG8="}, text("a")]),
            HELLO,
        ),
        kept=ask(HELLO, assistant([text("hm"), text("a")]), HELLO),
        says="messages.1.content.0: Invalid `signature` in `thinking` block",
    ),
    Rule(
        name="ways to think are known",
        broken=ask(thinking={"type": "deep"}),
        kept=ask(thinking={"type": "disabled"}),
        says="thinking.type: Input should be 'enabled', 'adaptive' or 'disabled'",
    ),
    Rule(
        name="newer models can't be told not to think",
        broken=ask(model=NEWER, thinking={"type": "disabled"}),
        kept=ask(model=NEWER, thinking={"type": "adaptive"}),
        says='"thinking.type.disabled" is not supported for this model.',
    ),
    Rule(
        name="thinking adaptively has no budget",
        broken=ask(model=NEWER, thinking={"type": "adaptive", "budget_tokens": 1024}),
        kept=ask(model=NEWER, thinking={"type": "adaptive", "display": "summarized"}),
        says="thinking.adaptive.budget_tokens: Extra inputs are not permitted",
    ),
]


@each(RULES)
def test_the_rule_holds(rule: Rule) -> None:
    assert_holds(rule, "messages")


def thought(vendors: Emulator, body: Json, *parts: Any) -> list[Json]:
    """What the model answered to that, as content to be sent back."""
    api = vendors.api("messages")
    answer = Answer(parts=parts or (Thinking("hm"), Text("aha")))
    content: list[Json] = api.whole(body, answer, api.admit(body))["content"]
    return content


def test_thinking_comes_back_to_the_conversation_it_was_made_in() -> None:
    vendors = Emulator()
    first = ask(HELLO, system="be brief")
    content = thought(vendors, first)
    vendors.api("messages").admit(ask(HELLO, assistant(content), HELLO, system="be brief"))


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (lambda content: ask(HELLO, assistant(content), HELLO), "The `system` prompt differs"),
        (
            lambda content: with_tools(HELLO, assistant(content), HELLO, system="be brief"),
            "The `tools` list differs",
        ),
        (
            lambda content: ask(user("hello!"), assistant(content), HELLO, system="be brief"),
            "The messages before this block differ",
        ),
        (
            lambda content: ask(HELLO, assistant([text("so"), *content]), HELLO, system="be brief"),
            "The block is bound to a different conversation",
        ),
        (
            lambda content: ask(
                HELLO, assistant(content), HELLO, system="be brief", model="claude-haiku-4-5"
            ),
            "Invalid `signature` in `thinking` block",
        ),
        (
            lambda content: ask(
                HELLO,
                assistant([{**content[0], "thinking": "hm!"}, content[1]]),
                HELLO,
                system="be brief",
            ),
            "blocks in the latest assistant message cannot be modified",
        ),
    ],
)
def test_thinking_is_refused_where_anything_before_it_or_in_it_has_changed(
    changed: Any, says: str
) -> None:
    vendors = Emulator()
    content = thought(vendors, ask(HELLO, system="be brief"))
    with pytest.raises(Rejection) as caught:
        vendors.api("messages").admit(changed(content))
    assert caught.value.message.startswith("messages.1.content.")
    assert says in caught.value.message


def test_cache_marks_are_no_change_before_thinking() -> None:
    vendors = Emulator()
    content = thought(vendors, ask(HELLO))
    vendors.api("messages").admit(ask(user([text("hello", **MARK)]), assistant(content), HELLO))


def test_redacted_thinking_is_bound_as_well() -> None:
    vendors = Emulator()
    content = thought(vendors, ask(HELLO), Thinking("secret", redacted=True), Text("aha"))
    vendors.api("messages").admit(ask(HELLO, assistant(content), HELLO))
    with pytest.raises(Rejection, match="Invalid `data` in `redacted_thinking` block"):
        vendors.api("messages").admit(ask(user("hi"), assistant(content), HELLO))


def test_a_tool_loop_with_thinking_goes_round() -> None:
    vendors = Emulator()
    budget = {"type": "enabled", "budget_tokens": 1024}
    content = thought(
        vendors, with_tools(HELLO, thinking=budget), Thinking("hm"), ToolCall("look", '{"at": 1}')
    )
    call_id = content[1]["id"]
    vendors.api("messages").admit(
        with_tools(HELLO, assistant(content), user([result(call_id)]), thinking=budget)
    )


def test_thinking_is_not_the_last_block() -> None:
    vendors = Emulator()
    content = thought(vendors, ask(HELLO))
    with pytest.raises(Rejection, match="final block in an assistant message cannot be `thinking`"):
        vendors.api("messages").admit(ask(HELLO, assistant(content[:1]), HELLO))
