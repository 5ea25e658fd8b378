"""Chat completions, without a server: what is sent, and what is made of an answer."""

from __future__ import annotations

from typing import Any

import pytest
from tests.server.providers.openai_stage import (
    CHAT,
    LOOK,
    PLAIN,
    REASONER,
    Talk,
    accumulated,
    calls_of,
    parsed,
    request,
)
from tests.support.vendor_models import rendered_in
from tests.vendors.answers import Refusal, Text, Thinking, ToolCall
from tests.vendors.sse import Wire

from nplt_protocol.json_text import JsonObject
from nplt_server.errors import ProviderRefused, ProviderUnavailable
from nplt_server.providers import OpaquePiece, ReasoningPiece, Stopped, TextPiece, UsageReport
from nplt_server.providers.openai_chat import ChatApi
from nplt_server.request_form import RequestForm
from nplt_server.tools import ToolDescription

DONE = b"[DONE]"


def _chunk(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def _call(arguments: str, **fields: Any) -> dict[str, Any]:
    function = {"arguments": arguments}
    if "name" in fields:
        function["name"] = fields.pop("name")
    return {**fields, "function": function}


# What is sent


def test_a_round_of_tools_is_admitted_and_extends_what_was_sent_before() -> None:
    talk = Talk(CHAT)
    talk.prompt("look at both")
    talk.answers(Text("I will."), ToolCall("look", '{"at":"a"}'), ToolCall("look", '{"at":"b"}'))
    talk.runs_tools()
    talk.answers(Text("seen"))
    talk.prompt("thanks")
    talk.answers(Text("welcome"))
    for earlier, later in zip(talk.bodies, talk.bodies[1:], strict=False):
        assert later["messages"][: len(earlier["messages"])] == earlier["messages"]
    assert [message["role"] for message in talk.bodies[-1]["messages"]] == [
        "system", "user", "assistant", "tool", "tool", "assistant", "user",
    ]  # fmt: skip


def test_most_of_a_growing_conversation_is_served_from_the_cache() -> None:
    talk = Talk(CHAT)
    for number in range(20):
        talk.prompt(f"question {number} " + "about many things " * 40)
        talk.answers(Text("an answer " * 40))
    read = sum(usage.read_tokens for usage in talk.usages)
    assert read > 0.8 * sum(usage.input_tokens for usage in talk.usages)


@pytest.mark.parametrize(
    ("model", "sent", "left_out"),
    [(REASONER, "reasoning_effort", "temperature"), (PLAIN, "temperature", "reasoning_effort")],
)
def test_a_model_is_asked_for_what_it_takes(model: str, sent: str, left_out: str) -> None:
    asked = request(model=model, options={"temperature": 0.5, "effort": "low"})
    body = rendered_in(CHAT, asked).body
    assert sent in body
    assert left_out not in body
    Talk(CHAT).api.admit(body)


def test_an_unknown_model_is_sent_every_option() -> None:
    asked = request(model="qwen3:8b", options={"temperature": 9, "effort": "low"})
    body = rendered_in(CHAT, asked).body
    assert (body["temperature"], body["reasoning_effort"]) == (2.0, "low")


@pytest.mark.parametrize("options", [{"temperature": True}, {"temperature": "hot", "effort": 3}])
def test_options_that_make_no_sense_are_left_out(options: dict[str, Any]) -> None:
    body = rendered_in(CHAT, request(model="any", options=options)).body
    assert not {"temperature", "reasoning_effort"} & body.keys()


@pytest.mark.parametrize(("wanted", "sent"), [(100, 100), (9999, 4096), (-1, 4096), (True, 4096)])
def test_an_answer_is_as_long_as_the_prompt_wants_and_the_settings_let_it(
    wanted: int, sent: int
) -> None:
    body = rendered_in(CHAT, request(options={"output_tokens": wanted})).body
    assert body["max_completion_tokens"] == sent


def test_older_servers_get_max_tokens_in_the_older_field() -> None:
    body = rendered_in(ChatApi(form=RequestForm(tokens_field="max_tokens")), request()).body
    assert body["max_tokens"] == 4096
    assert "max_completion_tokens" not in body


def test_tools_with_odd_names_and_schemas_are_admitted_and_called_by_their_own_name() -> None:
    odd = ToolDescription(name="files.read/é" * 9, description="long " * 999, parameters={})
    rendered = rendered_in(CHAT, request(tools=(LOOK, odd)))
    Talk(CHAT).api.admit(rendered.body)
    name = next(name for name, own in rendered.own_names.items() if own == odd.name)
    parser = CHAT.parser(rendered)
    chunk = (
        b'{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"c","function":{"name":"%s"}}]}}]}'
    )
    assert calls_of(accumulated(parser.feed(chunk % name.encode()))) == [(odd.name, "")]


def test_every_message_knows_its_entries() -> None:
    talk = Talk(CHAT)
    talk.prompt("look")
    talk.answers(ToolCall("look"))
    talk.runs_tools()
    talk.prompt("and now?")
    assert rendered_in(CHAT, request(*talk.context)).seqs == ((), (2,), (3,), (4,), (5,))


# What is made of an answer


def test_calls_come_in_pieces_side_by_side() -> None:
    deltas = parsed(
        CHAT,
        _chunk(tool_calls=[_call("", index=0, id="a", name="look")]),
        _chunk(tool_calls=[_call("", index=1, id="b", name="find")]),
        _chunk(tool_calls=[_call('{"x"', index=1), _call('{"y"', index=0)]),
        _chunk(tool_calls=[_call(":1}", index=0), _call(":2}", index=1)]),
        _chunk("tool_calls"),
        DONE,
    )
    assert calls_of(accumulated(deltas)) == [("look", '{"y":1}'), ("find", '{"x":2}')]
    assert deltas[-1] == Stopped(reason="tool_calls")


@pytest.mark.parametrize(
    "calls",
    [
        [_call("{}", id="a", name="look"), _call("{}", id="b", name="look")],
        [_call("{}", id="", name="look"), _call("{}", id="", name="look")],
        [_call("{}", index=0, id="a", name="look"), _call("{}", index=0, id="b", name="look")],
        [
            _call("{", index=0, id="a", name="look"), _call("}", index=0, id="a", name="look"),
            _call("{}", index=1, id="b", name="look"),
        ],
    ],
    ids=["no index", "no index and no id", "always index 0", "a name in every piece"],
)  # fmt: skip
def test_servers_tell_two_calls_apart_in_their_own_ways(calls: list[dict[str, Any]]) -> None:
    deltas = parsed(CHAT, *(_chunk(tool_calls=[call]) for call in calls), _chunk("stop"), DONE)
    assert calls_of(accumulated(deltas)) == [("look", "{}"), ("look", "{}")]
    assert deltas[-1] == Stopped(reason="tool_calls")


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_fields_of_other_servers_are_parsed(field: str) -> None:
    deltas = parsed(CHAT, _chunk(**{field: "hm"}), _chunk("stop", content="yes"), DONE)
    assert deltas == [ReasoningPiece(text="hm"), TextPiece(text="yes"), Stopped(reason="end")]


def test_content_in_chunks_is_reasoning_and_text() -> None:
    # github.com/NousResearch/hermes-agent/pull/4748, of Mistral: "return message.content as a list
    # of structured blocks instead of a plain string"; "reference": github.com/vercel/ai/pull/4820
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "hm, "}]}
    more = {"type": "thinking", "thinking": [{"type": "text", "text": "so"}, {"type": "odd"}, 3]}
    answer = {"type": "text", "text": "It is "}
    mixed = _chunk(content=[more, {"type": "reference", "reference_ids": [1]}, answer, 7])
    end = _chunk("stop", content="blue.")
    output = accumulated(parsed(CHAT, _chunk(content=[thought]), mixed, end, DONE))
    assert (output.reasoning, output.text, output.stop_reason) == ("hm, so", "It is blue.", "end")


