"""JSON values: their types, their names in sentences, and the value of a model's answer.

What the bytes of a payload may hold is checked in `payloads`.
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
    # No import, but two views of one type: msgspec reads annotations and knows no type
    # that holds itself.
    JsonValue = Any
    JsonObject = dict[str, Any]

_decode = msgspec.json.Decoder().decode


def kind(value: JsonValue) -> str:
    """The name of a value's type, for error sentences."""
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
    """The JSON value of an answer, with or without a code fence around it. Raises
    `ValueError` if the answer is anything else."""
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
