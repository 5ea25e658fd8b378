"""One text of a model on its way to the paper: each character is printed once. Pure.

After a lost connection the text may be told again from its beginning, and at
the end it is told whole, as it is stored. What was printed stays printed; only
what goes beyond it is new.
"""

from __future__ import annotations

from nplt_client.linemode.markdown_blocks import BlockCutter


class AnswerFlow:
    def __init__(self) -> None:
        self._cutter = BlockCutter()
        self._printed: list[str] = []
        self._told: str | None = None
        """While it is told again; None: all that is told is new."""

    @property
    def text(self) -> str:
        return "".join(self._printed)

    @property
    def unfinished(self) -> str:
        return self._cutter.unfinished

    def grow(self, piece: str) -> list[str]:
        if self._told is None:
            return self._go_on(piece)
        self._told += piece
        return self._catch_up(self._told)

    def tell_again(self) -> None:
        self._told = ""

    def stand(self, text: str) -> list[str]:
        """The text as it is stored; finished."""
        known = self.text
        if known and not text.startswith(known) and text.strip() != known.strip():
            blocks = [*self._cutter.end(), "(It is stored differently:)", text]
            self._printed, self._told = [text], None
            return blocks
        return [*self._catch_up(text), *self.end()]

    def end(self) -> list[str]:
        return self._cutter.end()

    def _catch_up(self, told: str) -> list[str]:
        known = self.text
        if len(told) < len(known) or not told.startswith(known):
            return []
        self._told = None
        return self._go_on(told[len(known) :])

    def _go_on(self, piece: str) -> list[str]:
        if piece:
            self._printed.append(piece)
        return self._cutter.feed(piece)
