"""One of several texts, found by a few letters: earlier prompts, models, themes."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content

from nplt_client.fullscreen.fuzzy_screen import FuzzyScreen, Row
from nplt_client.fullscreen.picking import ranked
from nplt_client.fullscreen.safe_text import safe, safe_line

_SHOWN_MAX = 200
_ABOUT_LINES_MAX = 6


class ChoiceScreen(FuzzyScreen):
    def __init__(self, title: str, choices: Sequence[str], *, marked: str | None = None) -> None:
        super().__init__()
        self._title = title
        self._choices = {str(place): choice for place, choice in enumerate(choices)}
        self._first_marked = marked

    def begin(self) -> None:
        self.query_one("#window").border_title = Content(self._title)
        super().begin()
        if self._first_marked in (choices := list(self._choices.values())):
            self.action_move(choices.index(self._first_marked))

    def rows(self, wanted: str) -> Sequence[Row]:
        found = ranked(wanted, self._choices)[:_SHOWN_MAX]
        return [Row(key=key, shown=Content(safe_line(self._choices[key], 110))) for key in found]

    def about(self, key: str) -> str:
        lines = safe(self._choices.get(key, "")).split("\n")
        return "\n".join(lines[:_ABOUT_LINES_MAX]) if len(lines) > 1 else ""

    def choice(self, key: str) -> str:
        return self._choices[key]
