"""Reads the arguments of a tool call, for tools that describe their schema by hand.

A tool made with `typed_tool` needs none of this: its arguments are checked before it runs. Each
mistake is a `ToolFailed` with a sentence that the model can act on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

import orjson

from nplt_protocol import JsonObject, JsonValue
from nplt_server.tools import ToolFailed

_T = TypeVar("_T", str, int, float, bool)

_KINDS: Final[Mapping[type, str]] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
}


def get_required(arguments: JsonObject, name: str, kind: type[_T]) -> _T:
    """The argument of that name, which is of that kind and not blank."""
    value = arguments.get(name)
    if value is None or (isinstance(value, str) and not value.strip()):
        raise ToolFailed(f"{name}: is missing")
    if kind is float and type(value) is int:
        value = float(value)
    if not isinstance(value, kind) or type(value) is not kind:
        raise ToolFailed(f"{name}: must be {_KINDS[kind]}")
    return value


def parse_list(arguments: JsonObject, name: str) -> list[JsonValue]:
    """A list as models write it: a single value is a list of one, a missing one is empty, and a
    JSON list inside of a text is read."""
    value = arguments.get(name)
    if isinstance(value, str) and value.lstrip().startswith("["):
        read, why_not = parse_json_safely(value)
        value = value if why_not else read
    if value is None or value == "":
        return []
    return value if isinstance(value, list) else [value]


def parse_json_safely(text: str) -> tuple[JsonValue, str | None]:
    """The value, or the reason why the text is no JSON."""
    try:
        value: JsonValue = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        return None, f"not valid JSON: {error}"
    return value, None
