"""Schemas of tools' arguments, as vendors accept them.

MCP servers send schemas that vendors refuse: several shapes at the top, keywords of older
drafts (`required: true`), untyped arrays. What is not accepted is left out or written into
the description, so that one odd tool does not make every request fail.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

import orjson

from nplt_protocol import JsonObject, JsonValue

_SHAPES: Final = ("allOf", "anyOf", "oneOf")
_LISTS_OF_SCHEMAS: Final = (*_SHAPES, "prefixItems")
_SCHEMAS: Final = ("contains", "else", "if", "items", "not", "propertyNames", "then")
_SCHEMAS_BY_NAME: Final = ("$defs", "definitions", "patternProperties", "properties")
_TYPES: Final = ("array", "boolean", "integer", "null", "number", "object", "string")


def in_words(parameters: JsonObject) -> str:
    told = orjson.dumps(parameters).decode()
    return f"The arguments are an object that fits this JSON Schema: {told}"


def plain_object(parameters: JsonObject, refused: Collection[str] = ()) -> JsonObject:
    """An object that takes at least what the schema takes, without the refused words at
    its top: of several shapes it has the properties of all."""
    plain = {word: told for word, told in parameters.items() if word not in refused}
    return {**plain, "type": "object", "properties": dict(_properties(parameters))}


def well_formed(schema: JsonValue) -> JsonObject:
    """Without whatever is no JSON Schema of today; and an array says what is in it, if only
    "anything", as OpenAI wants it."""
    if not isinstance(schema, dict):
        return {}
    told = {word: _part(word, value) for word, value in schema.items() if _is_well(word, value)}
    kinds = told.get("type")
    if kinds == "array" or (isinstance(kinds, list) and "array" in kinds):
        told.setdefault("items", {})
    return told


def _is_well(word: str, value: JsonValue) -> bool:
    match word:
        case "type":
            kinds = value if isinstance(value, list) else [value]
            return bool(kinds) and all(kind in _TYPES for kind in kinds)
        case "required":
            return isinstance(value, list) and all(isinstance(name, str) for name in value)
        case "exclusiveMaximum" | "exclusiveMinimum":
            return not isinstance(value, bool)
        case "items":
            return not isinstance(value, list)
        case "enum":
            return isinstance(value, list) and bool(value)
        case _ if word in _SCHEMAS_BY_NAME:
            return isinstance(value, dict)
        case _ if word in _LISTS_OF_SCHEMAS:
            return isinstance(value, list) and bool(value)
        case _:
            return True


def _part(word: str, value: JsonValue) -> JsonValue:
    if word in _SCHEMAS or (word == "additionalProperties" and isinstance(value, dict)):
        return well_formed(value)
    if word in _SCHEMAS_BY_NAME and isinstance(value, dict):
        return {name: well_formed(each) for name, each in value.items()}
    if word in _LISTS_OF_SCHEMAS and isinstance(value, list):
        return [well_formed(each) for each in value]
    return value


def _properties(schema: JsonObject) -> Iterator[tuple[str, JsonValue]]:
    """Those at the top come last, and so count."""
    for word in _SHAPES:
        shapes = schema.get(word)
        for shape in shapes if isinstance(shapes, list) else ():
            if isinstance(shape, dict):
                yield from _properties(shape)
    own = schema.get("properties")
    if isinstance(own, dict):
        yield from own.items()
