"""Tools of Anthropic's Messages API: what is offered, and that every call has its result.

All results of one assistant message stand at the head of the very next one. Known from
refusals; so is that calls in `messages` ask for `tools` (documented for Bedrock, seen
with Anthropic itself in 2024, and held here).
"""

from __future__ import annotations

from tests.vendors.anthropic_rules import ANTHROPIC
from tests.vendors.fields import (
    JsonObject,
    Path,
    check_choice,
    check_kind,
    check_name,
    check_shape,
)
from tests.vendors.json_schemas import schema_faults
from tests.vendors.messages_shapes import (
    PROPERTY_NAME,
    SAY,
    TOOL,
    TOOL_NAME,
    blocks_of,
    check_mark,
)
from tests.vendors.rejections import Rejection


def check_tools(body: JsonObject) -> None:
    tools = body.get("tools", [])
    for place, tool in enumerate(tools):
        _check_tool(tool, place)
    names = [tool["name"] for tool in tools]
    if len(set(names)) < len(names):
        raise ANTHROPIC["anthropic-tool-names"].at(("tools",))
    choice = body.get("tool_choice")
    if choice is not None:
        _check_choice(choice, names)


def _check_tool(tool: object, place: int) -> None:
    path: Path = ("tools", place, "custom")
    tool = check_shape(tool, path, TOOL, SAY)
    check_mark(tool, path)
    check_choice(tool.get("type") or "custom", (*path, "type"), ("custom",), SAY)
    check_name(tool["name"], (*path, "name"), TOOL_NAME, SAY)
    schema, path = tool["input_schema"], (*path, "input_schema")
    if {"oneOf", "allOf", "anyOf"} & schema.keys():
        raise ANTHROPIC["anthropic-schema-top"].at(path)
    if "type" not in schema:
        raise SAY.missing((*path, "type"))
    check_choice(schema["type"], (*path, "type"), ("object",), SAY)
    if next(schema_faults({**schema, "properties": schema.get("properties") or {}}), None):
        raise ANTHROPIC["anthropic-schema"].at(path)
    properties = schema.get("properties")
    check_kind(properties, (*path, "properties"), "object|null", SAY)
    for name in properties or {}:
        try:
            check_name(name, path, PROPERTY_NAME, SAY)
        except Rejection:
            rule = ANTHROPIC["anthropic-property-names"]
            raise rule.at((*path, "properties"), pattern=PROPERTY_NAME) from None


def _check_choice(choice: JsonObject, names: list[str]) -> None:
    if not names:
        raise ANTHROPIC["anthropic-tool-choice"].refusal()
    check_choice(
        choice.get("type", ""), ("tool_choice", "type"), ("auto", "any", "tool", "none"), SAY
    )


def check_calls(body: JsonObject) -> None:
    messages = [blocks_of(message["content"]) for message in body["messages"]]
    known: set[str] = set()
    for place, blocks in enumerate(messages):
        _check_unique(blocks, place, known)
        previous = messages[place - 1] if place else []
        _check_results(blocks, place, [block["id"] for block in _of(previous, "tool_use")])
        following = messages[place + 1] if place + 1 < len(messages) else []
        _check_answered(blocks, place, following)
    if not body.get("tools") and any(
        _of(blocks, "tool_use") or _of(blocks, "tool_result") for blocks in messages
    ):
        raise ANTHROPIC["anthropic-calls-without-tools"].refusal()


def _check_unique(blocks: list[JsonObject], place: int, known: set[str]) -> None:
    for number, block in enumerate(blocks):
        if block["type"] == "tool_use":
            if block["id"] in known:
                path = ("messages", place, "content", number)
                raise ANTHROPIC["anthropic-call-ids"].at(path)
            known.add(block["id"])


def _check_results(blocks: list[JsonObject], place: int, asked: list[str]) -> None:
    answered: set[str] = set()
    for number, block in enumerate(blocks):
        if block["type"] != "tool_result":
            continue
        call_id, path = block["tool_use_id"], ("messages", place, "content", number)
        if call_id not in asked:
            raise ANTHROPIC["anthropic-result-without-call"].at(path, id=call_id)
        if call_id in answered:
            raise ANTHROPIC["anthropic-two-results"].at(path, id=call_id)
        answered.add(call_id)


def _check_answered(blocks: list[JsonObject], place: int, following: list[JsonObject]) -> None:
    """Only results that nothing else stands before count."""
    leading = []
    for block in following:
        if block["type"] != "tool_result":
            break
        leading.append(block["tool_use_id"])
    unanswered = [block["id"] for block in _of(blocks, "tool_use") if block["id"] not in leading]
    if unanswered:
        rule = ANTHROPIC["anthropic-call-without-result"]
        raise rule.at(("messages", place), ids=", ".join(unanswered))


def _of(blocks: list[JsonObject], kind: str) -> list[JsonObject]:
    return [block for block in blocks if block["type"] == kind]