def test_reasoning_in_two_fields_is_parsed_once() -> None:
    deltas = parsed(CHAT, _chunk(reasoning_content="hm", reasoning="hm"))
    assert deltas == [ReasoningPiece(text="hm")]


def test_reasoning_goes_back_in_the_field_it_came_in_where_that_is_wanted() -> None:
    talk = Talk(ChatApi(form=RequestForm(returns_reasoning=True)))
    talk.prompt("look")
    output = talk.answers(
        Thinking("let me see"), ToolCall("look"), wire=Wire(reasoning_field="reasoning")
    )
    assert output.reasoning == "let me see"
    talk.runs_tools()
    body: Any = rendered_in(talk.vendor_api, request(*talk.context)).body
    assert body["messages"][2]["reasoning"] == "let me see"


def test_reasoning_stays_here_where_it_is_not_wanted() -> None:
    talk = Talk(CHAT)
    talk.prompt("look")
    talk.answers(Thinking("hm"), Text("yes"), wire=Wire(reasoning_field="reasoning_content"))
    talk.prompt("more")
    talk.answers(Text("no"))
    assert "hm" not in str(talk.bodies[-1])
    assert not any(isinstance(delta, OpaquePiece) for delta in parsed(CHAT, _chunk(reasoning="x")))


def test_a_refusal_is_text_and_a_reason_to_stop() -> None:
    talk = Talk(CHAT)
    talk.prompt("do it")
    output = talk.answers(Refusal("I won't."))
    assert (output.text, output.stop_reason) == ("I won't.", "refusal")


