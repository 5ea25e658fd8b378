"""What was printed and stays: the scrollback.

Each thing is printed once, with an empty line between things that are to be
read apart; remarks stand together. What is printed is gathered and put onto the
terminal in one go (`flush`), so that the prompt below is redrawn once for it.
"""

from __future__ import annotations

from collections.abc import Callable

from nplt_client.linemode.typesetting import Typesetter

WIDTH_MIN = 20


class Paper:
    def __init__(self, put: Callable[[str], None], columns: Callable[[], int]) -> None:
        self.typesetter = Typesetter()
        self.is_raw = False
        self._put = put
        self._columns = columns
        self._lines: list[str] = []
        self._last_was_remark: bool | None = None
        self._last_remark = ""

    def answer(self, block: str) -> None:
        if not block.strip():
            return
        width = self._width
        set_ = self.typesetter
        text = set_.plain(block, width=width) if self.is_raw else set_.markdown(block, width=width)
        self._add(text, is_remark=False)

    def said(self, who: str, text: str, *, is_mine: bool) -> None:
        style = "green" if is_mine else "magenta"
        self._add(self.typesetter.said(who, text, width=self._width, style=style), is_remark=False)

    def listing(self, text: str) -> None:
        self._add(self.typesetter.plain(text, width=self._width), is_remark=False)

    def remark(self, text: str, *, is_error: bool = False) -> None:
        """The same one is not made twice in a row: our deed, and the word that it was done."""
        if self._last_was_remark and text == self._last_remark:
            return
        style = "red" if is_error else "dim"
        self._add(self.typesetter.plain(text, width=self._width, style=style), is_remark=True)
        self._last_remark = text

    def flush(self) -> None:
        if self._lines:
            text, self._lines = "".join(self._lines), []
            self._put(text)

    @property
    def _width(self) -> int:
        return max(WIDTH_MIN, self._columns())

    def _add(self, text: str, *, is_remark: bool) -> None:
        if self._last_was_remark is not None and not (is_remark and self._last_was_remark):
            self._lines.append("\n")
        self._lines.append(text.strip("\n") + "\n")
        self._last_was_remark = is_remark
