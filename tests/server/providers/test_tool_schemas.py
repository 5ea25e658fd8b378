"""Third-party tools have all kinds of schemas; none may break a conversation."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from tests.server.providers import anthropic_stage
from tests.server.providers.openai_stage import CHAT, RESPONSES, request
from tests.support.vendor_models import rendered_in
from tests.vendors.emulator import Emulator

from nplt_protocol import JsonObject
from nplt_server.providers.anthropic import MessagesApi
from nplt_server.providers.compiler import ContextCompiler, VendorRules
from nplt_server.providers.vendor_api import VendorApi
from nplt_server.tools import ToolDescription

CITY: JsonObject = {"properties": {"city": {"type": "string"}}, "required": ["city"]}
PLACE: JsonObject = {"properties": {"place": {"type": "array"}}}


def offered(vendor_api: VendorApi, parameters: JsonObject, description: str = "Odd.") -> Any:
    """The tool as the request offers it, after the emulated vendor accepted the request."""
    tool = ToolDescription(name="odd", description=description, parameters=parameters)
    body = rendered_in(vendor_api, request(vendor_api=vendor_api, tools=(tool,))).body
    sent = orjson.loads(orjson.dumps(body))
    Emulator().api("chat" if vendor_api is CHAT else "responses").admit(sent)
    return sent["tools"][0].get("function") or sent["tools"][0]


ODD: dict[str, JsonObject] = {
    "empty": {},
    "properties_null": {"properties": None},
    "properties_a_list": {"properties": [1]},
    "type_string": {"type": "string", "enum": ["a"]},
    "not_required": {"type": "object", "not": {"required": ["a"]}},
    "all_of_and_one_of": {"allOf": [CITY, {"anyOf": [PLACE, "junk"]}], "oneOf": 7},
    "type_union_in_items": {
        "type": "object",
        "properties": {"many": {"items": {"type": ["array", "null"]}}},
    },
    "property_called_type": {
        "type": "object",
        "properties": {"type": {"type": "array"}},
        "$defs": {"a": PLACE},
    },
    "type_any": {
        "type": "object",
        "properties": {"a": {"type": "any"}, "b": True, "c": {"type": []}},
    },
    "required_inside_a_property": {
        "type": "object",
        "properties": {"a": {"type": "string", "required": True}},
    },
    "boolean_exclusive_minimum": {
        "type": "object",
        "properties": {"a": {"minimum": 0, "exclusiveMinimum": True}},
    },
    "tuple_items": {
        "type": "object",
        "properties": {"a": {"type": "array", "items": [{"type": "any"}]}},
    },
    "unknown_type": {
        "type": "object",
        "properties": {"a": {"additionalProperties": {"type": "date"}}},
    },
}


@pytest.mark.parametrize("vendor_api", [CHAT, RESPONSES])
@pytest.mark.parametrize("parameters", ODD.values(), ids=ODD)
def test_openai_accepts_every_schema(vendor_api: VendorApi, parameters: JsonObject) -> None:
    assert offered(vendor_api, parameters)["parameters"]["type"] == "object"


@pytest.mark.parametrize("parameters", ODD.values(), ids=ODD)
def test_anthropic_accepts_every_schema(parameters: JsonObject) -> None:
    tool = ToolDescription(name="odd", description="Odd.", parameters=parameters)
    asked = anthropic_stage.request(tools=(tool,))
    compiled = ContextCompiler(VendorRules()).compile(asked.context, origin=asked.invocation)
    body = MessagesApi().render(asked, compiled).body
    Emulator().api("messages").admit(orjson.loads(orjson.dumps(body)))


def test_a_valid_schema_is_sent_unchanged() -> None:
    schema: JsonObject = {
        "type": "object",
        "properties": {
            "type": {"type": "string", "enum": ["any"], "default": {"type": "any"}},
            "required": {"type": ["integer", "null"], "exclusiveMinimum": 0},
            "items": {"type": "array", "items": {"$ref": "#/$defs/x"}},
        },
        "required": ["type"],
        "additionalProperties": False,
        "$defs": {"x": {"anyOf": [{"const": True}, {"type": "number"}]}},
    }
    assert offered(CHAT, schema)["parameters"] == schema


def test_openai_gets_a_union_as_merged_properties_and_described_in_text() -> None:
    tool = offered(CHAT, {"anyOf": [CITY, PLACE]})
    assert tool["parameters"]["properties"] == {
        "city": {"type": "string"},
        "place": {"type": "array", "items": {}},
    }
    assert tool["description"].startswith("Odd.\n\n")
    assert orjson.dumps({"anyOf": [CITY, PLACE]}).decode() in tool["description"]


def test_a_union_is_not_added_to_a_description_that_has_no_room() -> None:
    tool = offered(CHAT, {"anyOf": [CITY, PLACE]}, description="x" * 1000)
    assert tool["description"] == "x" * 1000
    assert list(tool["parameters"]["properties"]) == ["city", "place"]
