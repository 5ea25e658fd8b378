"""JSON values: their types, their names in error messages, and the value of a model's answer.

The limits of a payload are checked in `payloads`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

if TYPE_CHECKING:
    JsonValue: TypeAlias = (
        "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"
    )
    JsonObject: TypeAlias = dict[str, JsonValue]
else:
    # The type checkers see the recursive type. msgspec reads the annotations at run time and
    # does not support recursive types.
    JsonValue = Any
    JsonObject = dict[str, Any]

_decode = msgspec.json.Decoder().decode


def kind(value: JsonValue) -> str:
    """Returns the name of a value's type, for error messages."""
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case int():
            return "a whole number"
        case float():
            return "a number with a fraction"
        case str():
            return "text"
        case list():
            return "a list"
        case dict():
            return "an object"


def answer_value(text: str) -> JsonValue:
    """Parses an answer as JSON, with or without a code fence around it. Raises `ValueError`
    for any other answer."""
    answer = text.strip()
    if answer.startswith("```") and answer.endswith("```") and "\n" in answer:
        answer = answer[answer.index("\n") : -3]
    try:
        value: JsonValue = _decode(answer)
    except RecursionError:
        raise ValueError("the answer is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"the answer is not JSON: {error}") from None
    return value
