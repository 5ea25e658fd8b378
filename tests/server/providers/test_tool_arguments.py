"""What a model wrote as the arguments of a call, read as well as it can be."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nplt_server.providers.accumulator import parse_tool_call

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)


@given(st.dictionaries(st.text(max_size=5), VALUES, max_size=4))
def test_arguments_that_are_as_they_should_be_are_read_without_a_word(
    arguments: dict[str, object],
) -> None:
    call = parse_tool_call("c1", "look", json.dumps(arguments))
    assert call.arguments == arguments
    assert (call.parse_error, call.parse_warning) == (None, None)


@pytest.mark.parametrize(
    ("raw", "arguments", "warning"),
    [
        ("", {}, None),
        ('{"a": 1, "a": 2}', {"a": 2}, "the key 'a' occurs more than once"),
        ('{"x": {"a": 1, "a": 2}}', {"x": {"a": 2}}, "the key 'a' occurs more than once"),
        ('"{\\"a\\": 1}"', {"a": 1}, "the arguments were JSON inside of a JSON text"),
    ],
)
def test_what_can_be_read_with_a_doubt_has_a_warning(
    raw: str, arguments: dict[str, object], warning: str | None
) -> None:
    call = parse_tool_call("c1", "look", raw)
    assert (call.raw_arguments, call.arguments, call.parse_error) == (raw, arguments, None)
    assert (call.parse_warning or "").startswith(warning or "")
    assert (call.parse_warning is None) == (warning is None)


@pytest.mark.parametrize("raw", ["{", "[1]", '"text"', '"[1]"', "1", "{'a': 1}"])
def test_what_can_not_be_read_has_an_error_and_keeps_its_text(raw: str) -> None:
    call = parse_tool_call("c1", "look", raw)
    assert (call.raw_arguments, call.arguments, call.parse_warning) == (raw, None, None)
    assert call.parse_error
