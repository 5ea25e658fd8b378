"""A JSON schema for the answer: what the vendors ask of it.

OpenAI, "Structured model outputs", Supported schemas: the root is an object and no `anyOf`;
with `strict`, every object has `additionalProperties: false` and requires all of its
properties, and some words are not known (`allOf`, `not`, `if`, `dependentRequired` …; lengths
of texts are held to be among them); at most 10 levels. The name is of `a-zA-Z0-9_-`, at most
64 characters (API reference, `json_schema.name`). Sentences: vercel/ai issue 6484.

DeepSeek, "JSON Output": only `json_object`, and the word "json" stands in the prompt.
Sentences: llm-exe issue 662, stagehand issue 1204.

Anthropic, "Structured outputs", JSON Schema limitations: models from 4.5 on; objects have
`additionalProperties: false`; no bounds of numbers, lengths or items (but `minItems` 0 and 1),
no schema that refers to itself, no references to elsewhere, only plain values in an `enum`; at
most 24 properties that are not required. Sentences: req_llm issue 302, litellm issue 35808,
inbox-zero issue 2323; of a model that has none, and of recursion, assumed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
from tests.vendors.fields import JsonObject, Path, Shape, check_choice, check_name, check_shape
from tests.vendors.json_schemas import schema_faults
from tests.vendors.models import ClaudeModel, GptModel
from tests.vendors.openai_tools import SAY
from tests.vendors.rejections import Rejection
from tests.vendors.wordings import AnthropicWording, at, bracketed

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
        raise Rejection(
            "Prompt must contain the word 'json' in some form to use 'response_format' of type"
            " 'json_object'."
        )
    if format_["type"] != "json_schema":
        return
    if model.vendor == "deepseek":
        raise Rejection(
            "This response_format type is unavailable now", code="invalid_request_error"
        )
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
    for fault in _openai_faults(format_["schema"], strict=bool(format_.get("strict"))):
        raise Rejection(
            f"Invalid schema for {what} '{format_['name']}': {fault}",
            param=bracketed(path),
            code="invalid_json_schema",
        )


def _openai_faults(schema: JsonObject, *, strict: bool) -> Iterator[str]:
    if schema.get("type") != "object" or not {"anyOf", "oneOf", "allOf", "enum"}.isdisjoint(schema):
        kind = schema.get("type")
        yield f"schema must be a JSON Schema of 'type: \"object\"', got 'type: \"{kind}\"'."
    yield from schema_faults(schema)
    if strict:
        yield from _strict_faults(schema, (), 1)


def _strict_faults(schema: Any, path: tuple[str, ...], level: int) -> Iterator[str]:
    where = f"In context={path}"
    if not isinstance(schema, dict):
        yield f"{where}, schema must be an object."
        return
    for word in _NOT_STRICT.intersection(schema):
        yield f"{where}, '{word}' is not permitted."
    if level > _LEVELS_MAX:
        yield f"{where}, the schema has more than {_LEVELS_MAX} levels of nesting."
    if not {"type", "anyOf", "$ref", "enum", "const"} & schema.keys():
        yield f"{where}, schema must have a 'type' key."
    properties = schema.get("properties", {})
    if schema.get("type") == "object" or properties:
        if schema.get("additionalProperties") is not False:
            yield f"{where}, 'additionalProperties' is required to be supplied and to be false."
        for name in properties:
            if name not in schema.get("required", ()):
                yield (
                    f"{where}, 'required' is required to be supplied and to be an array including"
                    f" every key in properties. Missing '{name}'."
                )
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
        raise at(path, f"structured outputs are not supported with {model.name}")
    path = (*path, "schema")
    optional = 0
    for schema in _all_schemas(format_["schema"], format_["schema"], (), path):
        _check_claude(schema, path)
        required = schema.get("required", [])
        optional += sum(name not in required for name in schema.get("properties", {}))
    if optional > _OPTIONAL_MAX:
        raise Rejection(
            f"Schemas contains too many optional parameters ({optional}), which would make grammar"
            " compilation inefficient. Reduce the number of optional parameters in your tool"
            f" schemas (limit: {_OPTIONAL_MAX})."
        )


def _check_claude(schema: JsonObject, path: Path) -> None:
    kinds = schema.get("type", [])
    kinds = kinds if isinstance(kinds, list) else [kinds]
    known = _OF_ALL.union(*(_OF_KIND.get(kind, ()) for kind in kinds))
    for word in schema:
        if word not in known:
            raise at(path, f"For '{'|'.join(kinds)}' type, property '{word}' is not supported")
    if "object" in kinds and schema.get("additionalProperties") is not False:
        raise at(path, "For 'object' type, 'additionalProperties' must be explicitly set to false")
    if schema.get("minItems", 0) not in (0, 1):
        raise at(path, "For 'array' type, 'minItems' values other than 0 or 1 are not supported")
    if any(isinstance(each, dict | list) for each in schema.get("enum", ())):
        raise at(path, "enum values must be strings, numbers, booleans or null")
    if not {"type", "anyOf", "allOf", "$ref", "enum", "const"} & schema.keys():
        raise at(path, "Schema type is missing")


def _all_schemas(
    schema: JsonObject, root: JsonObject, within: tuple[str, ...], path: Path
) -> Iterator[JsonObject]:
    yield schema
    reference = schema.get("$ref")
    if reference is not None:
        if reference in within:
            raise at(path, "Recursive schemas are not supported")
        if not reference.startswith("#/"):
            raise at(path, f"External reference {reference} is not supported")
        found: Any = root
        for step in reference[2:].split("/"):
            found = found[step]
        for _ in _all_schemas(found, root, (*within, reference), path):
            pass
    for _, inner in _inner(schema):
        yield from _all_schemas(inner, root, within, path)
