"""Textual's Markdown, with each list, quote and table as one widget.

The parser folds all tokens of such a block into one; the widget made of it has
its text typeset for the width it is given. What grows is typeset again in place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore
from markdown_it.token import Token
from textual.content import Content
from textual.geometry import Size
from textual.widgets import Markdown
from textual.widgets.markdown import MarkdownBlock, MarkdownFence

from nplt_client.fullscreen.typesetting import Row, lay_out, rows_of

_FOLDED = frozenset({"bullet_list", "ordered_list", "blockquote", "table"})
_NESTING_MAX = 100
"""What is nested deeper the parser leaves out."""


def parser() -> MarkdownIt:
    """HTML is text to it."""
    made = MarkdownIt("gfm-like", {"html": False, "maxNesting": _NESTING_MAX})
    made.core.ruler.push("fold_blocks", _fold_blocks)
    return made


def _fold_blocks(state: StateCore) -> None:
    state.tokens = list(_folded(state.tokens))


def _folded(tokens: Sequence[Token]) -> Iterator[Token]:
    within: list[Token] = []
    for token in tokens:
        if not within and token.type.removesuffix("_open") not in _FOLDED:
            yield token
            continue
        within.append(token)
        if token.level == 0 and token.nesting < 0:
            yield Token("folded", "", 0, map=within[0].map, meta={"tokens": within})
            within = []


class MarkdownView(Markdown):
    def __init__(self, text: str) -> None:
        super().__init__(text, parser_factory=parser, open_links=False)

    async def settle(self) -> None:
        """All of it has come: it is drawn anew where the whole says more than its pieces did."""
        if not self._stands_as_parsed():
            await self.update(self.source)

    def _stands_as_parsed(self) -> bool:
        if "]:" in self.source:
            return False  # the address of a link further up
        blocks = self.query_children(MarkdownBlock)
        drawn = [(block.name, block.source_range) for block in blocks]
        tokens = parser().parse(self.source)
        return drawn == [
            (token.type, tuple(token.map or ()))
            for token in tokens
            if token.level == 0 and token.nesting >= 0
        ]

    def unhandled_token(self, token: Token) -> MarkdownBlock | None:
        return FoldedBlock(self, token) if token.type == "folded" else None


class FoldedBlock(MarkdownBlock):
    DEFAULT_CSS = """
    FoldedBlock {
        margin: 0 0 1 0;
        & > .marker { color: $text-primary; }
        & > .rule { color: $text-muted; }
        & > .head { text-style: bold; }
    }
    """
    COMPONENT_CLASSES: ClassVar[set[str]] = {"marker", "rule", "head"}

    def __init__(self, markdown: Markdown, token: Token) -> None:
        super().__init__(markdown, token)
        self._rows: list[Row] | None = None
        self._laid_out: tuple[int, Content] | None = None

    def render(self) -> Content:
        return self._content_for(self.content_size.width)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return self._content_for(width).plain.count("\n") + 1

    def notify_style_update(self) -> None:
        """Code in it may have other colours now."""
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
        if self._laid_out is None or self._laid_out[0] != width:
            self._laid_out = (width, lay_out(self._typeset(), width))
        return self._laid_out[1]

    def _typeset(self) -> list[Row]:
        if self._rows is None:
            tokens: list[Token] = self._token.meta["tokens"]
            self._rows = rows_of(tokens, inline=self._token_to_content, code=self._code)
        return self._rows

    def _code(self, code: str, language: str) -> Content:
        app = self.app
        return MarkdownFence.highlight(
            code, language, ansi=app.native_ansi_color, dark=app.current_theme.dark
        )
