"""A JSON schema for the answer: what the vendors ask of it.

OpenAI, "Structured model outputs", Supported schemas: the root is an object and no `anyOf`;
with `strict`, every object has `additionalProperties: false` and requires all of its
properties, and some words are not known (`allOf`, `not`, `if`, `dependentRequired` …; lengths
of texts are held to be among them); at most 10 levels. The name is of `a-zA-Z0-9_-`, at most
64 characters (API reference, `json_schema.name`).

DeepSeek, "JSON Output": only `json_object`, and the word "json" stands in the prompt.

Anthropic, "Structured outputs", JSON Schema limitations: models from 4.5 on; objects have
`additionalProperties: false`; no bounds of numbers, lengths or items (but `minItems` 0 and 1),
no schema that refers to itself, no references to elsewhere, only plain values in an `enum`; at
most 24 properties that are not required.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
from tests.vendors.anthropic_rules import ANTHROPIC
from tests.vendors.fields import JsonObject, Path, Shape, check_choice, check_name, check_shape
from tests.vendors.json_schemas import schema_faults
from tests.vendors.models import ClaudeModel, GptModel
from tests.vendors.openai_rules import OPENAI
from tests.vendors.openai_tools import SAY
from tests.vendors.wordings import AnthropicWording, bracketed

_FORMAT = Shape(
    required={"name": "string", "schema": "object"},
    optional={"strict": "boolean|null", "description": "string"},
)
_NOT_STRICT = frozenset(
    {
        *("allOf", "oneOf", "not", "if", "then", "else", "dependentRequired", "dependentSchemas"),
        *("patternProperties", "propertyNames", "unevaluatedProperties", "minProperties"),
        *("maxProperties", "uniqueItems", "contains", "prefixItems", "minLength", "maxLength"),
        "default",
    }
)
_LEVELS_MAX = 10
_BY_NAME = ("properties", "$defs", "definitions")
_LISTS = ("anyOf", "oneOf", "allOf")


def check_chat_format(body: JsonObject, model: GptModel) -> None:
    format_ = body.get("response_format")
    if format_ is None:
        return
    path: Path = ("response_format",)
    check_choice(format_.get("type"), (*path, "type"), ("text", "json_object", "json_schema"), SAY)
    if format_["type"] == "json_object" and b"json" not in orjson.dumps(body["messages"]).lower():
        raise OPENAI["deepseek-json-word"].refusal()
    if format_["type"] != "json_schema":
        return
    if model.vendor == "deepseek":
        raise OPENAI["deepseek-json-schema"].refusal()
    shape = Shape(required={"type": "string", "json_schema": "object"})
    inner = check_shape(format_, path, shape, SAY)["json_schema"]
    _check_openai(check_shape(inner, (*path, "json_schema"), _FORMAT, SAY), path, "response_format")


def check_responses_format(body: JsonObject) -> None:
    format_ = (body.get("text") or {}).get("format")
    if format_ is None:
        return
    path: Path = ("text", "format")
    check_choice(format_.get("type"), (*path, "type"), ("text", "json_object", "json_schema"), SAY)
    if format_["type"] == "json_schema":
        shape = Shape(required={"type": "string", **_FORMAT.required}, optional=_FORMAT.optional)
        _check_openai(check_shape(format_, path, shape, SAY), path, "response_format")


def _check_openai(format_: JsonObject, path: Path, what: str) -> None:
    check_name(format_["name"], (*path, "name"), "^[a-zA-Z0-9_-]+$", SAY, most=64)
    for rule, words in _openai_faults(format_["schema"], strict=bool(format_.get("strict"))):
        raise OPENAI[rule].refusal(param=bracketed(path), name=format_["name"], **words)


_Fault = tuple[str, JsonObject]
"""The broken rule, and the words it needs."""


def _openai_faults(schema: JsonObject, *, strict: bool) -> Iterator[_Fault]:
    if schema.get("type") != "object" or not {"anyOf", "oneOf", "allOf", "enum"}.isdisjoint(schema):
        kind = schema.get("type")
        yield "openai-format-kind", {"kind": kind}
    for fault in schema_faults(schema):
        yield "openai-format-draft", {"fault": fault}
    if strict:
        yield from _strict_faults(schema, (), 1)


def _strict_faults(schema: Any, path: tuple[str, ...], level: int) -> Iterator[_Fault]:
    where: JsonObject = {"context": path}
    if not isinstance(schema, dict):
        yield "openai-format-draft", {"fault": f"In context={path}, schema must be an object."}
        return
    for word in _NOT_STRICT.intersection(schema):
        yield "openai-format-word", {**where, "word": word}
    if level > _LEVELS_MAX:
        yield "openai-format-depth", {"found": level, "most": _LEVELS_MAX}
    if not {"type", "anyOf", "$ref", "enum", "const"} & schema.keys():
        yield "openai-format-type", where
    properties = schema.get("properties", {})
    if schema.get("type") == "object" or properties:
        if schema.get("additionalProperties") is not False:
            yield "openai-format-additional", where
        for name in properties:
            if name not in schema.get("required", ()):
                yield "openai-format-required", {**where, "missing": name}
    for name, inner in _inner(schema):
        yield from _strict_faults(inner, (*path, *name), level + 1)


def _inner(schema: JsonObject) -> Iterator[tuple[tuple[str, ...], Any]]:
    for word in _BY_NAME:
        for name, each in schema.get(word, {}).items():
            yield (word, name), each
    for word in _LISTS:
        for place, each in enumerate(schema.get(word, ())):
            yield (word, str(place)), each
    if "items" in schema:
        yield ("items",), schema["items"]


# ------------------------------------------------------------------------------
# Anthropic

_OPTIONAL_MAX = 24
_OUTPUT_CONFIG = Shape(optional={"effort": "string|null", "format": "object|null"})
_CLAUDE_FORMAT = Shape(required={"type": "string", "schema": "object"})
_OF_ALL = frozenset(
    {
        *("type", "title", "description", "enum", "const", "anyOf", "allOf"),
        *("$ref", "$defs", "definitions"),
    }
)
_OF_KIND = {
    "object": frozenset({"properties", "required", "additionalProperties"}),
    "array": frozenset({"items", "minItems"}),
    "string": frozenset({"format", "pattern"}),
}


def check_output_config(body: JsonObject, model: ClaudeModel) -> None:
    if body.get("output_config") is None:
        return
    say = AnthropicWording()
    format_ = check_shape(body["output_config"], ("output_config",), _OUTPUT_CONFIG, say)
    if format_.get("format") is None:
        return
    path: Path = ("output_config", "format")
    format_ = check_shape(format_["format"], path, _CLAUDE_FORMAT, say)
    check_choice(format_["type"], (*path, "type"), ("json_schema",), say)
    if not model.takes_schema:
        raise ANTHROPIC["anthropic-no-format"].at(path, model=model.name)
    path = (*path, "schema")
    optional = 0
    for schema in _all_schemas(format_["schema"], format_["schema"], (), path):
        _check_claude(schema, path)
        required = schema.get("required", [])
        optional += sum(name not in required for name in schema.get("properties", {}))
    if optional > _OPTIONAL_MAX:
        rule = ANTHROPIC["anthropic-format-optional"]
        raise rule.refusal(found=optional, most=_OPTIONAL_MAX)


def _check_claude(schema: JsonObject, path: Path) -> None:
    kinds = schema.get("type", [])
    kinds = kinds if isinstance(kinds, list) else [kinds]
    known = _OF_ALL.union(*(_OF_KIND.get(kind, ()) for kind in kinds))
    for word in schema:
        if word not in known:
            rule = ANTHROPIC["anthropic-format-word"]
            raise rule.at(path, kinds="|".join(kinds), word=word)
    if "object" in kinds and schema.get("additionalProperties") is not False:
        raise ANTHROPIC["anthropic-format-additional"].at(path)
    if schema.get("minItems", 0) not in (0, 1):
        raise ANTHROPIC["anthropic-format-items"].at(path)
    if any(isinstance(each, dict | list) for each in schema.get("enum", ())):
        raise ANTHROPIC["anthropic-format-enum"].at(path)
    if not {"type", "anyOf", "allOf", "$ref", "enum", "const"} & schema.keys():
        raise ANTHROPIC["anthropic-format-type"].at(path)


def _all_schemas(
    schema: JsonObject, root: JsonObject, within: tuple[str, ...], path: Path
) -> Iterator[JsonObject]:
    yield schema
    reference = schema.get("$ref")
    if reference is not None:
        if reference in within:
            raise ANTHROPIC["anthropic-format-recursion"].at(path, name=reference)
        if not reference.startswith("#/"):
            raise ANTHROPIC["anthropic-format-reference"].at(path, reference=reference)
        found: Any = root
        for step in reference[2:].split("/"):
            found = found[step]
        for _ in _all_schemas(found, root, (*within, reference), path):
            pass
    for _, inner in _inner(schema):
        yield from _all_schemas(inner, root, within, path)
