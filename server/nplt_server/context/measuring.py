"""How much of a window each message takes, counted once.

Beside its text every message and every call costs a little for the marks around
it, in whatever format it is sent. Figures are remembered by entry and level, so
that putting a context together anew counts nothing again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, TypeAlias, assert_never

from nplt_server.context.attachments import IMAGE_TOKENS, Shelf
from nplt_server.context.levels import ContextEntry, message_of
from nplt_server.context.messages import (
    ContextMessage,
    ModelInputMessage,
    ModelOutputMessage,
    SystemMessage,
    ToolResultsMessage,
)
from nplt_server.tokens.counter import TokenCounter
from nplt_storage.facts.sections import LevelOfDetail

MESSAGE_TOKENS: Final = 4
CALL_TOKENS: Final = 8
"""For a call, and again for its result: both carry the call's id."""

_Key: TypeAlias = tuple[str, LevelOfDetail, bool, bool]


class Measured(NamedTuple):
    message: ContextMessage
    tokens: int


class Measure:
    """For one conversation. Another counter needs another measure."""

    __slots__ = ("_counter", "_remembered", "_remembered_max", "counted", "shelf")

    def __init__(
        self, counter: TokenCounter, *, shelf: Shelf | None = None, remembered_max: int = 16_384
    ) -> None:
        self.shelf = shelf or Shelf()
        """The files that prompts name; whoever owns it fills it before it is needed."""
        self._counter = counter
        self._remembered_max = remembered_max
        self._remembered: dict[_Key, tuple[ContextEntry, Measured]] = {}
        self.counted = 0
        """Messages counted so far, for whoever wonders whether that is few."""

    def text(self, text: str) -> int:
        return self._counter.count(text) if text else 0

    def message(self, message: ContextMessage) -> Measured:
        self.counted += 1
        return Measured(message, MESSAGE_TOKENS + self._tokens(message))

    def entry(
        self,
        entry: ContextEntry,
        level: LevelOfDetail,
        *,
        with_screen: bool = False,
        takes_images: bool = False,
    ) -> Measured:
        key = (entry.id, level, with_screen, takes_images)
        known = self._remembered.get(key)
        # An entry that was repaired for showing, or erased, has the same id.
        if known is not None and known[0] is entry:
            return known[1]
        message = message_of(
            entry, level, with_screen=with_screen, takes_images=takes_images, shelf=self.shelf
        )
        measured = self.message(message)
        if entry.id:
            self._remember(key, entry, measured)
        return measured

    def _remember(self, key: _Key, entry: ContextEntry, measured: Measured) -> None:
        if len(self._remembered) >= self._remembered_max:
            del self._remembered[next(iter(self._remembered))]
        self._remembered[key] = entry, measured

    def _tokens(self, message: ContextMessage) -> int:
        match message:
            case SystemMessage():
                return self.text(message.instruction)
            case ModelInputMessage():
                return self.text(message.text) + IMAGE_TOKENS * len(message.images)
            case ModelOutputMessage():
                calls = sum(
                    CALL_TOKENS + self.text(call.tool_name) + self.text(call.raw_arguments)
                    for call in message.tool_calls
                )
                opaque = sum(len(str(part.data)) for part in message.parts if part.data) // 4
                return self.text(message.content) + self.text(message.reasoning) + opaque + calls
            case ToolResultsMessage():
                return sum(CALL_TOKENS + self.text(text) for text in message.texts)
        assert_never(message)


def tokens_of(measured: Iterable[Measured]) -> int:
    return sum(tokens for _, tokens in measured)
