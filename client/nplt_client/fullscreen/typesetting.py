"""Lists, quotes and tables as plain lines of text. Pure.

A list of three hundred items is one text here, not twelve hundred widgets. First
`rows_of` reads the parser's tokens into rows, which don't know how wide the
screen is; then `lay_out` breaks them, each under its own beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from markdown_it.token import Token
from textual.content import Content, Span

from nplt_client.fullscreen.table_setting import Table

_BULLETS = ("• ", "▪ ", "‣ ", "◦ ")
_TAB_WIDTH = 4
_WIDTH_MIN = 8
"""However deep something is indented, this much is left for its words."""

Inline: TypeAlias = Callable[[Token], Content]
Code: TypeAlias = Callable[[str, str], Content]
"""From code and the name of its language."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One paragraph, or one line of code: `first` stands before it, `rest` below that."""

    first: str
    rest: str
    content: Content | Table


@dataclass(slots=True, kw_only=True)
class _Level:
    """Something that indents: an item of a list, a quote."""

    first: str
    rest: str
    is_begun: bool = False


@dataclass(slots=True, kw_only=True)
class _List:
    number: int | None
    """Of its next item; None: it has bullets."""


@dataclass(slots=True)
class _Reading:
    inline: Inline
    code: Code
    rows: list[Row] = field(default_factory=list[Row])
    levels: list[_Level] = field(default_factory=list[_Level])
    lists: list[_List] = field(default_factory=list[_List])
    table: list[list[Content]] | None = None

    def read(self, token: Token) -> None:
        if token.type.endswith(("_open", "_close")):
            self._open_or_close(token)
        else:
            self._show(token)

    def _open_or_close(self, token: Token) -> None:
        match token.type:
            case "bullet_list_open":
                self.lists.append(_List(number=None))
            case "ordered_list_open":
                self.lists.append(_List(number=int(token.attrs.get("start", 1))))
            case "bullet_list_close" | "ordered_list_close":
                self.lists.pop()
            case "list_item_open":
                marker = self._marker()
                self.levels.append(_Level(first=marker, rest=" " * len(marker)))
            case "blockquote_open":
                self._part()
                self.levels.append(_Level(first="▌ ", rest="▌ "))
            case "list_item_close" | "blockquote_close":
                self._begin_line()  # an empty item has its bullet too
                self.levels.pop()
            case "paragraph_open":
                self._part(always=not token.hidden)
            case "heading_open":
                self._part()
            case _:
                self._open_or_close_table(token)

    def _open_or_close_table(self, token: Token) -> None:
        if token.type == "table_open":
            self._part()
            self.table = []
        elif self.table is not None and token.type == "tr_open":
            self.table.append([])
        elif self.table is not None and token.type == "table_close":
            self._add(Table(cells=self.table))
            self.table = None

    def _show(self, token: Token) -> None:
        match token.type:
            case "inline":
                self._say(token)
            case "fence" | "code_block":
                self._part()
                code = self.code(token.content.rstrip(), token.info.partition(" ")[0])
                for line in code.split("\n", allow_blank=True):
                    self._add(_without_tabs(line))
            case "hr":
                self._part()
                self._add(Content("───"))
            case _:
                pass

    def _say(self, token: Token) -> None:
        content = _without_tabs(self.inline(token))
        if self.table:
            self.table[-1].append(content)
        else:
            self._add(content)

    def _marker(self) -> str:
        here = self.lists[-1]
        if here.number is None:
            depth = sum(one.number is None for one in self.lists)
            return _BULLETS[(depth - 1) % len(_BULLETS)]
        here.number += 1
        return f"{here.number - 1}. ".rjust(4)

    def _part(self, *, always: bool = False) -> None:
        """An empty line before what comes, unless it is the first of its item."""
        is_parted = not self.rows or self.rows[-1].content == Content()
        if not is_parted and (always or not self.levels or self.levels[-1].is_begun):
            prefix = "".join(level.rest for level in self.levels if level.is_begun)
            self.rows.append(Row(first=prefix, rest=prefix, content=Content()))

    def _begin_line(self) -> None:
        if self.levels and not self.levels[-1].is_begun:
            self._add(Content())

    def _add(self, content: Content | Table) -> None:
        first = "".join(one.rest if one.is_begun else one.first for one in self.levels)
        rest = "".join(one.rest for one in self.levels)
        for level in self.levels:
            level.is_begun = True
        self.rows.append(Row(first=first, rest=rest, content=content))


def rows_of(tokens: Iterable[Token], *, inline: Inline, code: Code) -> list[Row]:
    reading = _Reading(inline, code)
    for token in tokens:
        reading.read(token)
    return reading.rows


def lay_out(rows: Sequence[Row], width: int) -> Content:
    """Lines no wider than `width`, as one text."""
    parts: list[str] = []
    spans: list[Span] = []
    place = 0
    indent_max = max(1, width - _WIDTH_MIN)
    for row in rows:
        prefix, rest = row.first[-indent_max:], row.rest[-indent_max:]
        for line in _lines(row.content, max(1, width - len(prefix))):
            if prefix.strip():
                spans.append(Span(place, place + len(prefix), ".marker"))
            place += len(prefix)
            spans.extend(Span(one.start + place, one.end + place, one.style) for one in line.spans)
            parts.append(f"{prefix}{line.plain}")
            place += len(line.plain) + 1
            prefix = rest
    return Content("\n".join(parts), spans)


def _without_tabs(content: Content) -> Content:
    """What is measured must be as wide as what is drawn."""
    return content.expand_tabs(_TAB_WIDTH) if "\t" in content.plain else content


def _lines(content: Content | Table, width: int) -> list[Content]:
    if isinstance(content, Table):
        return content.lines(width)
    if "\n" not in content.plain and content.cell_length <= width:
        return [content]
    return content.wrap(width)
