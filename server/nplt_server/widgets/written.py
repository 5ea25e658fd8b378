"""Which live screen a model has before its eyes: the last one it was shown.

A screen is written into an entry only when it differs from that one; repeated in
every entry, a notebook would eat the window. What counts is what a turn's model
sees of the running epoch: the screen the epoch began with, then those in the
turns before its own, then those in its own entries.
"""

from __future__ import annotations

from nplt_server.context.screens import ScreensInTurns
from nplt_storage.conversation.history import ConversationHistory


class WrittenScreens:
    __slots__ = ("_history", "_screens")

    def __init__(self, history: ConversationHistory) -> None:
        self._history = history
        self._screens = ScreensInTurns(history)

    def last_shown_to(self, turn_id: str | None) -> str:
        """Empty if there was none. A turn that is not there is one yet to come."""
        turn = None if turn_id is None else self._history.turn(turn_id)
        if turn is None:
            return self._screens.before(self._history.head_seq + 1)
        own = self._screens.within(turn)
        return self._screens.before(turn.number) if own is None else own
