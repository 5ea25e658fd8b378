"""Responses, without a server: what is sent, and what is made of an answer."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from tests.server.providers.openai_stage import (
    PLAIN,
    RESPONSES,
    Talk,
    accumulated,
    calls_of,
    parsed,
    request,
)
from tests.support.vendor_models import rendered_in
from tests.vendors.answers import Refusal, Text, Thinking, ToolCall, UnknownItem

from nplt_protocol import JsonObject
from nplt_server.context.messages import ModelInputMessage, ModelOutputMessage
from nplt_server.errors import ProviderRefused, ProviderUnavailable
from nplt_server.providers import OpaquePiece, Patience, Stopped, TextPiece, UsageReport
from nplt_server.providers.openai_responses import ResponsesApi, ResponsesParser
from nplt_storage.entries import OutputPart

SUMMING_UP = ResponsesApi(summarizes_reasoning=True)
ITEM = {"type": "function_call", "id": "fc_1", "call_id": "c", "name": "look", "arguments": ""}


def _items(body: dict[str, Any]) -> list[str]:
    return [item["type"] for item in body["input"]]


def _output(*parts: dict[str, Any] | str, text: str = "yes") -> ModelOutputMessage:
    """A remembered answer: its text where a part says so, opaque all others."""
    kept = tuple(
        OutputPart(kind="text", size=len(part))
        if isinstance(part, str)
        else OutputPart(kind="opaque", data=part)
        for part in parts
    )
    return ModelOutputMessage(
        content=text, parts=kept, invocation=request(vendor_api=RESPONSES).invocation, seq=2
    )


def _input_after(message: ModelOutputMessage) -> list[dict[str, Any]]:
    first, last = (ModelInputMessage(content="so?", seq=seq) for seq in (1, 3))
    body: Any = rendered_in(RESPONSES, request(first, message, last, vendor_api=RESPONSES)).body
    items: list[dict[str, Any]] = body["input"]
    return items[1:-1]


# What is sent


@pytest.mark.parametrize("vendor_api", [RESPONSES, SUMMING_UP], ids=["silent", "summing up"])
def test_reasoning_goes_back_encrypted_with_what_it_led_to(vendor_api: ResponsesApi) -> None:
    talk = Talk(vendor_api)
    talk.prompt("look at both")
    talk.answers(Thinking("first"), Text("I will."), ToolCall("look"), ToolCall("look"))
    talk.runs_tools()
    talk.answers(Thinking("second"), ToolCall("look"))
    talk.runs_tools()
    talk.answers(Thinking("third"), Text("done"))
    talk.prompt("thanks")
    talk.answers(Text("welcome"))
    assert _items(talk.bodies[-1]) == [
        "message",
        "reasoning", "message", "function_call", "function_call",
        "function_call_output", "function_call_output",
        "reasoning", "function_call", "function_call_output",
        "reasoning", "message", "message",
    ]  # fmt: skip
    for earlier, later in zip(talk.bodies, talk.bodies[1:], strict=False):
        assert later["input"][: len(earlier["input"])] == earlier["input"]


def test_items_come_back_with_their_ids() -> None:
    talk = Talk(RESPONSES)
    talk.prompt("look")
    talk.answers(Thinking("hm"), Text("one"), Text("two"), ToolCall("look"))
    talk.runs_tools()
    talk.answers(Text("seen"))
    given = talk.bodies[-1]["input"][1:5]
    assert [item["id"].partition("_")[0] for item in given] == ["rs", "msg", "msg", "fc"]
    assert [item["content"][0]["text"] for item in given[1:3]] == ["one", "two"]


def test_nothing_is_kept_at_the_vendors() -> None:
    body = rendered_in(RESPONSES, request(vendor_api=RESPONSES)).body
    assert (body["store"], body["include"]) == (False, ["reasoning.encrypted_content"])


def test_a_model_that_does_not_reason_is_not_asked_for_reasoning() -> None:
    asked = request(vendor_api=SUMMING_UP, model=PLAIN, options={"effort": "low", "temperature": 1})
    body = rendered_in(SUMMING_UP, asked).body
    assert not {"include", "reasoning"} & body.keys()
    assert body["temperature"] == 1.0
    Talk(RESPONSES).api.admit(body)


def test_effort_and_summaries_are_asked_for_together() -> None:
    asked = request(vendor_api=SUMMING_UP, options={"effort": "low", "temperature": 1})
    body = rendered_in(SUMMING_UP, asked).body
    assert body["reasoning"] == {"effort": "low", "summary": "auto"}
    assert "temperature" not in body


def test_an_answer_is_never_shorter_than_the_least_the_api_takes() -> None:
    body = rendered_in(RESPONSES, request(vendor_api=RESPONSES, options={"output_tokens": 1})).body
    assert body["max_output_tokens"] == 16


REASONING = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"}


def test_reasoning_that_led_to_nothing_stays_here() -> None:
    assert [item["type"] for item in _input_after(_output("yes", REASONING))] == ["message"]


def test_reasoning_is_given_once() -> None:
    items = _input_after(_output(REASONING, REASONING, "yes", {"type": "message", "id": "msg_1"}))
    assert [item["type"] for item in items] == ["reasoning", "message"]


@pytest.mark.parametrize(
    "reasoning",
    [
        {**REASONING, "encrypted_content": None},
        {**REASONING, "id": "rs_" + "x" * 99},
        {**REASONING, "id": "other_1"},
    ],
)
def test_ids_stay_here_with_the_reasoning_that_can_not_go_back(reasoning: dict[str, Any]) -> None:
    items = _input_after(_output(reasoning, "yes", {"type": "message", "id": "msg_1"}))
    assert [(item["type"], "id" in item) for item in items] == [("message", False)]


@pytest.mark.parametrize(
    "opaque",
    [
        {"type": "message", "id": "fc_1"},
        {"type": "message", "id": 7},
        {"type": "function_call", "id": "fc_1"},
        {"signature": "of another vendor"},
        {},
    ],
)
def test_an_id_that_fits_nothing_is_left_out(opaque: dict[str, Any]) -> None:
    items = _input_after(_output("yes", opaque))
    assert [(item["type"], "id" in item) for item in items] == [("message", False)]


def test_the_phase_of_a_message_goes_back() -> None:
    opaque = {"type": "message", "id": "msg_1", "phase": "commentary"}
    assert _input_after(_output("yes", opaque))[0]["phase"] == "commentary"


# What is made of an answer


def test_a_refusal_is_text_and_a_reason_to_stop() -> None:
    talk = Talk(RESPONSES)
    talk.prompt("do it")
    output = talk.answers(Thinking("no"), Refusal("I won't."))
    assert (output.text, output.stop_reason) == ("I won't.", "refusal")
    talk.prompt("please")
    talk.answers(Text("no"))
    assert "msg_" not in str(talk.bodies[-1])  # its id would say it was an ordinary message


def test_an_unknown_output_item_is_ignored() -> None:
    talk = Talk(RESPONSES)
    talk.prompt("do it")
    output = talk.answers(UnknownItem({"type": "surprise", "id": "su_1"}), Text("done"))
    assert (output.text, output.stop_reason) == ("done", "end")


def test_paragraphs_of_a_summary_are_apart() -> None:
    added = {"type": "response.reasoning_summary_part.added"}
    delta = {"type": "response.reasoning_summary_text.delta", "delta": "hm"}
    output = accumulated(parsed(RESPONSES, added, delta, added, delta))
    assert output.reasoning == "hm\n\nhm"


def test_arguments_sent_only_at_the_end_are_parsed() -> None:
    done = {
        "type": "response.output_item.done",
        "output_index": 1,
        "item": {**ITEM, "arguments": '{"at":1}'},
    }
    assert calls_of(accumulated(parsed(RESPONSES, done))) == [("look", '{"at":1}')]


def test_arguments_repeated_at_the_end_are_parsed_once() -> None:
    place = {"output_index": 0}
    deltas = parsed(
        RESPONSES,
        {"type": "response.output_item.added", **place, "item": ITEM},
        {"type": "response.function_call_arguments.delta", **place, "delta": "{}"},
        {"type": "response.output_item.done", **place, "item": {**ITEM, "arguments": "{}"}},
    )
    assert calls_of(accumulated(deltas)) == [("look", "{}")]


def test_arguments_of_an_unknown_call_are_a_malformed_stream() -> None:
    with pytest.raises(ProviderUnavailable):
        parsed(RESPONSES, {"type": "response.function_call_arguments.delta", "output_index": 3})


def test_reasoning_without_its_encrypted_form_takes_the_ids_with_it() -> None:
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": []}
    deltas = parsed(
        RESPONSES,
        {"type": "response.output_item.done", "output_index": 0, "item": reasoning},
        {"type": "response.output_item.added", "output_index": 1, "item": ITEM},
    )
    assert not any(isinstance(delta, OpaquePiece) for delta in deltas)


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        ({"type": "response.completed"}, "end"),
        ({"type": "response.incomplete"}, "incomplete"),
        (
            {
                "type": "response.incomplete",
                "response": {"incomplete_details": {"reason": "max_output_tokens"}},
            },
            "length",
        ),
        (
            {
                "type": "response.incomplete",
                "response": {"incomplete_details": {"reason": "content_filter"}},
            },
            "filter",
        ),
    ],
)
def test_reasons_to_stop(event: dict[str, Any], reason: str) -> None:
    assert parsed(RESPONSES, event) == [Stopped(reason=reason)]


def test_usage_counts_cached_tokens_too() -> None:
    usage: JsonObject = {
        "input_tokens": 9,
        "output_tokens": 2,
        "input_tokens_details": {"cached_tokens": 4},
    }
    reported = parsed(RESPONSES, {"type": "response.completed", "response": {"usage": usage}})
    counted = UsageReport(input_tokens=9, output_tokens=2, cached_tokens=4, raw=usage)
    assert reported[0] == counted


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        ({"type": "error", "code": "server_error", "message": "Sorry"}, ProviderUnavailable),
        ({"type": "error", "error": {"type": "invalid_request_error"}}, ProviderRefused),
        (
            {"type": "response.failed", "response": {"error": {"code": "rate_limit_exceeded"}}},
            ProviderUnavailable,
        ),
        (
            {"type": "response.failed", "response": {"error": {"code": "invalid_prompt"}}},
            ProviderRefused,
        ),
        ({"error": {"message": "from a proxy"}}, ProviderUnavailable),
    ],
)
def test_an_error_among_the_events_is_one(event: dict[str, Any], kind: type[Exception]) -> None:
    with pytest.raises(kind):
        parsed(RESPONSES, {"type": "response.output_text.delta", "delta": "x"}, event)


def test_an_unknown_stream_event_is_ignored() -> None:
    assert parsed(RESPONSES, {"type": "response.surprise", "delta": "boo"}, {}) == []


def test_done_of_the_other_api_ends_nothing() -> None:
    delta = {"type": "response.output_text.delta", "delta": "x"}
    assert parsed(RESPONSES, delta, b"[DONE]") == [TextPiece(text="x")]


@pytest.mark.parametrize("index", [[], {}, [0]])
@pytest.mark.parametrize("kind", ["response.output_item.added", "response.output_item.done"])
def test_a_place_that_is_no_number_can_not_be_read(kind: str, index: object) -> None:
    with pytest.raises(ProviderUnavailable, match="can't be read"):
        parsed(RESPONSES, {"type": kind, "output_index": index, "item": ITEM})


def test_who_thinks_is_given_time_again_and_again_but_only_once_to_begin() -> None:
    parser = ResponsesParser({})
    patience = Patience(first_token_seconds=120.0, gap_seconds=60.0)

    def deadline(now: float) -> float:
        return parser.deadline(patience, began=0.0, now=now)

    parser.feed(orjson.dumps({"type": "response.in_progress"}))
    assert deadline(100.0) == 120.0
    thought = {"type": "reasoning", "id": "rs_1", "summary": []}
    parser.feed(orjson.dumps({"type": "response.output_item.added", "item": thought}))
    assert deadline(100.0) == 220.0
    assert deadline(219.0) == 339.0
    assert not parser.has_spoken
    parser.feed(orjson.dumps({"type": "response.output_item.done", "item": thought}))
    assert deadline(300.0) == 360.0
    assert not parser.has_spoken
    parser.feed(orjson.dumps({"type": "response.output_text.delta", "delta": "so"}))
    assert deadline(310.0) == 370.0
    assert parser.has_spoken
