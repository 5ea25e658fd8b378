"""Requests to Claude, in few words."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

OLDER = "claude-opus-4-5"  # takes sampling parameters, prefill, a thinking budget
NEWER = "claude-opus-5-5"  # takes none of them

TOOL = {"name": "look", "input_schema": {"type": "object", "properties": {"at": {}}}}
MARK = {"cache_control": {"type": "ephemeral"}}


def user(content: object) -> Json:
    return {"role": "user", "content": content}


def assistant(content: object) -> Json:
    return {"role": "assistant", "content": content}


def text(content: str, **more: object) -> Json:
    return {"type": "text", "text": content, **more}


def call(call_id: str = "toolu_1", **more: object) -> Json:
    return {"type": "tool_use", "id": call_id, "name": "look", "input": {}, **more}


def result(call_id: str = "toolu_1", **more: object) -> Json:
    return {"type": "tool_result", "tool_use_id": call_id, "content": "seen", **more}


def ask(*messages: Json, model: str = OLDER, **fields: Any) -> Json:
    listed = list(messages) or [user("hello")]
    return {"model": model, "max_tokens": 2000, "messages": listed, **fields}


def with_tools(*messages: Json, **fields: Any) -> Json:
    return ask(*messages, **{"tools": [TOOL], **fields})


def offering(**fields: object) -> Json:
    return ask(tools=[{**TOOL, **fields}])


def schema(**fields: object) -> Json:
    return offering(input_schema={"type": "object", **fields})


HELLO = user("hello")
ONE_CALL = (HELLO, assistant([call()]))
