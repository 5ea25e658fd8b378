"""Fields of `POST /v1/responses`: the request and its items.

From the API reference (the official SDK's parameter types); built-in tools and what
belongs to them are left out, and so refused.
"""

from __future__ import annotations

from tests.vendors.fields import JsonObject, Path, Shape
from tests.vendors.openai_rules import OPENAI
from tests.vendors.openai_tools import SAY
from tests.vendors.wordings import bracketed

CALL_ID_CHARACTERS_MAX = 64
ITEM_ID_CHARACTERS_MAX = 64

REQUEST = Shape(
    required={"model": "string", "input": "string|array"},
    optional={
        "include": "array|null",
        "instructions": "string|null",
        "max_output_tokens": "integer|null",
        "metadata": "object|null",
        "parallel_tool_calls": "boolean|null",
        "previous_response_id": "string|null",
        "prompt_cache_key": "string|null",
        "reasoning": "object|null",
        "safety_identifier": "string|null",
        "service_tier": "string|null",
        "store": "boolean|null",
        "stream": "boolean|null",
        "stream_options": "object|null",
        "temperature": "number|null",
        "text": "object",
        "tool_choice": "string|object",
        "tools": "array",
        "top_p": "number|null",
        "truncation": "string|null",
        "user": "string",
    },
)
FUNCTION = Shape(
    required={"type": "string", "name": "string", "parameters": "object|null"},
    optional={"description": "string|null", "strict": "boolean|null"},
)
_COMMON = {"id": "string|null", "status": "string|null"}
ITEMS = {
    "function_call": Shape(
        required={"type": "string", "call_id": "string", "name": "string", "arguments": "string"},
        optional=_COMMON,
    ),
    "function_call_output": Shape(
        required={"type": "string", "call_id": "string", "output": "string|array"},
        optional=_COMMON,
    ),
    "reasoning": Shape(
        required={"type": "string", "id": "string", "summary": "array"},
        optional={
            "status": "string|null",
            "encrypted_content": "string|null",
            "content": "array|null",
        },
    ),
    "item_reference": Shape(required={"type": "string", "id": "string"}),
}
_INPUT_MESSAGE = Shape(
    required={"role": "string", "content": "string|array"},
    optional={"type": "string", **_COMMON},
)
MESSAGES = {
    "user": _INPUT_MESSAGE,
    "system": _INPUT_MESSAGE,
    "developer": _INPUT_MESSAGE,
    "assistant": Shape(
        required={"role": "string", "content": "string|array"},
        optional={"type": "string", "phase": "string|null", **_COMMON},
    ),
}
PARTS = {
    "user": {
        "input_text": Shape(required={"type": "string", "text": "string"}),
        "input_image": Shape(
            required={"type": "string"},
            optional={"image_url": "string|null", "detail": "string", "file_id": "string|null"},
        ),
        "input_file": Shape(
            required={"type": "string"},
            optional={"file_data": "string", "file_id": "string|null", "filename": "string"},
        ),
    },
    "assistant": {
        "output_text": Shape(
            required={"type": "string", "text": "string"},
            optional={"annotations": "array", "logprobs": "array|null"},
        ),
        "refusal": Shape(required={"type": "string", "refusal": "string"}),
    },
}
_PREFIXES = {
    "function_call": "fc",
    "function_call_output": "fc",
    "message": "msg",
    "reasoning": "rs",
}


def check_item_id(item: JsonObject, kind: str, path: Path) -> None:
    item_id = item.get("id")
    if item_id is None:
        return
    path = (*path, "id")
    if len(item_id) > ITEM_ID_CHARACTERS_MAX:
        raise SAY.too_long(path, len(item_id), ITEM_ID_CHARACTERS_MAX)
    place = bracketed(path)
    if not item_id.startswith(_PREFIXES[kind]):
        rule = OPENAI["openai-item-prefix"]
        raise rule.refusal(param=place, path=place, id=item_id, prefix=_PREFIXES[kind])
    if not item_id.isascii() or not item_id.replace("_", "").replace("-", "").isalnum():
        rule = OPENAI["openai-item-characters"]
        raise rule.refusal(param=place, path=place, id=item_id)
