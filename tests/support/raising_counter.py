"""A token counter that fails for some texts, for servers that are started with it."""

from __future__ import annotations


def count_tokens(text: str) -> int:
    if "boom" in text:
        raise ValueError("can't count this")
    return len(text) // 4
