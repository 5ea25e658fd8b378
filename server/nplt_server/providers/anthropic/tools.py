"""The tools a request offers.

A schema the API would refuse (tools of MCP servers have such) goes into the description
instead, where the model still reads it: one odd tool must not cost the conversation.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from nplt_server.clean_text import clean_text
from nplt_server.providers.anthropic.wire import Json
from nplt_server.providers.compiling import VendorRules
from nplt_server.providers.compiling.names import fitting_tool_name
from nplt_server.providers.compiling.schemas import in_words, well_formed
from nplt_server.tools.base import ToolDescription

_PROPERTY_NAME: Final = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_NOT_AT_THE_TOP: Final = frozenset({"oneOf", "allOf", "anyOf"})


def own_names(tools: Sequence[ToolDescription], rules: VendorRules) -> dict[str, str]:
    """What the model is told a tool is called → what it is called here."""
    names: dict[str, str] = {}
    for tool in tools:
        names.setdefault(fitting_tool_name(tool.name, rules), tool.name)
    return names


def rendered_tools(tools: Sequence[ToolDescription], rules: VendorRules) -> list[Json]:
    by_name: dict[str, Json] = {}
    for tool in tools:
        name = fitting_tool_name(tool.name, rules)
        by_name.setdefault(name, _rendered(tool, name))
    return list(by_name.values())


def bygone_tools(names: Iterable[str]) -> list[Json]:
    """Of tools that are offered no longer but were called: the API asks for them."""
    return [
        {
            "name": name,
            "description": "Can't be called any more.",
            "input_schema": {"type": "object"},
        }
        for name in dict.fromkeys(names)
    ]


def _rendered(tool: ToolDescription, name: str) -> Json:
    description = clean_text(tool.description)
    schema: Json = {**well_formed(tool.parameters), "type": "object"}
    if not _is_accepted(schema):
        description += f"\n\n{in_words(tool.parameters)}"
        schema = {"type": "object"}
    rendered: Json = {"name": name, "input_schema": schema}
    if description.strip():
        rendered["description"] = description
    return rendered


def _is_accepted(schema: Json) -> bool:
    properties = schema.get("properties")
    if _NOT_AT_THE_TOP & schema.keys() or not isinstance(properties, dict | None):
        return False
    return all(map(_PROPERTY_NAME.fullmatch, properties or {}))
