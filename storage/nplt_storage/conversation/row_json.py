"""A row as JSON, for those who keep rows outside of this process."""

from __future__ import annotations

from dataclasses import fields
from datetime import datetime
from typing import Any

import orjson

from nplt_storage.conversation.rows import ConversationRow

_TIMES = ("created_at", "updated_at", "last_accessed")
_PAIRS = ("unfinished", "hidden")
_NAMES = tuple(field.name for field in fields(ConversationRow))


def row_as_bytes(row: ConversationRow) -> bytes:
    return orjson.dumps({name: getattr(row, name) for name in _NAMES})


def row_from_bytes(data: bytes) -> ConversationRow:
    """Raises `ValueError` or `TypeError` for what `row_as_bytes` did not make."""
    source: dict[str, Any] = orjson.loads(data)
    for name in _TIMES:
        source[name] = datetime.fromisoformat(source[name])
    for name in _PAIRS:
        source[name] = tuple(tuple(pair) for pair in source[name])
    return ConversationRow(**source)
