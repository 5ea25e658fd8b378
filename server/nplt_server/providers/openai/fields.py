"""Fields as servers send them: some are left out, some are of another kind."""

from __future__ import annotations

from nplt_protocol.json_values import JsonValue


def word_of(value: JsonValue) -> str:
    return value if isinstance(value, str) else ""


def count_of(figures: JsonValue, name: str) -> int:
    count = figures.get(name) if isinstance(figures, dict) else None
    return max(count, 0) if isinstance(count, int) else 0
