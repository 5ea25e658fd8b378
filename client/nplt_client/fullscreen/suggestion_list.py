"""The suggestions above the input, which keeps the focus and hands some keys on.

They are looked up anew at every key that depends on them, not only when the
screen has caught up: whoever types fast gets what was typed.
"""

from __future__ import annotations

from collections.abc import Callable

from textual.content import Content
from textual.widgets import Static

from nplt_client.fullscreen.completion import Suggestion
from nplt_client.fullscreen.safe_text import safe_line
from nplt_client.tables import pad, width_of

_ROWS_MAX = 8


class SuggestionList(Static):
    DEFAULT_CSS = """
    SuggestionList {
        height: auto;
        max-height: 8;
        margin: 0 2;
        background: $surface;
        display: none;
    }
    """

    def __init__(self, suggest: Callable[[str], list[Suggestion]]) -> None:
        super().__init__(markup=False)
        self._suggest = suggest
        self._typed = ""
        self._found: list[Suggestion] = []
        self._chosen = 0

    @property
    def is_open(self) -> bool:
        return bool(self._found)

    @property
    def chosen(self) -> str:
        return self._found[self._chosen].line

    def look(self, typed: str) -> bool:
        """True: there is something to choose from."""
        if typed != self._typed:
            self._typed = typed
            self._offer(self._suggest(typed))
        return self.is_open

    def close(self) -> None:
        """Until something else is typed."""
        self._offer([])

    def _offer(self, found: list[Suggestion]) -> None:
        self._found = found
        self._chosen = 0
        self.display = bool(found)
        if found:
            self._show()

    def move(self, step: int) -> None:
        self._chosen = (self._chosen + step) % len(self._found)
        self._show()

    def _show(self) -> None:
        first = max(0, min(self._chosen - _ROWS_MAX // 2, len(self._found) - _ROWS_MAX))
        rows = self._found[first : first + _ROWS_MAX]
        shown = [safe_line(one.shown, 60) for one in rows]
        width = max(map(width_of, shown))
        lines = [
            Content.styled(
                f" {pad(words, width)}  {one.help} ",
                "reverse" if first + place == self._chosen else "",
            )
            for place, (words, one) in enumerate(zip(shown, rows, strict=True))
        ]
        self.update(Content("\n").join(lines))
