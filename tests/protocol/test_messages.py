"""Shapes: JSON objects to dataclasses and back, by annotation."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.protocol import samples
from tests.protocol.outcomes import refusal_of

from nplt_protocol import (
    ErrorCode,
    JsonObject,
    JsonValue,
    RequestError,
    from_object,
    messages,
    to_object,
)

JSON_REQUESTS = [
    shape
    for shape in messages.REQUEST_TYPES.values()
    if shape not in (messages.Ping, messages.FileData)
]


def refusal(shape: type[messages.Message], data: JsonObject) -> RequestError:
    with pytest.raises(RequestError) as caught:
        from_object(shape, data)
    assert caught.value.code is ErrorCode.MALFORMED
    return caught.value


def test_a_missing_required_field_is_named() -> None:
    error = refusal(messages.Prompt, {"metadata": {}})
    assert (error.field, error.message) == ("text", "`text` is needed.")


def test_null_for_a_required_field_is_refused_like_a_missing_one() -> None:
    assert refusal(messages.Prompt, {"text": None}).field == "text"


def test_null_for_an_optional_field_means_absent() -> None:
    assert (
        from_object(messages.HistoryRequest, {"limit": None, "view": None})
        == messages.HistoryRequest()
    )


def test_unknown_fields_are_ignored() -> None:
    assert from_object(messages.Cancel, {"turn_id": "t", "colour": "blue"}) == messages.Cancel(
        turn_id="t"
    )


@pytest.mark.parametrize(
    ("shape", "data", "field", "words"),
    [
        (messages.Prompt, {"text": 7}, "text", "must be text, not a whole number"),
        (
            messages.Attach,
            {"session_id": "a", "after_seq": "1"},
            "after_seq",
            "whole number, not text",
        ),
        (messages.Attach, {"session_id": "a", "after_seq": True}, "after_seq", "not true or false"),
        (messages.Attach, {"session_id": "a", "after_seq": 3.0}, "after_seq", "with a fraction"),
        (messages.Attach, {"session_id": "a", "observer": 1}, "observer", "must be true or false"),
        (messages.Attach, {"session_id": "a", "after_seq": 2**63}, "after_seq", "too large"),
        (messages.Hello, {"keepalive": "9"}, "keepalive", "must be a number, not text"),
        (messages.Hello, {"keepalive": False}, "keepalive", "must be a number"),
        (messages.Hello, {"versions": 3}, "versions", "must be a list, not a whole number"),
        (messages.Hello, {"versions": [3, "4"]}, "versions", "must be a whole number, not text"),
        (messages.Prompt, {"text": "x", "options": []}, "options", "must be an object, not a list"),
        (messages.HistoryRequest, {"view": "all"}, "view", 'must be "messages" or "entries"'),
        (messages.HistoryRequest, {"view": []}, "view", "must be"),
    ],
)
def test_a_field_of_the_wrong_type_is_refused_and_named(
    shape: type[messages.Message], data: JsonObject, field: str, words: str
) -> None:
    error = refusal(shape, data)
    assert error.field == field
    assert words in error.message


def test_an_integer_is_accepted_for_a_float_field() -> None:
    assert from_object(messages.Hello, {"keepalive": 30}).keepalive == 30


def test_an_unknown_enum_value_of_a_newer_server_is_accepted() -> None:
    data: JsonObject = {"session_id": "s", "turn_id": "t", "state": "paused", "seq": 1}
    assert to_object(from_object(messages.TurnFinished, data))["state"] == "paused"


def test_an_error_in_a_nested_object_is_named_by_its_path() -> None:
    page: JsonObject = {"has_more_before": False, "has_more_after": False, "before": "x"}
    data: JsonObject = {
        "session_id": "s",
        "name": "",
        "message_count": 0,
        "head_seq": 0,
        "messages": [],
        "page": page,
    }
    assert refusal(messages.HistoryPage, data).field == "page.before"


def test_unknown_keys_of_an_error_report_are_its_details_and_flat_in_the_json() -> None:
    data: JsonObject = {"code": "ambiguous", "message": "m", "retryable": False, "candidates": [1]}
    report = from_object(messages.ErrorReport, data)
    assert report.details == {"candidates": [1]}
    assert to_object(report) == data


def test_a_report_without_further_keys_has_no_details() -> None:
    assert from_object(messages.ErrorReport, {"code": "busy", "message": "m"}).details is None


def test_a_detail_never_overwrites_a_field() -> None:
    event = messages.SessionEvent(
        session_id="s", event="renamed", details={"event": "x", "name": "n"}
    )
    assert to_object(event) == {"session_id": "s", "event": "renamed", "name": "n"}


def test_none_is_omitted_from_the_json_except_in_sent_fields() -> None:
    assert to_object(messages.SessionRows(sessions=(), next_cursor=None)) == {
        "sessions": [],
        "next_cursor": None,
    }
    receipt = messages.Receipt(
        turn_id="t", session_id="s", seq=1, message_id=None, position=0, state="running"
    )
    assert "message_id" not in to_object(receipt)
    assert from_object(messages.Receipt, to_object(receipt)) == receipt


@given(st.sampled_from(JSON_REQUESTS), st.data())
def test_any_object_reads_or_is_refused_and_nothing_else(
    shape: type[messages.Request], data: st.DataObject
) -> None:
    names = [*shape.__struct_fields__, "stranger"]
    raw: dict[str, JsonValue] = data.draw(
        st.dictionaries(st.sampled_from(names), samples.json_values, max_size=6)
    )
    error = refusal_of(lambda: from_object(shape, raw))
    if error is not None:
        assert error.field in names
        assert f"`{error.field}`" in error.message


def test_messages_are_frozen() -> None:
    prompt = messages.Prompt(text="hello")
    with pytest.raises(AttributeError):
        setattr(prompt, "text", "other")  # noqa: B010 (a checker would refuse the plain form)
    with pytest.raises(AttributeError):
        delattr(prompt, "text")


def test_messages_are_made_only_with_their_own_fields() -> None:
    shape: type = messages.Prompt
    with pytest.raises(TypeError, match="argument 'text'"):
        shape()
    with pytest.raises(TypeError, match="argument 'colour'"):
        shape(text="x", colour="blue")


def test_messages_do_not_share_their_default_objects() -> None:
    one, other = messages.Prompt(text="x"), messages.Prompt(text="x")
    assert one.metadata is not other.metadata


@given(samples.events)
def test_messages_can_be_copied_pickled_and_replaced(event: messages.Event) -> None:
    assert copy.deepcopy(event) == event
    assert pickle.loads(pickle.dumps(event)) == event
    assert msgspec.structs.replace(event) == event


def test_messages_are_equal_by_class_and_content() -> None:
    assert messages.Detach() == messages.Detach()
    other: object = messages.ClearRequest()
    assert messages.Detach() != other
    assert messages.Cancel(turn_id="a") != messages.Cancel(turn_id="b")
    assert hash(messages.Cancel(turn_id="a")) == hash(messages.Cancel(turn_id="a"))
    assert repr(messages.Cancel(turn_id="a")) == "Cancel(turn_id='a')"


def _shapes(shape: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    yield shape
    for more in shape.__subclasses__():
        yield from _shapes(more)


def test_messages_do_not_change_and_name_their_fields() -> None:
    shapes = [shape for shape in _shapes(messages.Message) if shape.__module__ == messages.__name__]
    assert len(shapes) > 50
    for shape in shapes:
        assert shape.__struct_config__.frozen, shape
        kinds = {field.kind for field in inspect.signature(shape).parameters.values()}
        assert kinds <= {inspect.Parameter.KEYWORD_ONLY}, shape
