"""Tracks which part of a call's text is printed.

In a file of its own because `plain_terminal` uses it and must not import rich; `printer` does
import rich.
"""

from __future__ import annotations


class PrintedText:
    """The printed text of one call. Its methods return only what is not printed yet.

    After a lost connection a text may be replayed from its beginning, and the stored text arrives
    at the end.
    """

    def __init__(self) -> None:
        self._printed: list[str] = []
        self._replayed: str | None = None
        """The replayed text so far, or `None` if no replay is behind the printed text."""

    @property
    def text(self) -> str:
        return "".join(self._printed)

    def grow(self, piece: str) -> str:
        if self._replayed is None:
            self._printed.append(piece)
            return piece
        self._replayed += piece
        return self._unprinted_part(self._replayed)

    def begin_again(self, text: str) -> str:
        self._replayed = text
        return self._unprinted_part(text)

    def finish(self, stored_text: str) -> str | None:
        """Returns the unprinted part of the stored text, or `None` if that differs from the
        printed text. If it differs, it replaces the printed text here."""
        printed = self.text
        if (
            printed
            and not stored_text.startswith(printed)
            and stored_text.strip() != printed.strip()
        ):
            self._printed, self._replayed = [stored_text], None
            return None
        return self._unprinted_part(stored_text)

    def _unprinted_part(self, text: str) -> str:
        printed = self.text
        if len(text) < len(printed) or not text.startswith(printed):
            return ""
        self._replayed = None
        new = text[len(printed) :]
        self._printed.append(new)
        return new
