"""The emulated Messages API refuses what Anthropic's refuses, and nothing else:
parameters, messages, marks."""

from __future__ import annotations

from tests.vendors.claude_requests import (
    HELLO,
    MARK,
    NEWER,
    OLDER,
    ask,
    assistant,
    text,
    user,
)
from tests.vendors.emulator import Limits
from tests.vendors.messages_rules import FORMER_VERSION
from tests.vendors.models import ClaudeModel
from tests.vendors.rule import Rule, assert_holds, each

RULES = [
    Rule(
        name="messages are required",
        broken={"model": OLDER, "max_tokens": 1},
        kept=ask(),
        says="messages: Field required",
    ),
    Rule(
        name="max_tokens is required",
        broken={"model": OLDER, "messages": [HELLO]},
        kept=ask(),
        says="max_tokens: Field required",
    ),
    Rule(
        name="max_tokens is at least one",
        broken=ask(max_tokens=0),
        kept=ask(max_tokens=1),
        says="max_tokens: Input should be greater than or equal to 1",
    ),
    Rule(
        name="max_tokens is bounded by the model",
        broken=ask(max_tokens=64_001),
        kept=ask(max_tokens=64_000),
        says="max_tokens: 64001 > 64000, which is the maximum allowed number of output tokens",
    ),
    Rule(
        name="fields are known",
        broken=ask(max_completion_tokens=5),
        kept=ask(stop_sequences=["."]),
        says="max_completion_tokens: Extra inputs are not permitted",
    ),
    Rule(
        name="fields are of their kind",
        broken=ask(stream="yes"),
        kept=ask(stream=True),
        says="stream: Input should be a valid boolean",
    ),
    Rule(
        name="the model exists",
        broken=ask(model="claude-nobody"),
        kept=ask(),
        says="model: claude-nobody",
        status=404,
    ),
    *(
        Rule(
            name=f"no model takes {name}",
            broken={**ask(), name: 1},
            kept=ask(),
            says=f"{name}: Extra inputs are not permitted",
        )
        for name in ("temperature", "top_p", "top_k")
    ),
    Rule(
        name="what the user says has no citations",
        broken=ask(user([text("hi", citations=[{"type": "page_location"}])])),
        kept=ask(user([text("hi", citations=[])])),
        says="messages.0.content.0.text.citations: Extra inputs are not permitted",
    ),
    Rule(
        name="there is a message",
        broken={**ask(), "messages": []},
        kept=ask(),
        says="messages: at least one message is required",
    ),
    Rule(
        name="the first message is the user's",
        broken=ask(assistant("hi"), HELLO),
        kept=ask(HELLO, assistant("hi"), HELLO),
        says='messages: first message must use the "user" role',
    ),
    Rule(
        name="system is no role",
        broken=ask({"role": "system", "content": "be brief"}, HELLO),
        kept=ask(system="be brief"),
        says='messages: Unexpected role "system"',
    ),
    Rule(
        name="roles are known",
        broken=ask(HELLO, {"role": "tool", "content": "seen"}),
        kept=ask(HELLO, user("again")),
        says="messages.1.role: Input should be 'user' or 'assistant'",
    ),
    Rule(
        name="content is not empty",
        broken=ask(user(""), assistant("hi"), HELLO),
        kept=ask(HELLO, assistant("hi"), HELLO),
        says="messages.0: all messages must have non-empty content except for the optional",
    ),
    Rule(
        name="a list of blocks is not empty",
        broken=ask(HELLO, assistant([]), HELLO),
        kept=ask(HELLO, assistant([text("hi")]), HELLO),
        says="messages.1: all messages must have non-empty content",
    ),
    Rule(
        name="only the last answer may be empty",
        broken=ask(user([text("")]), assistant([])),
        kept=ask(HELLO, assistant([])),
        says="messages: text content blocks must be non-empty",
    ),
    Rule(
        name="text is not empty",
        broken=ask(user([text("")])),
        kept=ask(user([text("a")])),
        says="messages: text content blocks must be non-empty",
    ),
    Rule(
        name="text is not white",
        broken=ask(user([text("hello"), text(" \n")])),
        kept=ask(user([text("hello"), text(" a\n")])),
        says="messages: text content blocks must contain non-whitespace text",
    ),
    Rule(
        name="the system prompt is not empty",
        broken=ask(system=[text("")]),
        kept=ask(system=[text("be brief")]),
        says="system: text content blocks must be non-empty",
    ),
    Rule(
        name="empty text carries no mark",
        broken=ask(user([text("hello"), text("", **MARK)])),
        kept=ask(user([text("hello"), text("a", **MARK)])),
        says="cache_control cannot be set for empty text blocks",
    ),
    Rule(
        name="blocks are known",
        broken=ask(user([{"type": "input_text", "text": "hello"}])),
        kept=ask(user([text("hello")])),
        says="messages.0.content.0: Input tag 'input_text' found using 'type' does not match",
    ),
    Rule(
        name="blocks have their fields",
        broken=ask(user([{"type": "text"}])),
        kept=ask(user([text("hello")])),
        says="messages.0.content.0.text.text: Field required",
    ),
    Rule(
        name="newer models take no prefill",
        broken=ask(HELLO, assistant("I say"), model=NEWER),
        kept=ask(HELLO, assistant("I say")),
        says="This model does not support assistant message prefill.",
    ),
    Rule(
        name="a prefill does not end with a space",
        broken=ask(HELLO, assistant("I say ")),
        kept=ask(HELLO, assistant("I say ,")),
        says="messages: final assistant content cannot end with trailing whitespace",
    ),
    Rule(
        name="stop sequences are not white",
        broken=ask(stop_sequences=["\n"]),
        kept=ask(stop_sequences=["\nHuman:"]),
        says="stop_sequences: each stop sequence must contain non-whitespace",
    ),
    Rule(
        name="there are at most four marks",
        broken=ask(user([text("a", **MARK) for _ in range(4)]), system=[text("s", **MARK)]),
        kept=ask(user([text("a", **MARK) for _ in range(3)]), system=[text("s", **MARK)]),
        says="A maximum of 4 blocks with cache_control may be provided. Found 5.",
    ),
    Rule(
        name="longer marks come first",
        broken=ask(
            user([text("a", **MARK), text("b", cache_control={"type": "ephemeral", "ttl": "1h"})])
        ),
        kept=ask(
            user([text("a", cache_control={"type": "ephemeral", "ttl": "1h"}), text("b", **MARK)])
        ),
        says="a ttl='1h' cache_control block must not come after a ttl='5m'",
    ),
    Rule(
        name="a mark is ephemeral",
        broken=ask(user([text("a", cache_control={"type": "persistent"})])),
        kept=ask(user([text("a", **MARK)])),
        says="messages.0.content.0.text.cache_control.type: Input should be 'ephemeral'",
    ),
    Rule(
        name="a mark of the whole request is one too",
        broken=ask(cache_control={"type": "ephemeral", "ttl": "2h"}),
        kept=ask(cache_control={"type": "ephemeral", "ttl": "1h"}),
        says="cache_control.ttl: Input should be '5m' or '1h'",
    ),
    Rule(
        name="the system prompt is text",
        broken=ask(system=[{"type": "image", "source": {}}]),
        kept=ask(system=[text("be brief")]),
        says="system.0.type: Input should be 'text'",
    ),
]


