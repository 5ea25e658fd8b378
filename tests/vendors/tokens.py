"""One way to write JSON down, and the length of it in tokens: four characters each.

Real tokenizers differ; what matters here is that the same text always counts the same.
"""

from __future__ import annotations

import json

CHARACTERS_PER_TOKEN = 4


def canonical(value: object) -> str:
    """Independent of the order of keys. Cache marks and absent values are no content."""
    return json.dumps(_plain(value), sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def tokens_of(text: str) -> int:
    return -(-len(text) // CHARACTERS_PER_TOKEN)


def _plain(value: object) -> object:
    match value:
        case dict():
            return {
                name: _plain(inner)
                for name, inner in value.items()
                if name != "cache_control" and inner is not None
            }
        case list():
            return [_plain(inner) for inner in value]
        case _:
            return value
