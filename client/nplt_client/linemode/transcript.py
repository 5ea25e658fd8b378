"""What commands may know of what was printed."""

from __future__ import annotations

from collections.abc import Sequence

from nplt_client.linemode.paper import Paper
from nplt_client.linemode.telling import Telling
from nplt_client.linemode.turn_told import TurnTold


class PrintedTranscript:
    def __init__(self, paper: Paper, telling: Telling) -> None:
        self._paper = paper
        self._telling = telling

    @property
    def turns(self) -> Sequence[TurnTold]:
        return list(self._telling.turns)

    @property
    def is_raw(self) -> bool:
        return self._paper.is_raw

    async def show_raw(self, is_raw: bool) -> None:
        """From now on: what is printed stays as it is."""
        self._paper.is_raw = is_raw

    def look_at_top(self) -> None:
        """The scrollback is the terminal's own."""
