"""Functions offered to OpenAI's models, the same in both APIs but for their place.

From refusals users have reported: names, an object schema with `properties` and without
alternatives at its top, arrays with `items`, what `strict` asks of it, a description of
at most 1,024 characters (seen with chat completions; held in both), 128 tools.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.vendors.fields import JsonObject, Path, check_name
from tests.vendors.json_schemas import schema_faults
from tests.vendors.rejections import Rejection
from tests.vendors.wordings import OpenAIWording, bracketed, invalid

SAY = OpenAIWording()

TOOL_NAME = "^[a-zA-Z0-9_-]+$"
TOOL_NAME_CHARACTERS_MAX = 64
DESCRIPTION_CHARACTERS_MAX = 1024
TOOLS_MAX = 128
NOT_AT_THE_TOP = frozenset({"allOf", "anyOf", "enum", "not", "oneOf"})


def check_tool_count(tools: list[JsonObject]) -> None:
    if not tools:
        raise SAY.empty_array(("tools",))
    if len(tools) > TOOLS_MAX:
        raise invalid(
            f"Invalid 'tools': array too long. Expected an array with maximum length {TOOLS_MAX},"
            f" but got an array with length {len(tools)} instead.",
            ("tools",),
            code="array_above_max_length",
        )


def check_function(function: JsonObject, path: Path) -> None:
    name = function["name"]
    check_function_name(name, (*path, "name"))
    description = function.get("description") or ""
    if len(description) > DESCRIPTION_CHARACTERS_MAX:
        raise SAY.too_long((*path, "description"), len(description), DESCRIPTION_CHARACTERS_MAX)
    schema = function.get("parameters")
    if schema is not None:
        fault = _schema_fault(schema, strict=bool(function.get("strict")))
        if fault is not None:
            raise Rejection(
                f"Invalid schema for function '{name}': {fault}",
                param=bracketed((*path, "parameters")),
                code="invalid_function_parameters",
            )


def check_function_name(name: str, path: Path) -> None:
    check_name(name, path, TOOL_NAME, SAY, most=TOOL_NAME_CHARACTERS_MAX)


def check_choice_of_tools(body: JsonObject) -> None:
    if body.get("tools"):
        return
    if body.get("tool_choice") is not None:
        raise invalid(
            "Invalid value for 'tool_choice': 'tool_choice' is only allowed when 'tools' are"
            " specified.",
            ("tool_choice",),
        )
    if body.get("parallel_tool_calls") is not None:
        raise invalid(
            "Invalid value for 'parallel_tool_calls': 'parallel_tool_calls' is only allowed"
            " when 'tools' are specified.",
            ("parallel_tool_calls",),
        )


def _schema_fault(schema: JsonObject, *, strict: bool) -> str | None:
    kind = schema.get("type")
    if kind != "object":
        return f"schema must be a JSON Schema of 'type: \"object\"', got 'type: \"{kind}\"'."
    if not NOT_AT_THE_TOP.isdisjoint(schema):
        return (
            "schema must have type 'object' and not have 'oneOf'/'anyOf'/'allOf'/'enum'/'not'"
            " at the top level."
        )
    if not isinstance(schema.get("properties"), dict):
        return "In context=(), object schema missing properties."
    fault = next(schema_faults(schema), None)
    if fault is not None:
        return fault
    itemless = next(_arrays_without_items(schema["properties"], ("properties",)), None)
    if itemless is not None:
        return f"In context={itemless}, array schema missing items."
    if strict and schema.get("additionalProperties") is not False:
        return "In context=(), 'additionalProperties' is required to be supplied and to be false."
    required = schema.get("required")
    if strict and not (
        isinstance(required, list) and all(name in required for name in schema["properties"])
    ):
        return (
            "In context=(), 'required' is required to be supplied and to be an array including"
            " every key in properties."
        )
    return None


def _arrays_without_items(value: object, path: Path) -> Iterator[Path]:
    if isinstance(value, dict):
        if value.get("type") == "array" and "items" not in value:
            yield path
        for name, each in value.items():
            yield from _arrays_without_items(each, (*path, name))
    elif isinstance(value, list):
        for place, each in enumerate(value):
            yield from _arrays_without_items(each, (*path, place))
