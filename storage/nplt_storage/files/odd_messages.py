"""One message of another program's document, made regular; what is odd about it is kept.

One odd message is no reason to refuse a conversation. A regular one has `role`
and `content` as text; whatever could not stay what it was is kept in `metadata`,
under `imported_…`, and cut if it is large: a picture among the parts of a
message is no small remark.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

_KEYS: Final = frozenset(["role", "content", "timestamp", "tool_calls", "metadata"])
_KEPT_LETTERS_MAX: Final = 16 * 1024
NO_ROLE: Final = "message"
"""No program calls a role that: it is taken in like every role nobody knows."""


def why_unusable(message: Any) -> str | None:
    if not isinstance(message, dict):
        return "is no JSON object"
    if "role" not in message and "content" not in message:
        return "has neither a role nor a content"
    return None


def regular(message: dict[str, Any], time_of: Callable[[Any], datetime | None]) -> dict[str, Any]:
    """With `metadata` that holds all other keys too."""
    role, content = message.get("role"), message.get("content")
    calls, metadata = message.get("tool_calls"), message.get("metadata")
    kept: dict[str, Any] = {}
    if not isinstance(role, str) or not role:
        kept["role"], role = role, NO_ROLE
    if not isinstance(content, str):
        kept["content"], content = content, _text_of(content)
    if time_of(message.get("timestamp")) is None:
        kept["timestamp"] = message.get("timestamp")
    if not isinstance(calls, list):
        kept["tool_calls"] = calls
    if not isinstance(metadata, dict):
        kept["metadata"], metadata = metadata, {}
    others = {name: value for name, value in message.items() if name not in _KEYS}
    odd = {f"imported_{name}": _cut(value) for name, value in kept.items() if value is not None}
    return message | {"role": role, "content": content, "metadata": others | metadata | odd}


def _text_of(content: Any) -> str:
    """Of a list of parts, those that are text; of anything else, its JSON."""
    if content is None:
        return ""
    parts = content if isinstance(content, list) else [content]
    texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
    found = [text for text in texts if isinstance(text, str)]
    if found or isinstance(content, list):
        return "\n".join(found)
    return as_text(content)


def _cut(value: Any) -> Any:
    text = as_text(value)
    return value if len(text) <= _KEPT_LETTERS_MAX else text[:_KEPT_LETTERS_MAX] + "…"


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
