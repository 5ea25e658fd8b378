"""A schema for the answer: what is taken for one, how it reaches each vendor, the check."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from tests.server.providers import anthropic_stage, openai_stage
from tests.server.providers.anthropic_stage import deltas_of
from tests.support.vendor_models import rendered_in
from tests.vendors.answers import Call, say
from tests.vendors.emulator import Emulator, emulator

from nplt_protocol import JsonObject, RequestError
from nplt_server.context.messages import ModelInputMessage
from nplt_server.errors import ProviderRefused
from nplt_server.providers import LlmRequest, check_options
from nplt_server.providers.schemas import fault_of_answer, for_anthropic, for_openai
from nplt_server.request_form import RequestForm

TEXT: JsonObject = {"type": "string"}
PERSON: JsonObject = {
    "type": "object",
    "properties": {"name": TEXT, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
OPEN: JsonObject = {"type": "object", "properties": {"name": {**TEXT, "minLength": 2}}}
TREE: JsonObject = {
    "type": "object",
    "properties": {"leaves": {"type": "array", "items": {"$ref": "#"}}},
    "required": ["leaves"],
    "additionalProperties": False,
}
LIST: JsonObject = {"type": "array", "items": TEXT}


# What is taken for a schema


# Each test here starts a process for its checks, which takes longer than all its examples.

NO_SCHEMAS: list[tuple[Any, str, str]] = [
    (["no"], "malformed", "a schema is a JSON object, not a list"),
    ("{}", "malformed", "a schema is a JSON object, not text"),
    ({"type": "strin"}, "malformed", "this is not a JSON schema: 'strin'"),
    ({"pattern": "("}, "malformed", "'(' is not a 'regex'"),
    ({"properties": {"a": 3}}, "malformed", "(at /properties/a)"),
    ({"$ref": "https://example.com/s"}, "malformed", "nothing is fetched"),
    ({"items": [{"$ref": "other.json"}]}, "malformed", "nothing is fetched"),
    ({"$ref": "#/$defs/none"}, "malformed", "there is no '/$defs/none' in it"),
    ({"description": "x" * 40_000}, "too_large", "at most 32,768 are taken"),
]


async def test_what_is_no_schema_is_refused_with_a_sentence() -> None:
    for schema, code, says in NO_SCHEMAS:
        with pytest.raises(RequestError) as caught:
            await check_options({"schema": schema})
        assert (caught.value.code, caught.value.field) == (code, "options.schema")
        assert says in caught.value.message


async def test_any_schema_is_taken() -> None:
    schemas: list[JsonObject] = [{}, PERSON, OPEN, TREE, LIST, {"$ref": "#"}]
    for schema in schemas:
        await check_options({"schema": schema})


# The check

ANSWERS: list[tuple[JsonObject, str, str | None]] = [
    (PERSON, '{"name": "Ada", "age": 36}', None),
    (PERSON, '\n```json\n{"name": "Ada", "age": 36}\n```\n', None),
    (PERSON, '{"name": "Ada"}', "'age' is a required property"),
    (PERSON, '{"name": "Ada", "age": -1}', "-1 is less than the minimum of 0 (at /age)"),
    (PERSON, 'Here it is: {"name": "Ada", "age": 36}', "the answer is not JSON: "),
    (PERSON, "", "the answer is not JSON: "),
    (LIST, '["a", 1]', "1 is not of type 'string' (at /1)"),
    (TREE, '{"leaves": [{"leaves": [{}]}]}', "'leaves' is a required property (at /leaves/0"),
    ({"$ref": "#"}, "{}", "it refers to itself without end"),
]


async def test_an_answer_is_checked() -> None:
    for schema, answer, fault in ANSWERS:
        shown = await fault_of_answer(schema, answer)
        assert shown == fault if fault is None else (shown or "").startswith(fault), answer


@pytest.mark.slow
async def test_a_check_without_end_is_given_up_and_nothing_else_waits_for_it() -> None:
    endless: JsonObject = {"type": "string", "pattern": "^(a+)+$"}
    faults: list[str | None] = []

    async def check() -> None:
        faults.append(await fault_of_answer(endless, f'"{"a" * 60}b"'))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(check)
        for _ in range(10):  # the event loop is free meanwhile
            await anyio.sleep(0.01)
        assert faults == []
    assert "can't be checked within" in (faults[0] or "")


# The forms of the vendors


def openai_request(
    schema: JsonObject, model: str, *, tools: bool = False, answer_only: bool = False
) -> LlmRequest:
    return LlmRequest(
        invocation=openai_stage.request(model=model).invocation,
        context=(ModelInputMessage(content="as JSON", seq=1),),
        tools=(openai_stage.LOOK,) if tools else (),
        options={"schema": schema},
        answer_only=answer_only,
    )


def chat_body(schema: JsonObject, model: str, **how: bool) -> dict[str, Any]:
    return rendered_in(openai_stage.CHAT, openai_request(schema, model, **how)).body


def test_openai_is_strict_where_the_schema_meets_its_rules() -> None:
    for schema, strict in ((PERSON, True), (OPEN, False), (TREE, True)):
        shown = chat_body(schema, "gpt-4.1", tools=True)["response_format"]
        assert shown["json_schema"] == {"name": "answer", "schema": schema, "strict": strict}
        rendered = rendered_in(openai_stage.RESPONSES, openai_request(schema, "gpt-4.1"))
        assert rendered.body["text"]["format"]["strict"] is strict
    assert "response_format" not in chat_body(LIST, "gpt-4.1")
    # What only explains is left out: strict does not know it.
    shown = for_openai({**PERSON, "$schema": "https://json-schema.org/draft/2020-12/schema"})
    assert shown == (PERSON, True)


def test_anthropic_is_sent_what_it_knows_and_what_it_does_not_is_left_to_the_check() -> None:
    body = anthropic_stage.body_of(
        anthropic_stage.request(
            model="claude-opus-5-5", options={"schema": PERSON, "effort": "low"}
        )
    )
    schema = body["output_config"]["format"]["schema"]
    assert body["output_config"]["effort"] == "low"
    assert schema["properties"] == {"name": TEXT, "age": {"type": "integer"}}
    assert {**schema, "properties": PERSON["properties"]} == PERSON
    assert for_anthropic(TREE) is None
    assert for_anthropic({"type": "object", "additionalProperties": TEXT}) is None
    assert for_anthropic({"oneOf": [TEXT, LIST]}) == {"anyOf": [TEXT, LIST]}
    for model in ("claude-opus-4-1", "kimi-k3"):
        asked = anthropic_stage.request(model=model, options={"schema": PERSON})
        assert "output_config" not in anthropic_stage.body_of(asked)


def test_a_server_of_others_gets_a_schema_only_where_no_tool_need_be_called() -> None:
    shown = {"name": "answer", "schema": LIST}
    assert chat_body(LIST, "qwen3")["response_format"]["json_schema"] == shown
    assert "response_format" not in chat_body(LIST, "qwen3", tools=True)
    mending = chat_body(LIST, "qwen3", tools=True, answer_only=True)
    assert mending["response_format"]["json_schema"] == shown
    assert mending["tool_choice"] == "none"
    assert chat_body(PERSON, "deepseek-v4-pro")["response_format"] == {"type": "json_object"}


def schemas() -> st.SearchStrategy[Any]:
    leaf: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
        [
            TEXT,
            {"type": "integer", "minimum": 1},
            {"type": "string", "format": "email", "maxLength": 9},
            {"type": "string", "format": "regex"},
            {"enum": ["a", None]},
            {"enum": [{"a": 1}]},
            {"const": 1},
            {"type": ["string", "null"]},
            {"$ref": "#/$defs/leaf"},
            {"$ref": "#/$defs/loop"},
            {},
            {"type": "object"},
            {"type": "boolean", "default": True},
        ]
    )

    def larger(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        names = st.sampled_from(["a", "b", "c"])
        properties = st.dictionaries(names, inner, max_size=3)
        return st.one_of(
            st.builds(
                lambda properties, required, closed: {
                    "type": "object",
                    "properties": properties,
                    "required": required,
                    **({} if closed is None else {"additionalProperties": closed}),
                },
                properties,
                st.lists(names, unique=True),
                st.sampled_from([None, False, False, True, TEXT]),
            ),
            st.builds(
                lambda items, least: {"type": "array", "items": items, "minItems": least},
                inner,
                st.integers(0, 3),
            ),
            st.builds(
                lambda word, shapes: {word: shapes},
                st.sampled_from(["anyOf", "oneOf", "allOf"]),
                st.lists(inner, min_size=1, max_size=2),
            ),
        )

    loop = {"type": "object", "properties": {"next": {"$ref": "#/$defs/loop"}}}
    defs = {"leaf": TEXT, "loop": loop}

    def with_defs(shown: dict[str, Any]) -> dict[str, Any]:
        return {**shown, "$defs": defs}

    return st.recursive(leaf, larger, max_leaves=6).map(with_defs)


@given(schemas())
def test_no_vendor_refuses_the_form_of_any_schema(schema: JsonObject) -> None:
    vendors = Emulator()
    for model in ("gpt-4.1", "gpt-5.2", "deepseek-v4-pro"):
        vendors.api("chat").admit(chat_body(schema, model))
    responses = rendered_in(openai_stage.RESPONSES, openai_request(schema, "gpt-5.2"))
    vendors.api("responses").admit(responses.body)
    for model in ("claude-opus-4-1", "claude-haiku-4-5", "claude-opus-5-5"):
        asked = anthropic_stage.request(model=model, options={"schema": schema})
        vendors.api("messages").admit(anthropic_stage.body_of(asked))


async def test_a_refused_schema_is_left_out_of_the_form_to_use_instead_and_not_sent_again() -> None:
    names = [f"p{number}" for number in range(30)]
    many: JsonObject = {"type": "object", "properties": dict.fromkeys(names, TEXT)}

    def answer(call: Call) -> Any:
        return say("{}")

    async with emulator(answer) as vendors:
        provider = anthropic_stage.anthropic_provider(
            models=("claude-opus-5-5",), key=vendors.key, base_url=vendors.anthropic_url
        )
        asked = anthropic_stage.request(model="claude-opus-5-5", options={"schema": many})
        with pytest.raises(ProviderRefused) as caught:
            await deltas_of(provider, asked)
        assert caught.value.instead == RequestForm(without_schema=True)
        for request in (structs.replace(asked, form=caught.value.instead), asked):
            assert anthropic_stage.accumulated(await deltas_of(provider, request)).text == "{}"
        await provider.aclose()
    assert [each.rejection is None for each in vendors.received] == [False, True, True]
    assert "too many optional parameters" in vendors.rejections[0].message
