"""Text as it was written, however long: pages below each other, the last one grows.

A page is small, so that one more piece costs the same at the end of a book as at
the end of a line.
"""

from __future__ import annotations

from textual.app import ComposeResult
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Static

PAGE_LINES = 300
PAGE_CHARACTERS = 20_000


class PlainPages(Widget):
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
    """The next page begins on a line of its own anyway."""
    return Content(page if is_last else page.removesuffix("\n"))


def cut(text: str, *, lines: int, characters: int) -> tuple[str, str]:
    """The beginning that is within both limits, whole lines where that can be, and the rest."""
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
