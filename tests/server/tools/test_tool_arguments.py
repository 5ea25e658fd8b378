"""The helper for tools that read their arguments themselves."""

from __future__ import annotations

import pytest

from nplt_protocol import JsonValue
from nplt_server.extensions import ToolFailed, get_required, parse_json_safely, parse_list


def test_a_required_argument_has_its_kind() -> None:
    given: dict[str, JsonValue] = {"city": "Lyon", "days": 3, "warm": True, "km": 5}
    assert get_required(given, "city", str) == "Lyon"
    assert get_required(given, "days", int) == 3
    assert get_required(given, "warm", bool) is True
    assert get_required(given, "km", float) == 5.0


@pytest.mark.parametrize("value", [None, "", "  "])
def test_a_required_argument_that_is_missing_or_blank_fails(value: JsonValue) -> None:
    with pytest.raises(ToolFailed, match="city: is missing"):
        get_required({"city": value}, "city", str)


def test_a_required_argument_of_another_kind_fails() -> None:
    with pytest.raises(ToolFailed, match="days: must be a whole number"):
        get_required({"days": True}, "days", int)


@pytest.mark.parametrize(
    ("given", "items"),
    [
        (["a", "b"], ["a", "b"]),
        ("a", ["a"]),
        (5, [5]),
        (None, []),
        ("", []),
        ('["a", 1]', ["a", 1]),
        ("[a", ["[a"]),
        ("[]", []),
    ],
)
def test_a_list_is_read_as_models_write_it(given: JsonValue, items: list[JsonValue]) -> None:
    assert parse_list({"names": given}, "names") == items


def test_json_is_read_or_the_reason_given() -> None:
    assert parse_json_safely('{"a": 1}') == ({"a": 1}, None)
    value, why = parse_json_safely("{")
    assert value is None
    assert (why or "").startswith("not valid JSON")
