"""The text of one call: Markdown that grows at its end.

While pieces come in, only the last, unfinished block is parsed and drawn again;
what stands above it is left alone. When the stored text is there, the whole is
parsed once more (a list that turned out loose, a link defined further down).
Markdown is drawn up to a limit of lines and characters. What lies beyond it, and
everything while `/raw` is on, is shown as it was written, which costs next to
nothing: no answer can keep the chat from hearing keys.

HTML is shown as text: what a model wrote is never hidden. Links are not opened:
a click copies the address and shows it, for the words of a link may lie.
"""

from __future__ import annotations

from collections.abc import Iterator

from textual.app import ComposeResult
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Static

from nplt_client.fullscreen.markdown_view import MarkdownView
from nplt_client.fullscreen.plain_pages import PlainPages, cut

MARKDOWN_LINES_MAX = 400
MARKDOWN_CHARACTERS_MAX = 40_000
_FROM_HERE_ON = "… this is long: from here on it is shown as it was written"


class AnswerView(Widget):
    DEFAULT_CSS = """
    AnswerView {
        height: auto;
        layout: vertical;
        .limit { padding: 0 2; color: $text-muted; margin: 0 0 1 0; }
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

    async def stand(self, text: str) -> None:
        """This is the text, from now on."""
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
            return  # not on the screen yet
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
