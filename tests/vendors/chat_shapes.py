"""Fields of `POST /v1/chat/completions`: the request, its messages and their parts.

From the API reference (the official SDK's parameter types); audio, the older `functions`
and web search are left out, and so refused.
"""

from __future__ import annotations

from tests.vendors.fields import Shape

REQUEST = Shape(
    required={"model": "string", "messages": "array"},
    optional={
        "frequency_penalty": "number|null",
        "logit_bias": "object|null",
        "max_completion_tokens": "integer|null",
        "max_tokens": "integer|null",
        "metadata": "object|null",
        "n": "integer|null",
        "parallel_tool_calls": "boolean",
        "presence_penalty": "number|null",
        "prompt_cache_key": "string|null",
        "reasoning_effort": "string|null",
        "response_format": "object",
        "safety_identifier": "string|null",
        "seed": "integer|null",
        "service_tier": "string|null",
        "stop": "string|array|null",
        "store": "boolean|null",
        "stream": "boolean|null",
        "stream_options": "object|null",
        "temperature": "number|null",
        "tool_choice": "string|object",
        "tools": "array",
        "top_p": "number|null",
        "user": "string",
        "verbosity": "string|null",
    },
)
STREAM_OPTIONS = Shape(optional={"include_usage": "boolean", "include_obfuscation": "boolean"})
TOOL = Shape(required={"type": "string", "function": "object"})
FUNCTION = Shape(
    required={"name": "string"},
    optional={"description": "string", "parameters": "object", "strict": "boolean|null"},
)
PLAIN = Shape(
    required={"role": "string", "content": "string|array|null"}, optional={"name": "string"}
)
MESSAGES = {
    "system": PLAIN,
    "developer": PLAIN,
    "user": PLAIN,
    "assistant": Shape(
        required={"role": "string"},
        optional={
            "content": "string|array|null",
            "name": "string",
            "refusal": "string|null",
            "tool_calls": "array",
        },
    ),
    "tool": Shape(
        required={
            "role": "string",
            "content": "string|array|null",
            "tool_call_id": "string",
        }
    ),
}
CALL = Shape(required={"id": "string", "type": "string", "function": "object"})
CALLED = Shape(required={"name": "string", "arguments": "string"})
PARTS = {
    "user": ("text", "image_url", "input_audio", "file"),
    "assistant": ("text", "refusal"),
}
