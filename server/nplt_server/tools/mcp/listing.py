"""What a server says its tools are, sifted: each is checked by itself, and one that is
not well formed is left out; the others stay.

Only its name, its description and the schema of its arguments are kept. What
else a server says of its tools (that they are harmless, say) is not believed,
and the schemas of its results are not needed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import orjson

from nplt_protocol.json_values import JsonObject, JsonValue
from nplt_server.tools.mcp.foreign_text import cut_foreign, one_line

DESCRIPTION_CHARACTERS_MAX: Final = 1024
TOOL_NAME_CHARACTERS_MAX: Final = 256
SCHEMA_BYTES_MAX: Final = 32 * 1024
SCHEMA_DEPTH_MAX: Final = 16

LeftOut = Callable[[str, str], None]
"""Hears the name of a tool that is left out, and why."""


def sifted(tools: list[JsonValue], *, left_out: LeftOut) -> list[JsonValue]:
    """A page of a list of tools, as it came; what is given is well formed."""
    kept: dict[str, JsonValue] = {}
    for tool in tools:
        name = tool.get("name") if isinstance(tool, dict) else None
        if not isinstance(tool, dict) or not isinstance(name, str) or not name:
            left_out("?", "it has no name")
        elif name in kept:
            left_out(one_line(name), "there is another of this name")
        elif (reason := _what_is_wrong(name, tool.get("inputSchema"))) is not None:
            left_out(one_line(name), reason)
        else:
            kept[name] = _only_what_is_used(name, tool)
    return list(kept.values())


def _what_is_wrong(name: str, schema: JsonValue) -> str | None:
    if len(name) > TOOL_NAME_CHARACTERS_MAX:
        return f"its name is longer than {TOOL_NAME_CHARACTERS_MAX} characters"
    if not isinstance(schema, dict) or schema.get("type") != "object":
        return "its schema is not that of an object"
    if not _is_object_of_schemas(schema.get("properties", {})):
        return "the properties in its schema are no schemas"
    if _is_deeper_than(schema, SCHEMA_DEPTH_MAX):
        return f"its schema is nested deeper than {SCHEMA_DEPTH_MAX}"
    try:
        size = len(orjson.dumps(schema))
    except orjson.JSONEncodeError:
        return "its schema can't be written as JSON"
    if size > SCHEMA_BYTES_MAX:
        return f"its schema has {size:,} bytes, more than {SCHEMA_BYTES_MAX:,}"
    return None


def _is_object_of_schemas(properties: JsonValue) -> bool:
    return isinstance(properties, dict) and all(
        isinstance(schema, dict | bool) for schema in properties.values()
    )


def _is_deeper_than(value: JsonValue, depth_max: int) -> bool:
    inner: list[JsonValue]
    match value:
        case dict():
            inner = list(value.values())
        case list():
            inner = value
        case _:
            return False
    return depth_max == 0 or any(_is_deeper_than(part, depth_max - 1) for part in inner)


def _only_what_is_used(name: str, tool: JsonObject) -> JsonObject:
    said = tool.get("description")
    description = said if isinstance(said, str) else ""
    return {
        "name": name,
        "description": cut_foreign(description, characters_max=DESCRIPTION_CHARACTERS_MAX),
        "inputSchema": _with_clean_descriptions(tool["inputSchema"]),
    }


def _with_clean_descriptions(schema: JsonValue) -> JsonValue:
    """What is meant for the reader is cleaned; names and values must stay as the server
    knows them."""
    match schema:
        case dict():
            return {
                key: cut_foreign(part, characters_max=DESCRIPTION_CHARACTERS_MAX)
                if key in ("description", "title") and isinstance(part, str)
                else _with_clean_descriptions(part)
                for key, part in schema.items()
            }
        case list():
            return [_with_clean_descriptions(part) for part in schema]
        case _:
            return schema
