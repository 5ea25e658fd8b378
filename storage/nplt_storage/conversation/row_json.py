"""A row as JSON, for those who keep rows outside of this process."""

from __future__ import annotations

from dataclasses import fields
from datetime import datetime
from typing import Any

import orjson

from nplt_storage.conversation.rows import ConversationRow

_TIMES = ("created_at", "updated_at", "last_accessed")
_LISTS = ("unfinished", "hidden", "widget_seqs", "billed")
_NAMES = tuple(field.name for field in fields(ConversationRow))


def row_as_bytes(row: ConversationRow) -> bytes:
    return orjson.dumps({name: getattr(row, name) for name in _NAMES})


def row_from_bytes(data: bytes, *, last_accessed: datetime | None = None) -> ConversationRow:
    """Raises `ValueError` or `TypeError` for what `row_as_bytes` did not make. A list
    reads fifty of these, so what is as a rule empty is not gone through."""
    source: dict[str, Any] = orjson.loads(data)
    for name in _TIMES:
        source[name] = datetime.fromisoformat(source[name])
    for name in _LISTS:
        members = source.get(name)
        source[name] = tuple(tuple(member) for member in members) if members else ()
    if last_accessed is not None:
        source["last_accessed"] = last_accessed
    return ConversationRow(**source)
