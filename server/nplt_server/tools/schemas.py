"""The JSON Schema a model reads, made from types, without what only costs tokens."""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel

from nplt_protocol.json_values import JsonObject

_SCHEMAS_BY_NAME: Final = ("properties", "patternProperties", "$defs")
_VALUES: Final = ("default", "const", "enum", "examples")


def schema_of(model: type[BaseModel]) -> JsonObject:
    schema: JsonObject = _without_titles(model.model_json_schema())
    schema.setdefault("properties", {})
    return schema


def _without_titles(schema: Any) -> Any:
    """Titles repeat the names, and every call of a model would pay for them."""
    match schema:
        case list():
            return [_without_titles(item) for item in schema]
        case dict():
            return {
                key: _below(key, value)
                for key, value in schema.items()
                if not (key == "title" and isinstance(value, str))
            }
        case _:
            return schema


def _below(key: str, value: Any) -> Any:
    if key in _VALUES:
        return value
    if key in _SCHEMAS_BY_NAME:
        return {name: _without_titles(schema) for name, schema in value.items()}
    return _without_titles(value)
