"""What both vendors find wrong with a schema that is none, of what tools really bring.

From refusals users have reported: words of older drafts and types there are not. Neither
vendor is known to take any of it.
"""

from __future__ import annotations

from collections.abc import Iterator

_TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")
_BY_NAME = ("$defs", "definitions", "patternProperties", "properties")
_ALTERNATIVES = ("allOf", "anyOf", "oneOf")


def schema_faults(schema: object) -> Iterator[str]:
    if not isinstance(schema, dict):
        yield f"{schema!r} is not of type 'object', 'boolean'."
        return
    kinds = schema.get("type", "object")
    for kind in kinds if isinstance(kinds, list) else [kinds]:
        if kind not in _TYPES:
            yield f"{kind!r} is not valid under any of the given schemas."
    if not isinstance(schema.get("required", []), list):
        yield f"{schema['required']!r} is not of type 'array'."
    for word in ("exclusiveMaximum", "exclusiveMinimum"):
        if isinstance(schema.get(word), bool):
            yield f"{schema[word]!r} is not of type 'number'."
    for inner in _inner(schema):
        yield from schema_faults(inner)


def _inner(schema: dict[str, object]) -> Iterator[object]:
    for word in _BY_NAME:
        named = schema.get(word)
        yield from named.values() if isinstance(named, dict) else ()
    for word in _ALTERNATIVES:
        several = schema.get(word)
        yield from several if isinstance(several, list) else ()
    if "items" in schema:
        yield schema["items"]
