"""Aligned columns for listings, with wide (CJK, emoji) characters counted as two.

Cells are made safe and brought onto one line here, so that no caller can
forget it. Widths follow East Asian Width; a terminal that disagrees about some
emoji shows a column that is off by one, nothing worse.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Container, Iterable, Sequence

from nplt_client.sanitize import sanitize_line


def width_of(text: str) -> int:
    if text.isascii():
        return len(text)
    return sum(_cells(character) for character in text)


def _cells(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def shorten(text: str, width: int) -> str:
    """At most `width` cells, with an ellipsis where something is missing."""
    if width_of(text) <= width:
        return text
    kept: list[str] = []
    used = 1
    for character in text:
        used += _cells(character)
        if used > width:
            break
        kept.append(character)
    return "".join(kept).rstrip() + "…"


def pad(text: str, width: int, *, to_the_right: bool = False) -> str:
    room = " " * max(0, width - width_of(text))
    return room + text if to_the_right else text + room


def table(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    cell_width_max: int = 40,
    numbers: Container[str] = (),
) -> str:
    """The line's end is trimmed; columns of `numbers` are set to the right."""
    lines = [list(header)]
    lines += [[shorten(sanitize_line(cell), cell_width_max) for cell in row] for row in rows]
    widths = [max(width_of(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(
        "  ".join(
            pad(cell, width, to_the_right=name in numbers)
            for cell, width, name in zip(line, widths, header, strict=True)
        ).rstrip()
        for line in lines
    )


def pairs(values: Iterable[tuple[str, str]]) -> str:
    """`name  value` lines, for a status."""
    safe = [(name, sanitize_line(value)) for name, value in values]
    width = max((width_of(name) for name, _ in safe), default=0)
    return "\n".join(f"{pad(name, width)}  {value}".rstrip() for name, value in safe)
