"""What the emulated OpenAI asks of tools, in chat completions and responses alike."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from tests.vendors.rule import Json, Rule, assert_holds

Api = Literal["chat", "responses"]

SCHEMA = {"type": "object", "properties": {"at": {"type": "string"}}}


def tool(api: Api, **fields: object) -> Json:
    function: Json = {"name": "look", "parameters": SCHEMA, **fields}
    inner = {"function": function} if api == "chat" else function
    return {"type": "function", **inner}


def ask(api: Api, **fields: Any) -> Json:
    messages = {"messages": [{"role": "user", "content": "hello"}]}
    return {"model": "gpt-4.1", **(messages if api == "chat" else {"input": "hello"}), **fields}


def offering(api: Api, **fields: object) -> Json:
    return ask(api, tools=[tool(api, **fields)])


def rules_of(api: Api) -> list[Rule]:
    place = "tools[0].function" if api == "chat" else "tools[0]"
    return [
        Rule(
            name="names of tools are plain",
            broken=offering(api, name="look.at"),
            kept=offering(api, name="look_at"),
            says=f"Invalid '{place}.name': string does not match pattern. Expected a string"
            " that matches the pattern '^[a-zA-Z0-9_-]+$'.",
            param=f"{place}.name",
            code="invalid_value",
        ),
        Rule(
            name="names of tools are short",
            broken=offering(api, name="n" * 65),
            kept=offering(api, name="n" * 64),
            says="Expected a string with maximum length 64",
            param=f"{place}.name",
            code="string_above_max_length",
        ),
        Rule(
            name="descriptions are short",
            broken=offering(api, description="d" * 1025),
            kept=offering(api, description="d" * 1024),
            says="Expected a string with maximum length 1024",
            param=f"{place}.description",
            code="string_above_max_length",
        ),
        Rule(
            name="a schema is an object's",
            broken=offering(api, parameters={}),
            kept=offering(api, parameters=SCHEMA),
            says="Invalid schema for function 'look': schema must be a JSON Schema of 'type:"
            ' "object"\', got \'type: "None"\'.',
            param=f"{place}.parameters",
            code="invalid_function_parameters",
        ),
        Rule(
            name="a schema has properties",
            broken=offering(api, parameters={"type": "object"}),
            kept=offering(api, parameters={"type": "object", "properties": {}}),
            says="In context=(), object schema missing properties.",
            param=f"{place}.parameters",
            code="invalid_function_parameters",
        ),
        Rule(
            name="a schema has no alternatives at its top",
            broken=offering(api, parameters={**SCHEMA, "anyOf": [{"required": ["at"]}]}),
            kept=offering(
                api,
                parameters={
                    "type": "object",
                    "properties": {"at": {"anyOf": [{"type": "string"}]}},
                },
            ),
            says="not have 'oneOf'/'anyOf'/'allOf'/'enum'/'not' at the top level.",
            param=f"{place}.parameters",
            code="invalid_function_parameters",
        ),
        Rule(
            name="an array says what is in it",
            broken=offering(
                api, parameters={"type": "object", "properties": {"at": {"type": "array"}}}
            ),
            kept=offering(
                api,
                parameters={"type": "object", "properties": {"at": {"type": "array", "items": {}}}},
            ),
            says="In context=('properties', 'at'), array schema missing items.",
            param=f"{place}.parameters",
            code="invalid_function_parameters",
        ),
        Rule(
            name="a strict schema is closed",
            broken=offering(api, strict=True, parameters={**SCHEMA, "required": ["at"]}),
            kept=offering(
                api,
                strict=True,
                parameters={**SCHEMA, "required": ["at"], "additionalProperties": False},
            ),
            says="'additionalProperties' is required to be supplied and to be false.",
            param=f"{place}.parameters",
            code="invalid_function_parameters",
        ),
        Rule(
            name="a strict schema requires all",
            broken=offering(api, strict=True, parameters={**SCHEMA, "additionalProperties": False}),
            kept=offering(api, strict=False, parameters={**SCHEMA, "additionalProperties": False}),
            says="'required' is required to be supplied",
            param=f"{place}.parameters",
            code="invalid_function_parameters",
        ),
        Rule(
            name="tools are functions",
            broken=ask(api, tools=[{**tool(api), "type": "custom"}]),
            kept=ask(api, tools=[tool(api)]),
            says="Invalid value: 'custom'. Supported values are: 'function'.",
            param="tools[0].type",
            code="invalid_value",
        ),
        Rule(
            name="tools are there",
            broken=ask(api, tools=[]),
            kept=ask(api, tools=[tool(api)]),
            says="Invalid 'tools': empty array.",
            param="tools",
            code="empty_array",
        ),
        Rule(
            name="tools are few",
            broken=ask(api, tools=[tool(api)] * 129),
            kept=ask(api, tools=[tool(api)] * 128),
            says="Invalid 'tools': array too long.",
            param="tools",
            code="array_above_max_length",
        ),
        Rule(
            name="a choice of tools asks for tools",
            broken=ask(api, tool_choice="auto"),
            kept=ask(api, tools=[tool(api)], tool_choice="auto"),
            says="'tool_choice' is only allowed when 'tools' are specified.",
            param="tool_choice",
        ),
        Rule(
            name="parallel calls ask for tools",
            broken=ask(api, parallel_tool_calls=True),
            kept=ask(api, tools=[tool(api)], parallel_tool_calls=True),
            says="'parallel_tool_calls' is only allowed when 'tools' are specified.",
            param="parallel_tool_calls",
        ),
    ]


@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("number", range(len(rules_of("chat"))))
def test_the_rule_holds_in_both_apis(api: Api, number: int) -> None:
    assert_holds(rules_of(api)[number], api)
