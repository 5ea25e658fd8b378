"""The widgets that show an answer: Markdown that grows at its end, or plain pages.

Each list, quote and table is one widget with text laid out here; one widget per item
would make long answers slow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import ClassVar, Literal, TypeAlias

from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore
from markdown_it.token import Token
from textual.app import ComposeResult
from textual.content import Content, Span
from textual.geometry import Size
from textual.widget import Widget
from textual.widgets import Markdown, Static
from textual.widgets.markdown import MarkdownBlock, MarkdownFence

from nplt_client.render.markdown_rules import draw_boxes, keep_line_breaks, show_link_targets
from nplt_client.render.text import width_of

PAGE_LINES = 300
PAGE_CHARACTERS = 20_000


class PlainPages(Widget):
    """Shows unformatted text in pages of a bounded size; only the last one grows."""

    DEFAULT_CSS = """
    PlainPages {
        height: auto;
        layout: vertical;
        padding: 0 2;
        Static { height: auto; }
    }
    """

    def __init__(self, text: str = "") -> None:
        super().__init__()
        self._last_text = ""
        self._last: Static | None = None
        self._first_text = text

    def compose(self) -> ComposeResult:
        yield from self._pages(self._first_text)
        self._first_text = ""

    async def grow(self, piece: str) -> None:
        head, rest = cut(self._last_text + piece, lines=PAGE_LINES, characters=PAGE_CHARACTERS)
        if self._last is None:
            await self.mount_all(self._pages(piece))
            return
        self._last_text = head
        self._last.update(_shown(head, is_last=not rest))
        if rest:
            await self.mount_all(self._pages(rest))

    def _pages(self, text: str) -> list[Static]:
        pages: list[Static] = []
        while text:
            self._last_text, text = cut(text, lines=PAGE_LINES, characters=PAGE_CHARACTERS)
            self._last = Static(_shown(self._last_text, is_last=not text), markup=False)
            pages.append(self._last)
        return pages


def _shown(page: str, *, is_last: bool) -> Content:
    """Removes a page's last newline, since the next page begins on a new line anyway."""
    return Content(page if is_last else page.removesuffix("\n"))


def cut(text: str, *, lines: int, characters: int) -> tuple[str, str]:
    """Splits a text into a beginning within both limits, of whole lines if possible, and the
    rest."""
    end = 0
    for _ in range(lines):
        found = text.find("\n", end)
        line_end = len(text) if found < 0 else found + 1
        if line_end > characters:
            end = end or characters
            break
        end = line_end
        if end == len(text):
            break
    return text[:end], text[end:]


_APART = " │ "
_COLUMN_MIN = 6


