"""Functions offered to OpenAI's models, the same in both APIs but for their place."""

from __future__ import annotations

from collections.abc import Iterator

from tests.vendors.fields import (
    JsonObject,
    Path,
    Shape,
    check_choice,
    check_name,
    check_shape,
)
from tests.vendors.json_schemas import schema_faults
from tests.vendors.openai_rules import OPENAI
from tests.vendors.wordings import OpenAIWording, bracketed

SAY = OpenAIWording()

TOOL_NAME = "^[a-zA-Z0-9_-]+$"
TOOL_NAME_CHARACTERS_MAX = 64
DESCRIPTION_CHARACTERS_MAX = 1024
TOOLS_MAX = 128
NOT_AT_THE_TOP = frozenset({"allOf", "anyOf", "enum", "not", "oneOf"})


def check_tools(body: JsonObject, shape: Shape, *, inside: Shape | None = None) -> None:
    """`inside`: the shape of the function, where the tool has one inside it (chat)."""
    tools = body.get("tools")
    if tools is not None:
        _check_count(tools)
        for place, tool in enumerate(tools):
            path: Path = ("tools", place)
            tool = check_shape(tool, path, shape, SAY)
            check_choice(tool["type"], (*path, "type"), ("function",), SAY)
            if inside is not None:
                path = (*path, "function")
                tool = check_shape(tool["function"], path, inside, SAY)
            check_function(tool, path)
    _check_choice(body)


def _check_count(tools: list[JsonObject]) -> None:
    if not tools:
        raise SAY.empty_array(("tools",))
    if len(tools) > TOOLS_MAX:
        rule = OPENAI["openai-tool-count"]
        raise rule.refusal(param="tools", most=TOOLS_MAX, length=len(tools))


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
            rule, words = fault
            param = bracketed((*path, "parameters"))
            raise OPENAI[rule].refusal(param=param, name=name, **words)


def check_function_name(name: str, path: Path) -> None:
    check_name(name, path, TOOL_NAME, SAY, most=TOOL_NAME_CHARACTERS_MAX)


def _check_choice(body: JsonObject) -> None:
    if body.get("tools"):
        return
    if body.get("tool_choice") is not None:
        raise OPENAI["openai-tool-choice"].refusal(param="tool_choice")
    if body.get("parallel_tool_calls") is not None:
        raise OPENAI["openai-parallel-calls"].refusal(param="parallel_tool_calls")


def _schema_fault(schema: JsonObject, *, strict: bool) -> tuple[str, JsonObject] | None:
    """The broken rule and the words it needs."""
    kind = schema.get("type")
    if kind != "object":
        return "openai-function-schema-kind", {"kind": kind}
    if not NOT_AT_THE_TOP.isdisjoint(schema):
        return "openai-function-schema-top", {}
    if not isinstance(schema.get("properties"), dict):
        return "openai-function-properties", {}
    fault = next(schema_faults(schema), None)
    if fault is not None:
        return "openai-function-draft", {"fault": fault}
    itemless = next(_arrays_without_items(schema["properties"], ("properties",)), None)
    if itemless is not None:
        return "openai-function-items", {"context": itemless}
    if strict and schema.get("additionalProperties") is not False:
        return "openai-function-additional", {"context": ()}
    required = schema.get("required") or []
    missing = [name for name in schema["properties"] if name not in required]
    if strict and missing:
        return "openai-function-required", {"missing": missing[0]}
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
