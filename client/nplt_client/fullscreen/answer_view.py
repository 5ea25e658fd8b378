"""The text of one call: Markdown that grows at its end.

While pieces come in, only the last, unfinished block is parsed and drawn again;
what stands above it is left alone. When the stored text is there, the whole is
parsed once more (a list that turned out loose, a link defined further down).
Texts too long for that, and all texts while `/raw` is on, are shown as they are.

HTML is shown as text: what a model wrote is never hidden. Links are not opened:
a click copies the address and shows it, for the words of a link may lie.
"""

from __future__ import annotations

from markdown_it import MarkdownIt
from textual.app import ComposeResult
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Markdown, Static

MARKDOWN_CHARACTERS_MAX = 200_000


def parser() -> MarkdownIt:
    return MarkdownIt("gfm-like", {"html": False})


class AnswerView(Widget):
    DEFAULT_CSS = """
    AnswerView {
        height: auto;
        layout: vertical;
        Static.raw { padding: 0 2; }
        Markdown { background: transparent; }
        MarkdownH1, MarkdownH2 { content-align: left middle; margin: 1 0; }
        MarkdownFence, MarkdownFence:light { margin: 0 0 1 0; background: $surface; }
        MarkdownFence:ansi { background: transparent; }
    }
    """

    def __init__(self, text: str = "", *, is_raw: bool = False) -> None:
        super().__init__()
        self.source = text
        self._is_raw = is_raw
        self._body: Markdown | Static | None = None
        self._streamed = False

    def compose(self) -> ComposeResult:
        self._body = self._fitting_body()
        yield self._body

    async def grow(self, piece: str) -> None:
        self.source += piece
        self._streamed = True
        if isinstance(self._body, Markdown) and len(self.source) <= MARKDOWN_CHARACTERS_MAX:
            await self._body.append(piece)
        else:
            await self._show_again()

    async def stand(self, text: str) -> None:
        """This is the text, from now on."""
        if text == self.source and not self._streamed:
            return
        self.source = text
        self._streamed = False
        await self._show_again()

    async def show_raw(self, is_raw: bool) -> None:
        if is_raw != self._is_raw:
            self._is_raw = is_raw
            await self._show_again()

    async def _show_again(self) -> None:
        if self._body is None:
            return  # not on the screen yet
        wants_plain = self._wants_plain()
        match self._body:
            case Markdown() as body if not wants_plain:
                await body.update(self.source)
            case Static() as body if wants_plain:
                body.update(Content(self.source))
            case _:
                self._body = self._fitting_body()
                with self.app.batch_update():
                    await self.remove_children()
                    await self.mount(self._body)

    def _wants_plain(self) -> bool:
        return self._is_raw or len(self.source) > MARKDOWN_CHARACTERS_MAX

    def _fitting_body(self) -> Markdown | Static:
        if self._wants_plain():
            return Static(Content(self.source), classes="raw", markup=False)
        return Markdown(self.source, parser_factory=parser, open_links=False)