Cells: TypeAlias = Sequence[Sequence[Content]]
"""The cells of a table; the first row has the headings."""
Alignment: TypeAlias = Literal["left", "center", "right"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    cells: Cells
    alignments: Sequence[Alignment] = ()
    """One per column; columns without one are aligned to the left."""


def table_lines(cells: Cells, width: int, alignments: Sequence[Alignment] = ()) -> list[Content]:
    """Lays a table out as lines of text.

    If the screen is too narrow, the widest columns shrink first; if that is not enough, each
    row becomes a list of `heading: cell`.
    """
    heads, *rows = cells
    heads = [head.stylize(".head") for head in heads]
    if len(heads) * (_COLUMN_MIN + len(_APART)) > width + len(_APART):
        listed: list[Content] = []
        for row in rows:
            for head, cell in zip(heads, row, strict=False):
                listed.extend((head + ": " + cell).wrap(width))
            listed.append(Content())
        return listed[:-1] or list(heads)
    columns = zip_longest(*cells, fillvalue=Content())
    widths = [max(1, *(cell.cell_length for cell in column)) for column in columns]
    room = width - len(_APART) * (len(heads) - 1)
    if sum(widths) > room:
        # Each column gets its natural width, up to the bound at which all columns fit.
        bound = max(
            bound
            for bound in range(_COLUMN_MIN, room + 1)
            if sum(min(one, bound) for one in widths) <= room
        )
        widths = [min(one, bound) for one in widths]
    rule = Content("─┼─".join("─" * one for one in widths)).stylize(".rule")
    lines = [*_row_lines(heads, widths, alignments), rule]
    for row in rows:
        lines.extend(_row_lines(row, widths, alignments))
    return lines


def _row_lines(
    row: Sequence[Content], widths: Sequence[int], alignments: Sequence[Alignment]
) -> list[Content]:
    """Lays out one row, which is as high as its highest cell."""
    missing = [Content()] * (len(widths) - len(row))
    wrapped = [
        [cell] if cell.cell_length <= width else cell.wrap(width)
        for cell, width in zip([*row, *missing], widths, strict=False)
    ]
    lines: list[Content] = []
    for parts in zip_longest(*wrapped, fillvalue=Content()):
        columns = zip_longest(parts, widths[: len(parts)], alignments[: len(parts)])
        padded = [_aligned(part, width, how or "left") for part, width, how in columns]
        lines.append(Content(_APART).join([*padded[:-1], padded[-1].rstrip()]))
    return lines


def _aligned(part: Content, width: int, how: Alignment) -> Content:
    room = max(0, width - part.cell_length)
    left = {"left": 0, "center": room // 2, "right": room}[how]
    return part.pad_left(left).pad_right(room - left)


_BOX_WIDTH = 2
_BULLETS = ("• ", "▪ ", "‣ ", "◦ ")
_TAB_WIDTH = 4
_WIDTH_MIN = 8
"""The least width for text, however deep it is indented."""

Inline: TypeAlias = Callable[[Token], Content]
Code: TypeAlias = Callable[[str, str], Content]
"""Highlights code, given the code and the name of its language."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRow:
    """A paragraph or a line of code. `first` is the prefix of its first line, `rest` that of
    the others."""

    first: str
    rest: str
    content: Content | Table
    is_code: bool = False
    """A line of code: it is broken anywhere, and a mark shows where."""


@dataclass(slots=True, kw_only=True)
class _Indent:
    """A level of indentation: a list item or a quote."""

    first: str
    rest: str
    is_begun: bool = False


class _BlockReader:
    """Converts the parser's tokens to rows, which do not depend on the width of the screen."""

    def __init__(self, inline: Inline, code: Code) -> None:
        self.rows: list[TextRow] = []
        self._inline = inline
        self._code = code
        self._levels: list[_Indent] = []
        self._lists: list[int | None] = []
        """The number of the next item of each open list; None for bullets."""
        self._table: list[list[Content]] = []
        self._alignments: list[Alignment] = []

    def read(self, token: Token) -> None:
        match token.type:
            case "paragraph_open":
                self._part(always=not token.hidden)
            case "heading_open" | "table_open":
                self._part()
            case "tr_open":
                self._table.append([])
            case "th_open":
                self._alignments.append(_alignment_of(token))
            case "table_close":
                self._add(Table(cells=self._table, alignments=self._alignments))
                self._table, self._alignments = [], []
            case "inline":
                content = _without_tabs(self._inline(token))
                if self._table:
                    self._table[-1].append(content)
                else:
                    self._add(content)
            case "fence" | "code_block":
                self._part()
                code = self._code(token.content.rstrip(), token.info.partition(" ")[0])
                for line in code.split("\n", allow_blank=True):
                    self._add(_without_tabs(line), is_code=True)
            case "hr":
                self._part()
                self._add(Content("───"))
            case _:
                self._indent(token)

    def _indent(self, token: Token) -> None:
        match token.type:
            case "bullet_list_open":
                self._lists.append(None)
            case "ordered_list_open":
                self._lists.append(int(token.attrs.get("start", 1)))
            case "bullet_list_close" | "ordered_list_close":
                self._lists.pop()
            case "list_item_open":
                number = self._lists[-1]
                if token.meta.get("is_task"):  # its text begins with a box
                    marker = ""
                elif number is None:
                    marker = _BULLETS[(self._lists.count(None) - 1) % len(_BULLETS)]
                else:
                    self._lists[-1] = number + 1
                    marker = f"{number}. ".rjust(4)
                self._levels.append(_Indent(first=marker, rest=" " * (len(marker) or _BOX_WIDTH)))
            case "blockquote_open":
                self._part()
                self._levels.append(_Indent(first="▌ ", rest="▌ "))
            case "list_item_close" | "blockquote_close":
                if not self._levels[-1].is_begun:
                    self._add(Content())  # an empty item still shows its bullet
                self._levels.pop()
            case _:
                pass

    def _part(self, *, always: bool = False) -> None:
        """Adds an empty line before the next block, unless that is the first of its item."""
        is_parted = not self.rows or self.rows[-1].content == Content()
        if not is_parted and (always or not self._levels or self._levels[-1].is_begun):
            prefix = "".join(level.rest for level in self._levels if level.is_begun)
            self.rows.append(TextRow(first=prefix, rest=prefix, content=Content()))

    def _add(self, content: Content | Table, *, is_code: bool = False) -> None:
        first = "".join(one.rest if one.is_begun else one.first for one in self._levels)
        rest = "".join(one.rest for one in self._levels)
        for level in self._levels:
            level.is_begun = True
        self.rows.append(TextRow(first=first, rest=rest, content=content, is_code=is_code))


def _alignment_of(cell: Token) -> Alignment:
    match str(cell.attrs.get("style", "")):
        case "text-align:right":
            return "right"
        case "text-align:center":
            return "center"
        case _:
            return "left"


def rows_of(tokens: Iterable[Token], *, inline: Inline, code: Code) -> list[TextRow]:
    reading = _BlockReader(inline, code)
    for token in tokens:
        reading.read(token)
    return reading.rows


def lay_out(rows: Sequence[TextRow], width: int) -> Content:
    """Wraps the rows at `width`, as one text."""
    parts: list[str] = []
    spans: list[Span] = []
    place = 0
    indent_max = max(1, width - _WIDTH_MIN)
    for row in rows:
        prefix, rest = row.first[-indent_max:], row.rest[-indent_max:]
        room, content = max(1, width - len(prefix)), row.content
        if isinstance(content, Table):
            lines = table_lines(content.cells, room, content.alignments)
        elif row.is_code:
            lines = broken_code(content, room)
        elif "\n" not in content.plain and content.cell_length <= room:
            lines = [content]
        else:
            lines = content.wrap(room)
        for line in lines:
            if prefix.strip():
                spans.append(Span(place, place + len(prefix), ".marker"))
            place += len(prefix)
            spans.extend(Span(one.start + place, one.end + place, one.style) for one in line.spans)
            parts.append(f"{prefix}{line.plain}")
            place += len(line.plain) + 1
            prefix = rest
    return Content("\n".join(parts), spans)


GOES_ON = "↪ "
"""Marks the rest of a line of code that is longer than the screen is wide."""


def broken_code(line: Content, width: int) -> list[Content]:
    """Breaks a line of code that is too long, at any character."""
    parts: list[Content] = []
    room = width
    while line.cell_length > room:
        end = max(1, _characters_within(line.plain, room))
        part, line = line.divide([end])
        parts.append(part if not parts else GOES_ON + part)
        room = max(1, width - len(GOES_ON))
    return [*parts, line if not parts else GOES_ON + line]


def _characters_within(text: str, width: int) -> int:
    """How many characters of the text fit into that many cells."""
    used = 0
    for place, character in enumerate(text):
        used += width_of(character)
        if used > width:
            return place
    return len(text)


def _without_tabs(content: Content) -> Content:
    """Expands tabs, so that the measured width is the drawn width."""
    return content.expand_tabs(_TAB_WIDTH) if "\t" in content.plain else content


_FOLDED = frozenset({"bullet_list", "ordered_list", "blockquote", "table"})
_CODE = frozenset({"fence", "code_block"})
_NESTING_MAX = 100
"""The parser ignores blocks that are nested deeper."""


def parser() -> MarkdownIt:
    """Makes a parser that treats HTML as text."""
    made = MarkdownIt("gfm-like", {"html": False, "maxNesting": _NESTING_MAX})
    for rule in (keep_line_breaks, draw_boxes, show_link_targets):
        made.core.ruler.push(rule.__name__, rule)
    made.core.ruler.push("fold_blocks", _fold_blocks)
    return made


def _fold_blocks(state: StateCore) -> None:
    kept: list[Token] = []
    within: list[Token] = []
    for token in state.tokens:
        if not within and token.type in _CODE:
            kept.append(Token("folded_code", "", 0, map=token.map, meta={"tokens": [token]}))
            continue
        if not within and token.type.removesuffix("_open") not in _FOLDED:
            kept.append(token)
            continue
        within.append(token)
        if token.level == 0 and token.nesting < 0:
            kept.append(Token("folded", "", 0, map=within[0].map, meta={"tokens": within}))
            within = []
    state.tokens = kept


class MarkdownView(Markdown):
    """Textual's Markdown, with each list, quote, table and piece of code as one widget.

    The parser folds all tokens of such a block into one. A growing block is laid out again in
    its widget.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text, parser_factory=parser, open_links=False)

    async def settle(self) -> None:
        """Called when the text is complete; draws it again if parsing all of it gives other
        blocks than the pieces did."""
        blocks = self.query_children(MarkdownBlock)
        drawn = [(block.name, block.source_range) for block in blocks]
        parsed = [
            (token.type, tuple(token.map or ()))
            for token in parser().parse(self.source)
            if token.level == 0 and token.nesting >= 0
        ]
        if drawn != parsed or "]:" in self.source:  # it may define a link used further up
            await self.update(self.source)

    def unhandled_token(self, token: Token) -> MarkdownBlock | None:
        match token.type:
            case "folded":
                return FoldedBlock(self, token)
            case "folded_code":
                return CodeBlock(self, token)
            case _:
                return None


class FoldedBlock(MarkdownBlock):
    DEFAULT_CSS = """
    FoldedBlock {
        margin: 0 0 1 0;
        & > .marker { color: $text-primary; }
        & > .rule { color: $foreground 60%; }
        & > .head { text-style: bold; }
    }
    """
    COMPONENT_CLASSES: ClassVar[set[str]] = {"marker", "rule", "head"}

    def __init__(self, markdown: Markdown, token: Token) -> None:
        super().__init__(markdown, token)
        self._rows: list[TextRow] | None = None
        self._laid_out: tuple[int, Content] | None = None

    def render(self) -> Content:
        return self._content_for(self.content_size.width)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return self._content_for(width).plain.count("\n") + 1

    def notify_style_update(self) -> None:
        """Lays it out again, since the colours of code may have changed."""
        self._rows = self._laid_out = None
        super().notify_style_update()

    async def _update_from_block(self, block: MarkdownBlock) -> None:
        if isinstance(block, FoldedBlock):
            self._copy_context(block)
            self._rows = self._laid_out = None
            self.update()
        else:
            await super()._update_from_block(block)

    def _content_for(self, width: int) -> Content:
        if self._rows is None:
            ansi, dark = self.app.native_ansi_color, self.app.current_theme.dark
            code = partial(MarkdownFence.highlight, ansi=ansi, dark=dark)
            tokens: list[Token] = self._token.meta["tokens"]
            self._rows = rows_of(tokens, inline=self._token_to_content, code=code)
        if self._laid_out is None or self._laid_out[0] != width:
            self._laid_out = (width, lay_out(self._rows, width))
        return self._laid_out[1]


class CodeBlock(FoldedBlock):
    DEFAULT_CSS = """
    CodeBlock {
        margin: 0 0 1 0;
        padding: 1 2;
        background: $surface;
        &:ansi { background: transparent; }
    }
    """


MARKDOWN_LINES_MAX = 400
MARKDOWN_CHARACTERS_MAX = 40_000
_FROM_HERE_ON = "… this is long: from here on it is shown as it was written"


class AnswerView(Widget):
    """The text of one call: Markdown that grows at its end.

    For each piece only the last, unfinished block is parsed and drawn again. The stored text is
    parsed once more as a whole (a list may turn out loose, a link may be defined further down).
    Beyond a limit of lines and characters, and while `/raw` is on, text is shown unformatted,
    so that no answer can block the keys. HTML is shown as text. Links are not opened: a click
    copies the address and shows it.
    """

    DEFAULT_CSS = """
    AnswerView {
        height: auto;
        layout: vertical;
        .limit { padding: 0 2; color: $text-muted; margin: 0 0 1 0; }
        Markdown { background: transparent; }
        MarkdownH1, MarkdownH2 { content-align: left middle; margin: 1 0; }
    }
    """

    def __init__(self, text: str = "", *, is_raw: bool = False) -> None:
        super().__init__()
        self.source = text
        self._is_raw = is_raw
        self._markdown: MarkdownView | None = None
        self._plain: PlainPages | None = None
        self._streamed = False

    def compose(self) -> ComposeResult:
        yield from self._body()

    async def grow(self, piece: str) -> None:
        was_drawn = self._drawn_as_markdown()
        self.source += piece
        self._streamed = True
        if self._plain is not None:
            await self._plain.grow(piece)
        elif self._markdown is not None:
            drawn = self._drawn_as_markdown()
            if more := drawn[len(was_drawn) :]:
                await self._markdown.append(more)
            if len(drawn) < len(self.source):
                await self.mount_all(self._beyond(self.source[len(drawn) :]))

    async def store(self, text: str) -> None:
        """Replaces the streamed text by the stored one."""
        is_known, was_streamed = text == self.source, self._streamed
        self.source = text
        self._streamed = False
        if not is_known:
            await self._show_again()
        elif was_streamed and self._markdown is not None:
            await self._markdown.settle()

    async def show_raw(self, is_raw: bool) -> None:
        if is_raw != self._is_raw:
            self._is_raw = is_raw
            await self._show_again()

    async def _show_again(self) -> None:
        if self._markdown is None and self._plain is None:
            return  # it is not mounted yet
        drawn = self._drawn_as_markdown()
        if self._markdown is not None and self._plain is None and drawn == self.source:
            await self._markdown.update(self.source)
            return
        with self.app.batch_update():
            await self.remove_children()
            await self.mount_all(list(self._body()))

    def _drawn_as_markdown(self) -> str:
        if self._is_raw:
            return ""
        return cut(self.source, lines=MARKDOWN_LINES_MAX, characters=MARKDOWN_CHARACTERS_MAX)[0]

    def _body(self) -> Iterator[Widget]:
        self._markdown = self._plain = None
        if self._is_raw:
            self._plain = PlainPages(self.source)
            yield self._plain
            return
        drawn = self._drawn_as_markdown()
        self._markdown = MarkdownView(drawn)
        yield self._markdown
        if len(drawn) < len(self.source):
            yield from self._beyond(self.source[len(drawn) :])

    def _beyond(self, rest: str) -> Iterator[Widget]:
        yield Static(Content(_FROM_HERE_ON), classes="limit", markup=False)
        self._plain = PlainPages(rest)
        yield self._plain
