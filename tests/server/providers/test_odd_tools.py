"""Tools of other people have schemas of all kinds: none may cost a conversation."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from tests.server.providers import anthropic_stage
from tests.server.providers.openai_stage import CHAT, RESPONSES, request
from tests.support.vendor_models import rendered_in
from tests.vendors.emulator import Emulator
from tests.vendors.models import CLAUDE_MODELS, GPT_MODELS

from nplt_protocol import JsonObject
from nplt_server.providers.anthropic import MessagesApi
from nplt_server.providers.compiler import ContextCompiler, VendorRules
from nplt_server.providers.vendor_api import VendorApi
from nplt_server.settings import vendor_named
from nplt_server.tools import ToolDescription

CITY: JsonObject = {"properties": {"city": {"type": "string"}}, "required": ["city"]}
PLACE: JsonObject = {"properties": {"place": {"type": "array"}}}


def offered(vendor_api: VendorApi, parameters: JsonObject, description: str = "Odd.") -> Any:
    """As the vendor is offered it, who takes it."""
    tool = ToolDescription(name="odd", description=description, parameters=parameters)
    body = rendered_in(vendor_api, request(vendor_api=vendor_api, tools=(tool,))).body
    sent = orjson.loads(orjson.dumps(body))
    Emulator().api("chat" if vendor_api is CHAT else "responses").admit(sent)
    return sent["tools"][0].get("function") or sent["tools"][0]


ODD: list[JsonObject] = [
    {},
    {"properties": None},
    {"properties": [1]},
    {"type": "string", "enum": ["a"]},
    {"type": "object", "not": {"required": ["a"]}},
    {"allOf": [CITY, {"anyOf": [PLACE, "junk"]}], "oneOf": 7},
    {"type": "object", "properties": {"many": {"items": {"type": ["array", "null"]}}}},
    {"type": "object", "properties": {"type": {"type": "array"}}, "$defs": {"a": PLACE}},
    {"type": "object", "properties": {"a": {"type": "any"}, "b": True, "c": {"type": []}}},
    {"type": "object", "properties": {"a": {"type": "string", "required": True}}},
    {"type": "object", "properties": {"a": {"minimum": 0, "exclusiveMinimum": True}}},
    {"type": "object", "properties": {"a": {"type": "array", "items": [{"type": "any"}]}}},
    {"type": "object", "properties": {"a": {"additionalProperties": {"type": "date"}}}},
]


@pytest.mark.parametrize("vendor_api", [CHAT, RESPONSES])
@pytest.mark.parametrize("parameters", ODD)
def test_openai_takes_every_schema(vendor_api: VendorApi, parameters: JsonObject) -> None:
    assert offered(vendor_api, parameters)["parameters"]["type"] == "object"


@pytest.mark.parametrize("parameters", ODD)
def test_anthropic_takes_every_schema(parameters: JsonObject) -> None:
    tool = ToolDescription(name="odd", description="Odd.", parameters=parameters)
    asked = anthropic_stage.request(tools=(tool,))
    compiled = ContextCompiler(VendorRules()).compile(asked.context, origin=asked.invocation)
    body = MessagesApi().render(asked, compiled).body
    Emulator().api("messages").admit(orjson.loads(orjson.dumps(body)))


def test_a_schema_nothing_is_wrong_with_stays_as_it_is() -> None:
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


def test_openai_gets_a_union_schema_as_all_properties_and_in_words() -> None:
    tool = offered(CHAT, {"anyOf": [CITY, PLACE]})
    assert tool["parameters"]["properties"] == {
        "city": {"type": "string"},
        "place": {"type": "array", "items": {}},
    }
    assert tool["description"].startswith("Odd.\n\n")
    assert orjson.dumps({"anyOf": [CITY, PLACE]}).decode() in tool["description"]


def test_a_schema_too_long_for_a_description_is_left_out_whole() -> None:
    tool = offered(CHAT, {"anyOf": [CITY, PLACE]}, description="x" * 1000)
    assert tool["description"] == "x" * 1000
    assert list(tool["parameters"]["properties"]) == ["city", "place"]


def test_the_emulated_vendors_have_all_models_that_are_known() -> None:
    assert set(vendor_named("openai")["models"]) <= {model.name for model in GPT_MODELS}
    assert set(vendor_named("anthropic")["models"]) <= {model.name for model in CLAUDE_MODELS}
