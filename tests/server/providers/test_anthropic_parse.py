"""Events become deltas; nothing but the event that ends a message ends an answer."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.server.providers.anthropic_stage import Json, accumulated

from nplt_server.errors import ProviderError, ProviderRefused, ProviderUnavailable
from nplt_server.providers import (
    ModelOutputDelta,
    OpaquePiece,
    Stopped,
    TextPiece,
    ToolCallPiece,
    UsageReport,
)
from nplt_server.providers.anthropic import MessageParser


def fed(*events: Json | bytes, names: dict[str, str] | None = None) -> list[ModelOutputDelta]:
    parser = MessageParser(names)
    return [
        delta
        for event in events
        for delta in parser.feed(event if isinstance(event, bytes) else orjson.dumps(event))
    ]


def began(block: Json, index: int = 0) -> Json:
    return {"type": "content_block_start", "index": index, "content_block": block}


def piece(delta: Json, index: int = 0) -> Json:
    return {"type": "content_block_delta", "index": index, "delta": delta}


def ended(index: int = 0) -> Json:
    return {"type": "content_block_stop", "index": index}


def stopping(reason: str | None, **usage: int | None) -> Json:
    return {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": usage}


def started(**usage: int) -> Json:
    return {"type": "message_start", "message": {"usage": usage}}


TEXT = began({"type": "text", "text": ""})
STOP = {"type": "message_stop"}


@pytest.mark.parametrize(
    ("reason", "ours"),
    [
        ("end_turn", "end"),
        ("stop_sequence", "end"),
        ("tool_use", "tool_calls"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "window"),
        ("pause_turn", "pause"),
        ("never_heard_of", "never_heard_of"),
    ],
)
def test_stop_reasons_are_mapped_to_ours(reason: str, ours: str) -> None:
    assert fed(stopping(reason), STOP) == [Stopped(reason=ours)]


def test_an_end_without_a_reason_is_none() -> None:
    assert fed(TEXT, stopping(None), STOP) == []


def test_a_reason_without_an_end_is_none() -> None:
    assert fed(TEXT, stopping("end_turn")) == []


def test_what_was_read_from_the_cache_and_put_there_was_sent_as_well() -> None:
    usage = {"input_tokens": 3, "cache_read_input_tokens": 40, "cache_creation_input_tokens": 500}
    first, last = fed(
        started(**usage, output_tokens=1), stopping("end_turn", output_tokens=9, input_tokens=None)
    )
    assert first == UsageReport(
        input_tokens=543,
        output_tokens=1,
        cached_tokens=40,
        cache_write_tokens=500,
        raw={**usage, "output_tokens": 1},
    )
    assert isinstance(first, UsageReport)
    assert last == replace(first, output_tokens=9, raw={**usage, "output_tokens": 9})


def test_a_tool_is_called_by_our_name_and_its_arguments_come_as_they_are() -> None:
    deltas = fed(
        began({"type": "tool_use", "id": "toolu_1", "name": "a-1", "input": {}}),
        piece({"type": "input_json_delta", "partial_json": '{"a": '}),
        piece({"type": "input_json_delta", "partial_json": "1"}),
        ended(),
        names={"a-1": "a.long/name"},
    )
    assert deltas == [
        ToolCallPiece(index=0, tool_name="a.long/name"),
        ToolCallPiece(index=0, arguments='{"a": '),
        ToolCallPiece(index=0, arguments="1"),
    ]


def test_an_input_given_whole_is_taken_whole() -> None:
    deltas = fed(
        began({"type": "tool_use", "id": "t", "name": "look", "input": {"at": 1}}), ended()
    )
    assert deltas[-1] == ToolCallPiece(index=0, arguments='{"at":1}')


def test_a_signature_stands_behind_what_it_signs_also_if_nothing_of_it_was_shown() -> None:
    deltas = fed(
        began({"type": "thinking", "thinking": "", "signature": ""}),
        piece({"type": "signature_delta", "signature": "abc"}),
        piece({"type": "signature_delta", "signature": "def"}),
        ended(),
    )
    assert deltas == [OpaquePiece(data={"signature": "abcdef"})]


@pytest.mark.parametrize(
    "before",
    [
        (TEXT, piece({"type": "text_delta", "text": " \n"}), ended()),
        (TEXT, orjson.dumps(piece({"type": "text_delta", "text": "X"})).replace(b"X", b"\\ud800")),
        (
            began({"type": "tool_use", "id": "t", "name": "look", "input": {}}),
            piece({"type": "input_json_delta", "partial_json": "{"}),
            ended(),
        ),
        (began({"type": "hologram"}), ended()),
        (began({"type": "thinking", "thinking": "unsigned"}), ended()),
    ],
    ids=["blank text", "half a character", "broken arguments", "unknown block", "no signature"],
)
def test_behind_what_can_not_go_back_as_it_came_nothing_is_kept_for_that(before: Any) -> None:
    signed = (
        began({"type": "thinking", "thinking": ""}, 1),
        piece({"type": "signature_delta", "signature": "abc"}, 1),
        ended(1),
    )
    assert OpaquePiece(data={"signature": "abc"}) in fed(*signed)
    assert not any(isinstance(delta, OpaquePiece) for delta in fed(*before, *signed))


def test_a_refusal_after_some_text_is_read_to_the_end() -> None:
    declined = stopping("refusal")
    declined["delta"]["stop_details"] = {"type": "refusal", "explanation": "Not that."}
    deltas = fed(TEXT, piece({"type": "text_delta", "text": "Well"}), ended(), declined, STOP)
    assert accumulated(deltas).text == "Well\n\nNot that."
    assert deltas[-1] == Stopped(reason="refusal")


def test_who_declines_without_a_word_has_not_answered() -> None:
    with pytest.raises(ProviderRefused, match="declined"):
        fed(stopping("refusal"), STOP)


def test_an_error_event_says_whether_it_came_before_the_first_token() -> None:
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    for events, before in (((error,), True), ((TEXT, error), False)):
        with pytest.raises(ProviderUnavailable) as caught:
            fed(*events)
        assert caught.value.before_first_token == before
        assert str(caught.value).endswith("the provider says: Overloaded (code overloaded_error)")


def test_events_after_message_stop_are_ignored() -> None:
    late = piece({"type": "text_delta", "text": "more"})
    assert fed(TEXT, stopping("end_turn"), STOP, late, b"{broken") == [Stopped(reason="end")]


JUNK = st.sampled_from([None, True, 3, "x", [], [1], {}, {"type": 1}, {"type": "text"}])
NAMES = ["type", "index", "delta", "content_block", "usage", "message", "error", "stop_reason"]
KINDS = ["content_block_start", "content_block_delta", "content_block_stop", "message_start"]
KINDS += ["message_delta", "error", "text", "tool_use", "thinking", "input_json_delta", "ping"]
VALUES = st.one_of(JUNK, st.sampled_from(KINDS))
EVENTS = st.dictionaries(
    st.sampled_from(NAMES), VALUES | st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=3)
)


@given(st.lists(st.one_of(EVENTS, JUNK), max_size=6))
def test_junk_is_an_error_of_the_provider_and_never_an_end(events: list[Any]) -> None:
    try:
        deltas = fed(TEXT, *events)
    except ProviderError:
        return
    assert not any(isinstance(delta, Stopped) for delta in deltas)
    assert all(delta != TextPiece(text="") for delta in deltas)
