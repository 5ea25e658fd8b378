"""The emulated vendors refuse a schema for the answer where the real ones do."""

from __future__ import annotations

from typing import Any

import pytest
from tests.vendors.answers import ApiName
from tests.vendors.rule import Json, Rule, assert_holds

TEXT: Json = {"type": "string"}
GOOD: Json = {
    "type": "object",
    "properties": {"a": TEXT},
    "required": ["a"],
    "additionalProperties": False,
}
SELF: Json = {
    **GOOD,
    "properties": {"a": {"$ref": "#/$defs/n"}},
    "$defs": {"n": {"$ref": "#/$defs/n"}},
}


def chat(schema: Json, *, model: str = "gpt-4.1", strict: bool = True, name: str = "x") -> Json:
    format_ = {"name": name, "schema": schema, "strict": strict}
    return asked(model, response_format={"type": "json_schema", "json_schema": format_})


def asked(model: str, text: str = "hello", **fields: Any) -> Json:
    return {"model": model, "messages": [{"role": "user", "content": text}], **fields}


def responses(schema: Json, *, strict: bool = True) -> Json:
    format_ = {"type": "json_schema", "name": "x", "schema": schema, "strict": strict}
    return {"model": "gpt-4.1", "input": "hello", "text": {"format": format_}}


def claude(schema: Json, *, model: str = "claude-opus-5-5") -> Json:
    config = {"format": {"type": "json_schema", "schema": schema}}
    return {**asked(model), "max_tokens": 100, "output_config": config}


def with_a(**words: Any) -> Json:
    return {**GOOD, "properties": {"a": {**TEXT, **words}}}


def optional(count: int) -> Json:
    return {**GOOD, "properties": {f"p{n}": TEXT for n in range(count)}, "required": []}


OPENAI: dict[str, Any] = {"code": "invalid_json_schema", "param": "response_format"}
CASES: list[tuple[ApiName, Rule]] = [
    (
        "chat",
        Rule(
            name="strict wants every property required",
            broken=chat({**GOOD, "required": []}),
            kept=chat({**GOOD, "required": []}, strict=False),
            says="Missing 'a'.",
            **OPENAI,
        ),
    ),
    (
        "chat",
        Rule(
            name="strict wants no other properties",
            broken=chat({**GOOD, "additionalProperties": True}),
            kept=chat(GOOD),
            says="'additionalProperties' is required to be supplied and to be false.",
            **OPENAI,
        ),
    ),
    (
        "chat",
        Rule(
            name="strict does not know lengths",
            broken=chat(with_a(minLength=2)),
            kept=chat(with_a(pattern="x")),
            says="'minLength' is not permitted.",
            **OPENAI,
        ),
    ),
    (
        "chat",
        Rule(
            name="the top is an object",
            broken=chat({"type": "array", "items": TEXT}, strict=False),
            kept=chat(GOOD, strict=False),
            says="got 'type: \"array\"'",
            **OPENAI,
        ),
    ),
    (
        "chat",
        Rule(
            name="DeepSeek knows no schemas",
            broken=chat(GOOD, model="deepseek-v4-pro"),
            kept=asked("deepseek-v4-pro", "as JSON", response_format={"type": "json_object"}),
            says="This response_format type is unavailable now",
            code="invalid_request_error",
        ),
    ),
    (
        "chat",
        Rule(
            name="JSON is to be spoken of",
            broken=asked("gpt-4.1", response_format={"type": "json_object"}),
            kept=asked("gpt-4.1", "as JSON", response_format={"type": "json_object"}),
            says="Prompt must contain the word 'json'",
            code="invalid_request_error",
        ),
    ),
    (
        "responses",
        Rule(
            name="strict wants every property required, there too",
            broken=responses({**GOOD, "required": []}),
            kept=responses(GOOD),
            says="Missing 'a'.",
            param="text.format",
            code="invalid_json_schema",
        ),
    ),
    (
        "messages",
        Rule(
            name="bounds are refused",
            broken=claude(with_a(maxLength=3)),
            kept=claude(with_a(format="date")),
            says="For 'string' type, property 'maxLength' is not supported",
        ),
    ),
    (
        "messages",
        Rule(
            name="objects have no other properties",
            broken=claude({**GOOD, "additionalProperties": True}),
            kept=claude(GOOD),
            says="'additionalProperties' must be explicitly set to false",
        ),
    ),
    (
        "messages",
        Rule(
            name="no schema refers to itself",
            broken=claude(SELF),
            kept=claude({**GOOD, "$defs": {"n": TEXT}, "properties": {"a": {"$ref": "#/$defs/n"}}}),
            says="Circular reference detected in schema definitions: #",
        ),
    ),
    (
        "messages",
        Rule(
            name="few properties are optional",
            broken=claude(optional(25)),
            kept=claude(optional(24)),
            says="too many optional parameters (25)",
        ),
    ),
    (
        "messages",
        Rule(
            name="older models have none",
            broken=claude(GOOD, model="claude-opus-4-1"),
            kept=claude(GOOD, model="claude-haiku-4-5"),
            says="structured outputs are not supported",
        ),
    ),
]


@pytest.mark.parametrize(("api", "rule"), CASES, ids=lambda case: getattr(case, "name", case))
def test_a_schema_that_breaks_a_rule_is_refused(api: ApiName, rule: Rule) -> None:
    assert_holds(rule, api)
