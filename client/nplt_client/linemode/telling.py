"""From changes to the paper: in order, each thing once.

A prompt goes onto the paper when its turn begins, whoever typed it and however
long it waited; until then it stands in the margin. So the scrollback reads as
question, answer, question, answer, also when people type ahead. What came after
a turn has ended says nothing new about it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable
from typing import assert_never

from nplt_client.fullscreen.changes import (
    OfTurn,
    PromptShown,
    ReasoningGrew,
    ReasoningStands,
    TextGrew,
    TextStands,
    ToolShown,
    TurnBegan,
    TurnEnded,
)
from nplt_client.linemode.paper import Paper
from nplt_client.linemode.turn_told import TurnTold

TURNS_REMEMBERED = 200


class Telling:
    def __init__(self, paper: Paper, stranger: Callable[[], str]) -> None:
        """`stranger`: what others are called, as far as it is known."""
        self.turns: deque[TurnTold] = deque(maxlen=TURNS_REMEMBERED)
        """Those that have ended, for copying from."""
        self._paper = paper
        self._stranger = stranger
        self._unsent: dict[str, str] = {}
        self._open: dict[str, TurnTold] = {}
        self._ended: deque[str] = deque(maxlen=TURNS_REMEMBERED)
        self._failed: str | None = None
        """Has failed, and why will be told in a moment."""

    # For the margin

    @property
    def unfinished(self) -> str:
        return "".join(turn.unfinished for turn in self._open.values())

    @property
    def waiting(self) -> list[str]:
        accepted = [
            turn.prompt.text
            for turn in self._open.values()
            if turn.prompt is not None and not turn.has_begun
        ]
        return [*accepted, *self._unsent.values()]

    # Prompts of ours, before the server has said anything about them

    def sending(self, message_id: str, text: str) -> None:
        self._unsent[message_id] = text

    def take_back(self, message_id: str) -> None:
        self._unsent.pop(message_id, None)

    # What happens

    def start_over(self) -> None:
        """In another conversation."""
        self._open.clear()
        self._ended.clear()
        self.turns.clear()
        self._failed = None

    def catch_up(
        self, turns: Iterable[tuple[str, list[OfTurn]]], waiting: Container[str] = ()
    ) -> None:
        """With turns as they are stored. `waiting`: those that have not begun."""
        for turn_id, changes in turns:
            for change in changes:
                if not isinstance(change, ReasoningStands):
                    self.apply(change)
            if turn_id not in waiting and (turn := self._open.get(turn_id)):
                turn.begin(self._name(turn))
            self._tell_failure()

    def knows(self, turn_id: str) -> bool:
        return turn_id in self._open or turn_id in self._ended

    def apply(self, change: OfTurn) -> None:
        if change.turn_id in self._ended:
            return
        turn = self._open.setdefault(change.turn_id, TurnTold(self._paper))
        match change:
            case PromptShown():
                turn.prompt = turn.prompt or change
                self._unsent.pop(change.message_id or "", None)
            case TurnEnded():
                self._end(turn, change)
            case _:
                if self._failed not in (None, change.turn_id):
                    self._tell_failure()
                turn.begin(self._name(turn))
                _tell(turn, change)

    def _end(self, turn: TurnTold, change: TurnEnded) -> None:
        turn.begin(self._name(turn))
        turn.finish_texts()
        if change.state == "failed" and not change.error and self._failed is None:
            self._failed = change.turn_id
            return
        self._close(change.turn_id)
        match change.state:
            case "completed":
                pass
            case "interrupted":
                self._paper.remark("■ interrupted; what came is kept")
            case "failed":
                self._paper.remark(f"✗ {change.error or 'the turn failed'}", is_error=True)
            case _:
                assert_never(change.state)

    def _tell_failure(self) -> None:
        """Nobody said why."""
        if self._failed is not None:
            self._close(self._failed)
            self._paper.remark("✗ the turn failed", is_error=True)

    def _close(self, turn_id: str) -> None:
        self.turns.append(self._open.pop(turn_id))
        self._ended.append(turn_id)
        self._failed = None

    def _name(self, turn: TurnTold) -> str:
        return "you" if turn.prompt is None or turn.prompt.is_mine else self._stranger()


def _tell(
    turn: TurnTold,
    change: TurnBegan | TextGrew | TextStands | ReasoningGrew | ReasoningStands | ToolShown,
) -> None:
    match change:
        case TurnBegan():
            pass
        case TextGrew():
            turn.grow(change.call, change.piece)
        case TextStands() if change.is_whole:
            turn.stand(change.call, change.text)
        case TextStands():
            turn.tell_again(change.call, change.text)
        case ReasoningGrew():
            turn.reason(change.call, change.piece)
        case ReasoningStands():
            turn.reasoned(change.call, change.text)
        case ToolShown():
            turn.use_tool(change)
        case _:
            assert_never(change)
