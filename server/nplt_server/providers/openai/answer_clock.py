"""Until when the next piece of an answer must be there."""

from __future__ import annotations

from nplt_server.providers.openai.dialect import AnswerParser
from nplt_server.providers.patience import Patience


class AnswerClock:
    def __init__(self, patience: Patience, parser: AnswerParser, *, now: float) -> None:
        self._patience = patience
        self._parser = parser
        self._begins_by = now + patience.first_token_seconds
        self._has_begun = False

    def deadline(self, now: float) -> float:
        """Pings may come before the first piece as they like: they don't put it off. Who
        has begun to think may be silent about it as long again, however often."""
        if self._parser.is_thinking:
            self._has_begun = True
            return now + self._patience.first_token_seconds
        if self._has_begun or self._parser.has_spoken:
            return now + self._patience.gap_seconds
        return self._begins_by
