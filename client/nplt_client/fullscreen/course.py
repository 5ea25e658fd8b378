"""Which turn runs in this conversation, which wait, and what they have used. Pure."""

from __future__ import annotations

from nplt_client.fullscreen.changes import (
    Change,
    Doing,
    PromptShown,
    TextGrew,
    TurnBegan,
    TurnEnded,
)


class Course:
    def __init__(self) -> None:
        self.running: str | None = None
        self.waiting: list[str] = []
        self.doing = ""
        self.input_tokens = 0
        self.output_tokens = 0

    def start_over(self, *, running: str | None = None, waiting: tuple[str, ...] = ()) -> None:
        """In another conversation, or in this one seen afresh."""
        self.running = running
        self.waiting = list(waiting)
        self.doing = ""
        self.bill(0, 0)

    def bill(self, input_tokens: int, output_tokens: int) -> None:
        self.input_tokens, self.output_tokens = input_tokens, output_tokens

    def follow(self, change: Change) -> None:
        match change:
            case PromptShown() if change.turn_id not in (self.running, *self.waiting):
                self.waiting.append(change.turn_id)
            case TurnBegan():
                self._no_longer_waits(change.turn_id)
                self.running = change.turn_id
                self.doing = ""
            case Doing() if change.turn_id == self.running:
                self.doing = change.words
            case TextGrew() if change.turn_id == self.running:
                self.doing = ""
            case TurnEnded():
                self._no_longer_waits(change.turn_id)
                if change.turn_id == self.running:
                    self.running = None
                    self.doing = ""
                self.input_tokens += change.input_tokens
                self.output_tokens += change.output_tokens
            case _:
                pass

    def _no_longer_waits(self, turn_id: str) -> None:
        if turn_id in self.waiting:
            self.waiting.remove(turn_id)
