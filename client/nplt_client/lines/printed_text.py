"""Tracks which part of a call's text is printed.

It has its own file because `plain_terminal` uses it and must not import rich, as `printer` does.
"""

from __future__ import annotations


class PrintedText:
    """The printed text of one call. Its methods return only what is not printed yet.

    After a lost connection a text may be replayed from its beginning, and at the end the stored
    text is received.
    """

    def __init__(self) -> None:
        self._printed: list[str] = []
        self._again: str | None = None
        """The replayed text so far; `None` once it is as long as the printed text."""

    @property
    def text(self) -> str:
        return "".join(self._printed)

    def grow(self, piece: str) -> str:
        if self._again is None:
            self._printed.append(piece)
            return piece
        self._again += piece
        return self._print_rest(self._again)

    def begin_again(self, text: str) -> str:
        self._again = text
        return self._print_rest(text)

    def store(self, text: str) -> str | None:
        """Returns the rest of the stored text, or `None` if it differs from the printed text.
        From then on the stored text counts as printed."""
        known = self.text
        if known and not text.startswith(known) and text.strip() != known.strip():
            self._printed, self._again = [text], None
            return None
        return self._print_rest(text)

    def _print_rest(self, text: str) -> str:
        known = self.text
        if len(text) < len(known) or not text.startswith(known):
            return ""
        self._again = None
        new = text[len(known) :]
        self._printed.append(new)
        return new
