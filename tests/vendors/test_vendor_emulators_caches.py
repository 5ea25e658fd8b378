"""The emulators count what was cached, and take back whatever they have said."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.vendors.answers import Answer, Part, Text, Thinking, ToolCall
from tests.vendors.caching import Usage
from tests.vendors.emulator import Emulator, Limits

Json = dict[str, Any]

MARK = {"cache_control": {"type": "ephemeral"}}
CLAUDE_TOOL = {"name": "look", "input_schema": {"type": "object", "properties": {}}}
GPT_FUNCTION = {"name": "look", "parameters": {"type": "object", "properties": {}}}


def text(content: str, **more: object) -> Json:
    return {"type": "text", "text": content, **more}


def ask_claude(*contents: list[Json], **fields: Any) -> Json:
    roles = ("user", "assistant")
    messages = [
        {"role": roles[place % 2], "content": content} for place, content in enumerate(contents)
    ]
    return {"model": "claude-opus-4-5", "max_tokens": 9, "messages": messages, **fields}


def usages(*bodies: Json, tokens_min: int = 1024) -> list[Usage]:
    vendors = Emulator(limits=Limits(cached_tokens_min=tokens_min))
    return [vendors.api("messages").admit(body) for body in bodies]


LONG = "x" * 8000


def test_a_marked_prefix_is_written_once_and_read_ever_after() -> None:
    first = ask_claude([text(LONG, **MARK)])
    longer = ask_claude([text(LONG)], [text("aha")], [text("and?", **MARK)])
    written, read = usages(first, longer)
    assert written.written_tokens == written.input_tokens
    assert written.read_tokens == 0
    assert read.read_tokens == written.input_tokens
    assert read.read_tokens + read.written_tokens == read.input_tokens


def test_without_a_mark_nothing_is_cached() -> None:
    for usage in usages(ask_claude([text(LONG)]), ask_claude([text(LONG)])):
        assert (usage.read_tokens, usage.written_tokens) == (0, 0)


def test_what_follows_the_last_mark_is_paid_in_full() -> None:
    [usage] = usages(ask_claude([text(LONG, **MARK), text("y" * 4000)]))
    assert usage.input_tokens - usage.written_tokens > 1000


def test_one_changed_character_before_the_mark_is_a_miss() -> None:
    _, missed = usages(
        ask_claude([text(LONG, **MARK)], system="be brief"),
        ask_claude([text(LONG, **MARK)], system="be  brief"),
    )
    assert missed.read_tokens == 0


def test_a_changed_message_leaves_the_system_prompt_cached() -> None:
    system = [text(LONG, **MARK)]
    first, second = usages(
        ask_claude([text("a", **MARK)], system=system),
        ask_claude([text("b", **MARK)], system=system),
    )
    assert 0 < second.read_tokens < second.input_tokens
    assert second.read_tokens + second.written_tokens == first.input_tokens


def test_another_choice_of_tools_leaves_tools_cached_and_messages_not() -> None:
    tools = [{**CLAUDE_TOOL, "description": LONG, **MARK}]
    _, second = usages(
        ask_claude([text(LONG, **MARK)], tools=tools),
        ask_claude([text(LONG, **MARK)], tools=tools, tool_choice={"type": "none"}),
    )
    assert 2000 < second.read_tokens < 2100


def test_a_short_prefix_is_not_cached() -> None:
    short = ask_claude([text("x" * 3000, **MARK)])
    assert [usage.written_tokens for usage in usages(short, short)] == [0, 0]


def test_a_mark_sees_twenty_blocks_back_and_no_further() -> None:
    first = ask_claude([text(LONG, **MARK)])

    def grown(blocks: int) -> Json:
        more = [text(f"block {number}") for number in range(blocks)]
        more[-1] |= MARK
        return ask_claude([text(LONG), *more])

    assert usages(first, grown(19))[1].read_tokens > 0
    assert usages(first, grown(20))[1].read_tokens == 0


def test_openai_reads_the_longest_prefix_in_steps_of_128_tokens() -> None:
    api = Emulator().api("chat")

    def ask(content: str) -> Usage:
        return api.admit({"model": "gpt-4.1", "messages": [{"role": "user", "content": content}]})

    assert ask("x" * 5000).read_tokens == 0
    read = ask("x" * 5000 + "y" * 5000).read_tokens
    assert read % 128 == 0
    assert 1250 - 128 < read < 1300
    assert ask("x" * 4000 + "z" * 5000).read_tokens == 0  # below 1,024


PARTS: st.SearchStrategy[Part] = st.one_of(
    st.builds(Text, st.text(min_size=1, alphabet="ab é👋").filter(str.strip)),
    st.builds(Thinking, st.text(alphabet="ab ")),
    st.just(ToolCall("look", '{"at": 1}')),
)
ANSWERS = st.lists(
    st.lists(PARTS, min_size=1, max_size=3).filter(
        lambda parts: not isinstance(parts[-1], Thinking)
    ),
    min_size=1,
    max_size=3,
)


@given(ANSWERS)
def test_claude_accepts_its_own_outputs_and_reads_them_from_the_cache(
    answers: list[list[Part]],
) -> None:
    vendors = Emulator(limits=Limits(cached_tokens_min=0))
    api = vendors.api("messages")
    contents: list[list[Json]] = [[text("go")]]
    sent = 0
    for parts in answers:
        body = ask_claude(*contents, tools=[CLAUDE_TOOL], cache_control={"type": "ephemeral"})
        usage = api.admit(body)
        assert usage.read_tokens == sent
        assert usage.read_tokens + usage.written_tokens == usage.input_tokens
        sent = usage.input_tokens
        content = api.whole(body, Answer(parts=tuple(parts)), usage)["content"]
        results = [
            {"type": "tool_result", "tool_use_id": block["id"], "content": "seen"}
            for block in content
            if block["type"] == "tool_use"
        ]
        contents += [content, [*results, text("go on")]]


@given(ANSWERS)
def test_gpt_accepts_its_own_outputs(answers: list[list[Part]]) -> None:
    chat, responses = (Emulator().api(name) for name in ("chat", "responses"))
    messages: list[Json] = [{"role": "user", "content": "go"}]
    items = list(messages)
    for parts in answers:
        answer = Answer(parts=tuple(parts))
        body: Json = {"model": "gpt-5.2", "messages": messages}
        body["tools"] = [{"type": "function", "function": GPT_FUNCTION}]
        message = chat.whole(body, answer, chat.admit(body))["choices"][0]["message"]
        messages = [*messages, message]
        for call in message.get("tool_calls", []):
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": "seen"})
        asked: Json = {"model": "gpt-5.6", "input": items}
        asked["include"] = ["reasoning.encrypted_content"]
        output = responses.whole(asked, answer, responses.admit(asked))["output"]
        calls = [item["call_id"] for item in output if item["type"] == "function_call"]
        items = [*items, *output]
        for call_id in calls:
            items.append({"type": "function_call_output", "call_id": call_id, "output": "seen"})
