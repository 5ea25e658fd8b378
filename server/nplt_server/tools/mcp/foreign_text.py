"""Words of strangers, made safe to show and to hand on: what can't be seen is not there."""

from __future__ import annotations

from typing import Final

from nplt_server.clean_text import clean_text

_KEPT: Final = frozenset("\n\t")
_CONTROLS: Final = (*range(0x20), *range(0x7F, 0xA0))
_DIRECTIONS: Final = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""They make a line read otherwise than it is."""
_TAGS: Final = range(0xE0000, 0xE0080)
"""Letters that are invisible to people and plain to a model."""

_DROPPED: Final = dict.fromkeys(
    code for code in (*_CONTROLS, *_DIRECTIONS, *_TAGS) if chr(code) not in _KEPT
)


def clean_foreign(text: str) -> str:
    """Without control characters other than line ends and tabs, and nothing hidden."""
    return clean_text(text.replace("\r\n", "\n").replace("\r", "\n").translate(_DROPPED))


def cut_foreign(text: str, *, characters_max: int) -> str:
    cleaned = clean_foreign(text).strip()
    return cleaned if len(cleaned) <= characters_max else cleaned[: characters_max - 1] + "…"


def one_line(text: str, *, characters_max: int = 200) -> str:
    return cut_foreign(" ".join(clean_foreign(text).split()), characters_max=characters_max)
