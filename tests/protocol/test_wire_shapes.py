"""Shapes: JSON objects to dataclasses and back, by annotation."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.protocol import samples
from tests.protocol.outcomes import refusal_of

from nplt_protocol import events as told
from nplt_protocol import replies as say
from nplt_protocol import requests as ask
from nplt_protocol.codes import ErrorCode
from nplt_protocol.errors import RequestError
from nplt_protocol.json_values import JsonObject, JsonValue
from nplt_protocol.shapes import read, write

JSON_REQUESTS = [
    shape for shape in ask.REQUEST_TYPES.values() if shape not in (ask.Ping, ask.FileData)
]


def refusal(shape: type, data: JsonObject) -> RequestError:
    with pytest.raises(RequestError) as caught:
        read(shape, data)
    assert caught.value.code is ErrorCode.MALFORMED
    return caught.value


def test_a_needed_field_that_is_missing_is_named() -> None:
    error = refusal(ask.Prompt, {"metadata": {}})
    assert (error.field, error.message) == ("text", "`text` is needed.")


def test_null_for_a_needed_field_is_as_wrong_as_leaving_it_out() -> None:
    assert refusal(ask.Prompt, {"text": None}).field == "text"


def test_null_for_an_optional_field_means_not_said() -> None:
    assert read(ask.HistoryRequest, {"limit": None, "view": None}) == ask.HistoryRequest()


def test_unknown_fields_are_ignored() -> None:
    assert read(ask.Cancel, {"turn_id": "t", "colour": "blue"}) == ask.Cancel(turn_id="t")


@pytest.mark.parametrize(
    ("shape", "data", "field", "words"),
    [
        (ask.Prompt, {"text": 7}, "text", "must be text, not a whole number"),
        (ask.Attach, {"session_id": "a", "after_seq": "1"}, "after_seq", "whole number, not text"),
        (ask.Attach, {"session_id": "a", "after_seq": True}, "after_seq", "not true or false"),
        (ask.Attach, {"session_id": "a", "after_seq": 3.0}, "after_seq", "with a fraction"),
        (ask.Attach, {"session_id": "a", "observer": 1}, "observer", "must be true or false"),
        (ask.Attach, {"session_id": "a", "after_seq": 2**63}, "after_seq", "too large"),
        (ask.Hello, {"keepalive": "9"}, "keepalive", "must be a number, not text"),
        (ask.Hello, {"keepalive": False}, "keepalive", "must be a number"),
        (ask.Hello, {"versions": 3}, "versions", "must be a list, not a whole number"),
        (ask.Hello, {"versions": [3, "4"]}, "versions", "must be a whole number, not text"),
        (ask.Prompt, {"text": "x", "options": []}, "options", "must be an object, not a list"),
        (ask.HistoryRequest, {"view": "all"}, "view", 'must be "messages" or "entries"'),
        (ask.HistoryRequest, {"view": []}, "view", "must be"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_by_name(
    shape: type, data: JsonObject, field: str, words: str
) -> None:
    error = refusal(shape, data)
    assert error.field == field
    assert words in error.message


def test_a_whole_number_will_do_where_a_fraction_is_allowed() -> None:
    assert read(ask.Hello, {"keepalive": 30}).keepalive == 30


def test_a_word_unknown_to_us_is_taken_when_reading_a_newer_server() -> None:
    data: JsonObject = {"session_id": "s", "turn_id": "t", "state": "paused", "seq": 1}
    assert write(read(told.TurnFinished, data, lenient=True))["state"] == "paused"
    assert refusal(told.TurnFinished, data).field == "state"


def test_a_fault_inside_a_nested_object_is_named_by_its_path() -> None:
    page: JsonObject = {"has_more_before": False, "has_more_after": False, "before": "x"}
    data: JsonObject = {
        "session_id": "s",
        "name": "",
        "message_count": 0,
        "head_seq": 0,
        "messages": [],
        "page": page,
    }
    assert refusal(say.HistoryPage, data).field == "page.before"


def test_keys_a_report_does_not_name_are_its_details_and_lie_beside_the_others() -> None:
    data: JsonObject = {"code": "ambiguous", "message": "m", "retryable": False, "candidates": [1]}
    report = read(told.ErrorReport, data)
    assert report.details == {"candidates": [1]}
    assert write(report) == data


def test_a_report_without_further_keys_has_no_details() -> None:
    assert read(told.ErrorReport, {"code": "busy", "message": "m"}).details is None


def test_a_detail_never_takes_the_place_of_a_field() -> None:
    event = told.SessionEvent(session_id="s", event="renamed", details={"event": "x", "name": "n"})
    assert write(event) == {"session_id": "s", "event": "renamed", "name": "n"}


def test_none_is_left_out_except_where_nothing_must_be_told_from_not_said() -> None:
    assert write(say.SessionRows(sessions=(), next_cursor=None)) == {
        "sessions": [],
        "next_cursor": None,
    }
    receipt = say.Receipt(
        turn_id="t", session_id="s", seq=1, message_id=None, position=0, state="running"
    )
    assert "message_id" not in write(receipt)
    assert read(say.Receipt, write(receipt)) == receipt


@given(samples.requests.filter(lambda request: not isinstance(request, ask.Ping)), st.booleans())
def test_every_request_reads_back_as_it_was_written(
    request: ask.Request, leave_out_defaults: bool
) -> None:
    data = write(request, leave_out_defaults=leave_out_defaults)
    assert read(type(request), data) == request


@given(samples.events)
def test_every_event_reads_back_as_it_was_written(event: told.Event) -> None:
    assert read(type(event), write(event), lenient=True) == event


@given(st.sampled_from(JSON_REQUESTS), st.data())
def test_any_object_reads_or_is_refused_and_nothing_else(
    shape: type[ask.Request], data: st.DataObject
) -> None:
    names = [field.name for field in dataclasses.fields(shape)] + ["stranger"]
    raw: dict[str, JsonValue] = data.draw(
        st.dictionaries(st.sampled_from(names), samples.json_values, max_size=6)
    )
    error = refusal_of(lambda: read(shape, raw))
    if error is not None:
        assert error.field in names
        assert f"`{error.field}`" in error.message


def test_values_are_frozen() -> None:
    prompt = ask.Prompt(text="hello")
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(prompt, "text", "other")  # noqa: B010 (a checker would refuse the plain form)
    with pytest.raises(dataclasses.FrozenInstanceError):
        delattr(prompt, "text")


def test_values_are_made_with_the_fields_they_have_and_no_others() -> None:
    shape: type = ask.Prompt
    with pytest.raises(TypeError, match="needs 'text'"):
        shape()
    with pytest.raises(TypeError, match="has no 'colour'"):
        shape(text="x", colour="blue")


def test_values_do_not_share_their_default_objects() -> None:
    one, other = ask.Prompt(text="x"), ask.Prompt(text="x")
    assert one.metadata is not other.metadata


@given(samples.events)
def test_values_are_copied_pickled_and_replaced_like_any_dataclass(event: told.Event) -> None:
    assert copy.deepcopy(event) == event
    assert pickle.loads(pickle.dumps(event)) == event
    assert dataclasses.replace(event) == event
    assert dataclasses.is_dataclass(event)


def test_values_are_equal_by_class_and_content() -> None:
    assert ask.Detach() == ask.Detach()
    other: object = ask.ClearRequest()
    assert ask.Detach() != other
    assert ask.Cancel(turn_id="a") != ask.Cancel(turn_id="b")
    assert hash(ask.Cancel(turn_id="a")) == hash(ask.Cancel(turn_id="a"))
    assert repr(ask.Cancel(turn_id="a")) == "Cancel(turn_id='a')"
