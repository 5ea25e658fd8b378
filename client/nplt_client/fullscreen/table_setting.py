"""A table as lines of text. Pure.

Columns are as wide as their words want. Where the screen is too narrow the
widest give way first; where that leaves too little, each row becomes a small
list of its own: heading, colon, cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from textual.content import Content

_APART = " │ "
_COLUMN_MIN = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    cells: Sequence[Sequence[Content]]
    """The first row is the headings."""

    def lines(self, width: int) -> list[Content]:
        heads, *rows = self.cells
        heads = [head.stylize(".head") for head in heads]
        if len(heads) * (_COLUMN_MIN + len(_APART)) > width + len(_APART):
            return _as_lists(heads, rows, width)
        widths = _widths(self.cells, width - len(_APART) * (len(heads) - 1))
        rule = Content("─┼─".join("─" * one for one in widths)).stylize(".rule")
        lines = _line(heads, widths)
        lines.append(rule)
        for row in rows:
            lines.extend(_line(row, widths))
        return lines


def _widths(cells: Sequence[Sequence[Content]], room: int) -> list[int]:
    columns = zip_longest(*cells, fillvalue=Content())
    wanted = [max(1, *(cell.cell_length for cell in column)) for column in columns]
    if sum(wanted) <= room:
        return wanted
    # As wide as they want, up to the bound at which all of them fit.
    bound = max(one for one in range(_COLUMN_MIN, room + 1) if _sum(wanted, one) <= room)
    return [min(one, bound) for one in wanted]


def _sum(wanted: Sequence[int], bound: int) -> int:
    return sum(min(one, bound) for one in wanted)


def _line(row: Sequence[Content], widths: Sequence[int]) -> list[Content]:
    """One row, as many lines high as its highest cell."""
    missing = [Content()] * (len(widths) - len(row))
    wrapped = [
        [cell] if cell.cell_length <= width else cell.wrap(width)
        for cell, width in zip([*row, *missing], widths, strict=False)
    ]
    lines: list[Content] = []
    for parts in zip_longest(*wrapped, fillvalue=Content()):
        *padded, last = (
            (part, part.pad_right(max(0, width - part.cell_length)))
            for part, width in zip(parts, widths, strict=True)
        )
        lines.append(Content(_APART).join([*(wide for _, wide in padded), last[0]]))
    return lines


def _as_lists(
    heads: Sequence[Content], rows: Sequence[Sequence[Content]], width: int
) -> list[Content]:
    lines: list[Content] = []
    for row in rows:
        for head, cell in zip(heads, row, strict=False):
            lines.extend((head + ": " + cell).wrap(width))
        lines.append(Content())
    return lines[:-1] or list(heads)
