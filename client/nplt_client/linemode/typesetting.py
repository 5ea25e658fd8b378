"""How things look on the paper: safe text to lines with colours. No terminal in here.

Links are written out, for their words may lie. Colours are those of the
terminal's own palette, and nothing has a background: a scrollback may be light
or dark, and is copied from; so no line has spaces at its end either.
"""

from __future__ import annotations

from collections.abc import Iterable
from io import StringIO

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.markdown import CodeBlock, Heading, Markdown
from rich.padding import Padding
from rich.segment import Segment, Segments
from rich.syntax import Syntax
from rich.text import Text
from rich.theme import Theme

from nplt_client.linemode.markdown_blocks import markdown_parser
from nplt_client.tables import width_of

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


class Typesetter:
    def __init__(self) -> None:
        self.theme = "dark"
        self._ink = StringIO()
        self._console = Console(
            file=self._ink,
            force_terminal=True,
            markup=False,
            emoji=False,
            highlight=False,
            theme=_STYLES,
        )

    def markdown(self, text: str, *, width: int) -> str:
        return self._set(_Answer(text, _CODE_THEMES[self.theme]), width)

    def plain(self, text: str, *, width: int, style: str = "") -> str:
        return self._set(Text(text, style=style, tab_size=8), width)

    def said(self, who: str, text: str, *, width: int, style: str) -> str:
        """A name, and what was said beside it."""
        name = f"{who} ▸ "
        body = text.rstrip("\n").replace("\n", "\n" + " " * width_of(name))
        return self._set(Text.assemble((name, f"bold {style}"), body, tab_size=8), width)

    def _set(self, what: RenderableType, width: int) -> str:
        console = self._console
        lines = console.render_lines(what, console.options.update(width=width), pad=False)
        self._ink.seek(0)
        self._ink.truncate()
        trimmed = (segment for line in lines for segment in (*_trimmed(line), Segment.line()))
        console.print(Segments(trimmed), end="", soft_wrap=True)
        return self._ink.getvalue()


def _trimmed(line: Iterable[Segment]) -> list[Segment]:
    """Without the spaces at its end, which are there to fill the width."""
    kept = list(line)
    while kept:
        last = kept.pop()
        if words := last.text.rstrip(" "):
            return [*kept, Segment(words, last.style, last.control)]
    return []
