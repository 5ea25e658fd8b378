"""Fields of Anthropic's Messages API: the request, its blocks, its tools.

From the API reference (the official SDK's parameter types). Left out, and so refused,
is what a client of ours never sends: server tools, containers, citations, messages with
role `system`, the settings of `thinking.block_binding`.
"""

from __future__ import annotations

from tests.vendors.anthropic_rules import ANTHROPIC
from tests.vendors.fields import (
    JsonObject,
    Path,
    Shape,
    check_choice,
    check_kind,
    check_name,
    check_shape,
)
from tests.vendors.wordings import AnthropicWording

SAY = AnthropicWording()

# Seen in refusals of 2025, for `tools` and for `tool_use` blocks; `tools` are
# documented with 128 now. We hold the narrower.
TOOL_NAME = "^[a-zA-Z0-9_-]{1,64}$"
CALL_ID = "^[a-zA-Z0-9_-]+$"
PROPERTY_NAME = "^[a-zA-Z0-9_.-]{1,64}$"

_COUNTED = {
    "system": "string|array",
    "tools": "array",
    "tool_choice": "object",
    "thinking": "object",
    "cache_control": "object|null",
    "output_config": "object",
}
REQUEST = Shape(
    required={"model": "string", "max_tokens": "integer", "messages": "array"},
    optional={
        **_COUNTED,
        "metadata": "object",
        "service_tier": "string",
        "stop_sequences": "array",
        "stream": "boolean",
        "temperature": "number",
        "top_k": "integer",
        "top_p": "number",
    },
)
COUNT_REQUEST = Shape(required={"model": "string", "messages": "array"}, optional=_COUNTED)
MESSAGE = Shape(required={"role": "string", "content": "string|array"})
TOOL = Shape(
    required={"name": "string", "input_schema": "object"},
    optional={
        "type": "string|null",
        "description": "string",
        "cache_control": "object|null",
        "strict": "boolean",
        "eager_input_streaming": "boolean|null",
        "input_examples": "array",
    },
)
_MARK = {"cache_control": "object|null"}
_BLOCKS = {
    "text": Shape(
        required={"type": "string", "text": "string"},
        optional={**_MARK, "citations": "array|null"},
    ),
    "image": Shape(required={"type": "string", "source": "object"}, optional=_MARK),
    "document": Shape(
        required={"type": "string", "source": "object"},
        optional={**_MARK, "title": "string|null", "context": "string|null"},
    ),
    "tool_use": Shape(
        required={"type": "string", "id": "string", "name": "string", "input": "object"},
        optional=_MARK,
    ),
    "tool_result": Shape(
        required={"type": "string", "tool_use_id": "string"},
        optional={**_MARK, "content": "string|array", "is_error": "boolean"},
    ),
    "thinking": Shape(required={"type": "string", "thinking": "string", "signature": "string"}),
    "redacted_thinking": Shape(required={"type": "string", "data": "string"}),
}
OF_ASSISTANT = frozenset({"text", "tool_use", "thinking", "redacted_thinking"})
OF_USER = frozenset({"text", "image", "document", "tool_result"})


def check_block(block: object, path: Path) -> JsonObject:
    """Any block, by its type."""
    check_kind(block, path, "object", SAY)
    assert isinstance(block, dict)
    kind = block.get("type")
    if not isinstance(kind, str) or kind not in _BLOCKS:
        expected = ", ".join(f"'{each}'" for each in _BLOCKS)
        raise ANTHROPIC["anthropic-tag"].at(path, tag=kind, expected=expected)
    path = (*path, kind)
    check_shape(block, path, _BLOCKS[kind], SAY)
    check_mark(block, path)
    match kind:
        case "tool_use":
            check_name(block["id"], (*path, "id"), CALL_ID, SAY)
            check_name(block["name"], (*path, "name"), TOOL_NAME, SAY)
        case "tool_result":
            _check_result(block, path)
    return block


def check_mark(block: JsonObject, path: Path) -> None:
    mark = block.get("cache_control")
    if mark is None:
        return
    path = (*path, "cache_control")
    check_shape(mark, path, Shape(required={"type": "string"}, optional={"ttl": "string"}), SAY)
    check_choice(mark["type"], (*path, "type"), ("ephemeral",), SAY)
    check_choice(mark.get("ttl", "5m"), (*path, "ttl"), ("5m", "1h"), SAY)


def blocks_of(content: object) -> list[JsonObject]:
    """A text alone is one block."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    assert isinstance(content, list)
    return content


def _check_result(block: JsonObject, path: Path) -> None:
    check_name(block["tool_use_id"], (*path, "tool_use_id"), CALL_ID, SAY)
    content = block.get("content", "")
    if block.get("is_error") and not content:
        raise ANTHROPIC["anthropic-empty-error"].at(path)
    if isinstance(content, list):
        for place, inner in enumerate(content):
            inner_path = (*path, "content", place)
            check_block(inner, inner_path)
            check_choice(inner["type"], (*inner_path, "type"), ("text", "image", "document"), SAY)