FORMER_RULES = [
    Rule(
        name="who thinks has no temperature",
        broken=ask(temperature=0.5, thinking={"type": "enabled", "budget_tokens": 1024}),
        kept=ask(temperature=1, thinking={"type": "enabled", "budget_tokens": 1024}),
        says="`temperature` may only be set to 1 when thinking is enabled",
    ),
    Rule(
        name="temperature is at most one",
        broken=ask(temperature=1.1),
        kept=ask(temperature=1),
        says="temperature: range: 0..1",
    ),
    Rule(
        name="newer models take no temperature",
        broken=ask(model=NEWER, temperature=0.5),
        kept=ask(temperature=0.5),
        says="`temperature` is deprecated for this model.",
    ),
]


@each(FORMER_RULES)
def test_rules_of_the_former_version(rule: Rule) -> None:
    assert_holds(rule, "messages", version=FORMER_VERSION)


@each(RULES)
def test_the_rule_holds(rule: Rule) -> None:
    assert_holds(rule, "messages")


SMALL = Limits(claude_models=(ClaudeModel(name=OLDER, window_tokens=100, output_tokens_max=100),))


@each(
    [
        Rule(
            name="the prompt fits the window",
            broken=ask(user("x" * 400), max_tokens=1),
            kept=ask(user("x" * 300), max_tokens=1),
            says="prompt is too long: 107 tokens > 100 maximum",
        ),
        Rule(
            name="the answer has room behind the prompt",
            broken=ask(user("x" * 200), max_tokens=60),
            kept=ask(user("x" * 200), max_tokens=40),
            says="input length and `max_tokens` exceed context limit: 57 + 60 > 100",
        ),
    ]
)
def test_the_window_is_counted_at_four_characters_a_token(rule: Rule) -> None:
    assert_holds(rule, "messages", limits=SMALL)
