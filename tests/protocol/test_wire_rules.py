"""Rules: what a well-shaped request must also obey, at n-1, n and n+1."""

from __future__ import annotations

import dataclasses

import pytest
from tests.protocol.outcomes import refusal_of

from nplt_protocol import requests as ask
from nplt_protocol.codes import ErrorCode
from nplt_protocol.rules import ONE_AT_MOST, RULES, check_rules
from nplt_protocol.shapes import read


def refused_field(request: ask.Request) -> str | None:
    """The field a request is refused for, or None if it may pass."""
    error = refusal_of(lambda: check_rules(request))
    if error is None:
        return None
    assert error.code is ErrorCode.MALFORMED
    assert f"`{error.field}`" in error.message
    return error.field


def test_every_rule_is_about_a_field_that_exists() -> None:
    for shape, rules in RULES.items():
        names = {field.name for field in dataclasses.fields(shape)}
        groups = [name for group in ONE_AT_MOST.get(shape, ()) for name in group]
        assert {*rules, *groups} <= names


@pytest.mark.parametrize("text", ["", " ", "\n\t ", "\u3000"])
def test_a_prompt_of_white_space_is_no_prompt(text: str) -> None:
    assert refused_field(ask.Prompt(text=text)) == "text"


@pytest.mark.parametrize("session_id", ["a", "Z9", "a" * 64, "0-_", "deadbeef"])
def test_session_ids_of_letters_digits_and_dashes_pass(session_id: str) -> None:
    assert refused_field(ask.Attach(session_id=session_id)) is None


@pytest.mark.parametrize(
    "session_id", ["", "a" * 65, "-a", "_a", "a b", "../a", "a/b", "a\n", "é", "a\0"]
)
def test_nothing_else_is_a_session_id(session_id: str) -> None:
    for request in (
        ask.Attach(session_id=session_id),
        ask.SessionDelete(session_id=session_id),
        ask.Prompt(text="x", session_id=session_id),
        ask.SessionUpdate(session_id=session_id),
        ask.HistoryRequest(session_id=session_id),
        ask.SessionFork(session_id=session_id),
    ):
        assert refused_field(request) == "session_id"


def test_a_switch_takes_any_name_of_up_to_200_characters() -> None:
    assert refused_field(ask.SessionSwitch(session_id="my notes / été")) is None
    assert refused_field(ask.SessionSwitch(session_id="x" * 200)) is None
    assert refused_field(ask.SessionSwitch(session_id="x" * 201)) == "session_id"
    assert refused_field(ask.SessionSwitch(session_id=" ")) == "session_id"


def test_names_have_at_most_200_characters_not_bytes() -> None:
    assert refused_field(ask.SessionNew(name="ü" * 200)) is None
    assert refused_field(ask.SessionNew(name="ü" * 201)) == "name"
    assert refused_field(ask.Prompt(text="x", message_id="m" * 200)) is None
    assert refused_field(ask.Prompt(text="x", message_id="m" * 201)) == "message_id"
    assert refused_field(ask.Prompt(text="x", attachments=("f", "f" * 201))) == "attachments"


def test_metadata_of_a_prompt_is_at_most_2048_bytes_as_json() -> None:
    room = 2048 - len('{"k":""}')
    assert refused_field(ask.Prompt(text="x", metadata={"k": "v" * room})) is None
    assert refused_field(ask.Prompt(text="x", metadata={"k": "v" * (room + 1)})) == "metadata"


@pytest.mark.parametrize("field", ["before", "after", "around", "seq", "offset", "length"])
def test_history_cursors_are_not_negative(field: str) -> None:
    assert refused_field(read(ask.HistoryRequest, {field: 0})) is None
    assert refused_field(read(ask.HistoryRequest, {field: -1})) == field


def test_a_page_has_at_least_one_message_and_large_limits_are_the_servers_to_clamp() -> None:
    assert refused_field(ask.HistoryRequest(limit=0)) == "limit"
    assert refused_field(ask.HistoryRequest(limit=1)) is None
    assert refused_field(ask.HistoryRequest(limit=10**9)) is None


@pytest.mark.parametrize(
    ("request_", "second"),
    [
        (ask.HistoryRequest(before=1, after=2), "after"),
        (ask.HistoryRequest(before=1, around=2), "around"),
        (ask.HistoryRequest(after=0, around=0), "around"),
        (ask.Import(file_id="f", document={}), "document"),
    ],
)
def test_of_several_ways_to_say_it_only_one_may_be_used(request_: ask.Request, second: str) -> None:
    assert refused_field(request_) == second


def test_an_upload_has_a_name_and_a_size_that_is_not_negative() -> None:
    assert refused_field(ask.FileMetadata(filename="a", size=0)) is None
    assert refused_field(ask.FileMetadata(filename="a", size=-1)) == "size"
    assert refused_field(ask.FileMetadata(filename="", size=1)) == "filename"
    assert refused_field(ask.FileMetadata(filename="a" * 256, size=1)) == "filename"


def test_a_deletion_can_be_taken_back_by_an_update_but_not_done_by_one() -> None:
    assert refused_field(ask.SessionUpdate(session_id="a", deleted=False)) is None
    assert refused_field(ask.SessionUpdate(session_id="a", deleted=True)) == "deleted"
