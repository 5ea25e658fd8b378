"""Prints Markdown and remarks to a terminal's scrollback, where printed text can't be changed.

Growing Markdown is split into blocks, and each is formatted when it is complete. `nplt ask` prints
an answer like this, and the line chat whole conversations. This module imports rich, and no event
loop.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from functools import cache
from io import StringIO
from typing import TextIO

from markdown_it import MarkdownIt
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.markdown import CodeBlock, Heading, Markdown
from rich.padding import Padding
from rich.segment import Segment, Segments
from rich.syntax import Syntax
from rich.text import Text
from rich.theme import Theme

from nplt_client.render.markdown_rules import draw_boxes, keep_line_breaks
from nplt_client.render.text import Sanitizer, width_of

_FENCE = re.compile(r" {0,3}(?:```|~~~)")
_BEGINS_BY_ITSELF = re.compile(r"```|~~~|#{1,6}[ \t\n]")
"""The beginning of a block that needs no empty line before it."""
_IS_TEXT = re.compile(r"[^\W\d_]|\*\*\w|[\"'(“‘]")
"""The beginning of a line of text: no list item, heading or fence."""


@cache
def markdown_parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False})
    for rule in (keep_line_breaks, draw_boxes):  # rich writes the targets of links
        parser.core.ruler.push(rule.__name__, rule)
    return parser.enable(["table", "strikethrough"]).disable(["reference", "image"])


class MarkdownBlockSplitter:
    """Splits growing Markdown into blocks that can't change any more.

    A block is returned when the next one has begun or its fence is closed, since printed text
    can't be changed. The Markdown parser decides where that is, and runs only where a block can
    begin, so that the cost is linear in the length of the answer. The results of `feed` and
    `end`, joined, are the input.
    """

    def __init__(self) -> None:
        self._lines: list[str] = []
        """The lines of the unfinished block, with their line ends."""
        self._begun = ""
        """The unfinished line."""
        self._closing: re.Pattern[str] | None = None
        """The pattern of the closing line, inside a fence."""

    @property
    def unfinished(self) -> str:
        return "".join(self._lines) + self._begun

    def feed(self, piece: str) -> list[str]:
        *whole, self._begun = (self._begun + piece).split("\n")
        blocks: list[str] = []
        for line in whole:
            blocks.extend(self._add(f"{line}\n"))
        # The first word of a paragraph already ends the block before it.
        after_empty = bool(self._lines) and not self._lines[-1].strip()
        if self._closing is None and after_empty and _IS_TEXT.match(self._begun):
            self._lines.append(self._begun)
            blocks.extend(self._cut_before_last())
            self._lines.pop()
        return blocks

    def end(self) -> list[str]:
        left, self._lines, self._begun, self._closing = self.unfinished, [], "", None
        return [left] if left else []

    def _add(self, line: str) -> list[str]:
        self._lines.append(line)
        if self._closing is not None:
            if not self._closing.fullmatch(line):
                return []
            block, self._lines, self._closing = "".join(self._lines), [], None
            return [block]
        if line[0].isspace():
            return []
        after_empty = len(self._lines) > 1 and not self._lines[-2].strip()
        may_begin_block = after_empty or _BEGINS_BY_ITSELF.match(line)
        return self._cut_before_last() if may_begin_block else []

    def _cut_before_last(self) -> list[str]:
        tokens = markdown_parser().parse("".join(self._lines))
        outermost = [(token, token.map[0]) for token in tokens if token.level == 0 and token.map]
        if not outermost:
            return []
        last, start = outermost[-1]
        before, self._lines = self._lines[:start], self._lines[start:]
        blocks = ["".join(before)] if before else []
        if last.type == "fence" and _FENCE.match(self._lines[0]):
            mark = re.escape(last.markup[0])
            closing = re.compile(rf" {{0,3}}{mark}{{{len(last.markup)},}}[ \t]*\n")
            # The parser did not run at the first line if that is indented.
            if len(self._lines) > 1 and closing.fullmatch(self._lines[-1]):
                block, self._lines = "".join(self._lines), []
                return [*blocks, block]
            self._closing = closing
        return blocks


_CODE_THEMES = {"dark": "ansi_dark", "light": "ansi_light", "terminal": "ansi_dark"}
_CODE_INDENT = 2
_STYLES = Theme(
    {
        "markdown.h1": "bold underline",
        "markdown.h2": "bold",
        "markdown.h3": "bold",
        "markdown.h4": "bold italic",
        "markdown.code": "cyan",
        "markdown.code_block": "none",
        "markdown.link": "blue",
        "markdown.link_url": "blue underline",
        "markdown.table.border": "dim",
        "markdown.table.header": "bold",
    }
)


class _LeftHeading(Heading):
    LEVEL_ALIGN = dict.fromkeys(Heading.LEVEL_ALIGN, "left")


class _IndentedCode(CodeBlock):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        code = str(self.text).rstrip()
        syntax = Syntax(code, self.lexer_name, theme=self.theme, word_wrap=True)
        yield Padding(syntax, (0, 0, 0, _CODE_INDENT))


class _Answer(Markdown):
    elements = Markdown.elements | {
        "heading_open": _LeftHeading,
        "fence": _IndentedCode,
        "code_block": _IndentedCode,
    }

    def __init__(self, text: str, code_theme: str) -> None:
        super().__init__("", code_theme=code_theme, hyperlinks=False)
        self.parsed = markdown_parser().parse(text)


def _trimmed(line: Iterable[Segment]) -> list[Segment]:
    """Removes the spaces that pad the line to the width."""
    kept = list(line)
    while kept:
        last = kept.pop()
        if words := last.text.rstrip(" "):
            return [*kept, Segment(words, last.style, last.control)]
    return []


WIDTH_MIN = 20


class ScrollbackWriter:
    """Prints texts with an empty line between them, and remarks without one.

    `flush` writes all output at once, so that the input below it is redrawn only once.
    """

    def __init__(self, put: Callable[[str], None], columns: Callable[[], int]) -> None:
        self.theme = "dark"
        self.is_raw = False
        self._put = put
        self._columns = columns
        self._ink = StringIO()
        self._console = Console(
            file=self._ink,
            force_terminal=True,
            markup=False,
            emoji=False,
            highlight=False,
            theme=_STYLES,
        )
        self._lines: list[str] = []
        self._last_was_remark: bool | None = None

    def answer(self, blocks: Iterable[str]) -> None:
        for block in filter(str.strip, blocks):
            if self.is_raw:
                self.listing(block)
            else:
                self._add(_Answer(block, _CODE_THEMES[self.theme]))

    def prompt(self, who: str, text: str, *, is_mine: bool) -> None:
        """Prints a name, and the text to the right of it."""
        name, style = f"{who} ▸ ", "bold green" if is_mine else "bold magenta"
        body = text.rstrip("\n").replace("\n", "\n" + " " * width_of(name))
        self._add(Text.assemble((name, style), body, tab_size=8))

    def listing(self, text: str) -> None:
        self._add(Text(text, tab_size=8))

    def remark(self, text: str, *, is_error: bool = False) -> None:
        style = "red" if is_error else "dim"
        self._add(Text(text, style=style, tab_size=8), is_remark=True)

    def flush(self) -> None:
        if self._lines:
            text, self._lines = "".join(self._lines), []
            self._put(text)

    def _add(self, what: RenderableType, *, is_remark: bool = False) -> None:
        if self._last_was_remark is not None and not (is_remark and self._last_was_remark):
            self._lines.append("\n")
        self._last_was_remark = is_remark
        console = self._console
        options = console.options.update(width=max(WIDTH_MIN, self._columns()))
        lines = console.render_lines(what, options, pad=False)
        self._ink.seek(0)
        self._ink.truncate()
        trimmed = (segment for line in lines for segment in (*_trimmed(line), Segment.line()))
        console.print(Segments(trimmed), end="", soft_wrap=True)
        self._lines.append(self._ink.getvalue().strip("\n") + "\n")


class MarkdownWriter:
    """Writes an answer to a terminal as formatted Markdown, each block once it is complete."""

    def __init__(self, stream: TextIO) -> None:
        """`stream` must be exact: the text is sanitized here."""
        self._stream = stream
        self._sanitizer = Sanitizer()
        self._splitter = MarkdownBlockSplitter()
        self._scrollback = ScrollbackWriter(self._put, self._columns)

    def write(self, piece: str) -> None:
        self._scrollback.answer(self._splitter.feed(self._sanitizer.feed(piece)))
        self._scrollback.flush()

    def end_line(self) -> None:
        self._scrollback.answer(self._splitter.end())
        self._scrollback.flush()

    def _put(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()

    def _columns(self) -> int:
        try:
            return os.get_terminal_size(self._stream.fileno()).columns or _COLUMNS
        except OSError:
            return _COLUMNS


_COLUMNS = 80