@pytest.mark.parametrize(
    ("reason_sent", "reason"),
    [
        ("stop", "end"),
        ("length", "length"),
        ("content_filter", "filter"),
        ("eos", "end"),
        ("tool_use", "tool_calls"),
        ("model_length", "window"),
        ("bored", "bored"),
    ],
)
def test_reasons_to_stop_have_names_of_our_own_or_keep_theirs(
    reason_sent: str, reason: str
) -> None:
    assert parsed(CHAT, _chunk(reason_sent), DONE) == [Stopped(reason=reason)]


@pytest.mark.parametrize(
    "events", [[_chunk(content="x"), DONE], [_chunk("stop", content="x")]], ids=["reason", "done"]
)
def test_without_a_reason_or_without_the_end_it_has_not_stopped(events: list[Any]) -> None:
    assert parsed(CHAT, *events) == [TextPiece(text="x")]


def test_usage_counts_cached_tokens_too() -> None:
    reason_sent: JsonObject = {
        "prompt_tokens": 9,
        "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 4},
    }
    assert parsed(CHAT, {"choices": [], "usage": reason_sent}) == [
        UsageReport(input_tokens=9, output_tokens=2, cached_tokens=4, raw=reason_sent)
    ]


@pytest.mark.parametrize(
    "odd",
    [
        {"choices": None},
        {"choices": [None], "usage": {"prompt_tokens": None}},
        {"choices": [{"delta": None}]},
        {"choices": [{"delta": {"content": [1], "tool_calls": [None], "refusal": {}}}]},
        {"choices": [{"delta": {"tool_calls": [{"index": "x", "function": None}]}}]},
        {"object": "surprise"},
    ],
)
def test_whatever_else_a_chunk_holds_does_no_harm(odd: dict[str, Any]) -> None:
    deltas = parsed(CHAT, odd, _chunk("stop", content="x"), DONE)
    assert TextPiece(text="x") in deltas
    assert isinstance(deltas[-1], Stopped)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"message": "Sorry", "type": "server_error"}, ProviderUnavailable),
        ({"message": "Bad gateway", "code": 502}, ProviderUnavailable),
        ({"message": "No", "type": "invalid_request_error"}, ProviderRefused),
        ("out of memory", ProviderUnavailable),
    ],
)
def test_an_error_among_the_chunks_is_one(error: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        parsed(CHAT, _chunk(content="x"), {"error": error})


def test_what_is_no_json_is_not_passed_over() -> None:
    with pytest.raises(ProviderUnavailable) as caught:
        parsed(CHAT, b'{"choices": [')
    assert caught.value.before_first_token
