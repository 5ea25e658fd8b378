"""JSON values, and the check that every JSON reader will read them back the same.

JSON readers do not agree on integers beyond 64 bits, NaN and lone surrogates. Such
values are refused before anything is written.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from nplt_storage.errors import BadEntry

if TYPE_CHECKING:
    JsonValue: TypeAlias = (
        "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"
    )
else:
    # Type checkers see the recursive type above. msgspec reads annotations at run time and
    # can't handle a type that contains itself, so it sees this one.
    JsonValue = Any
JsonObject: TypeAlias = dict[str, JsonValue]

INTEGER_MIN = -(2**63)
INTEGER_MAX = 2**64 - 1
DEPTH_MAX = 100


def check_text(text: object, where: str) -> None:
    if not isinstance(text, str):
        raise BadEntry(f"{where} is not text")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise BadEntry(f"{where} holds a lone surrogate at {error.start}") from None


def check_object(value: object, where: str, *, depth: int = 0) -> None:
    if not isinstance(value, Mapping):
        raise BadEntry(f"{where} is not a JSON object")
    for name, item in value.items():
        check_text(name, f"a name in {where}")
        check_json(item, where, depth=depth + 1)


def check_json(value: object, where: str, *, depth: int = 1) -> None:
    match value:
        case None | bool():
            pass
        case str():
            check_text(value, where)
        case int() | float():
            check_number(value, where)
        case list() | dict() if depth >= DEPTH_MAX:
            raise BadEntry(f"{where} is nested deeper than {DEPTH_MAX} levels")
        case list():
            for item in value:
                check_json(item, where, depth=depth + 1)
        case dict():
            check_object(value, where, depth=depth)
        case _:
            # Tuples, dates and the like would be written, and read back as something else.
            raise BadEntry(f"{where} holds {type(value).__name__}, which is not a JSON value")


def check_integer(value: object, where: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise BadEntry(f"{where} is not an integer")
    if not INTEGER_MIN <= value <= INTEGER_MAX:
        raise BadEntry(f"{where} holds an integer beyond 64 bits")


def check_number(value: object, where: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadEntry(f"{where} is not a number")
    if isinstance(value, int):
        check_integer(value, where)
    elif not math.isfinite(value):
        raise BadEntry(f"{where} holds {value}, which JSON can't represent")
