"""The text of one call as far as it is printed.

A file of its own: `printer` needs it and rich, `plain_terminal` needs it without rich.
"""

from __future__ import annotations


class PrintedText:
    """The text of one call that is printed as it comes: returns only what is not printed yet.

    After a lost connection a text may come again from its beginning, and at the end it
    comes whole, as it is stored.
    """

    def __init__(self) -> None:
        self._printed: list[str] = []
        self._again: str | None = None
        """What came since the text began again; `None` once that has caught up."""

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
        """Returns the rest of the stored text. `None`: it differs from what was printed; from now
        on the stored text counts."""
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
