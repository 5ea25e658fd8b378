"""Masks known secrets in the deltas of one call, also where one is split over several deltas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from msgspec import structs

from nplt_server.masking import MaskedText, SecretMask
from nplt_server.providers import (
    ModelOutputDelta,
    OpaquePiece,
    ReasoningPiece,
    Stopped,
    TextPiece,
    ToolCallPiece,
    UsageReport,
)


class MaskedOutput:
    """Text that is held back is given before the next delta of another kind: opaque pieces belong
    to their place in the output. `flush` gives it at the end.

    Once something was masked, opaque pieces are dropped: the provider would refuse them beside
    an output that is not the one it has signed."""

    def __init__(self, secrets: SecretMask) -> None:
        self._secrets = secrets
        self._text = MaskedText(secrets)
        self._is_changed = False
        """A secret was in an opaque piece."""
        self._last: TextPiece | ReasoningPiece | ToolCallPiece | None = None

    def feed(self, delta: ModelOutputDelta) -> Sequence[ModelOutputDelta]:
        if isinstance(delta, TextPiece) and isinstance(self._last, TextPiece):
            # Most of them, so this is quick.
            text = self._text.feed(delta.text)
            if text is delta.text:
                return (delta,)
            return (TextPiece(text=text),) if text else ()
        if isinstance(delta, UsageReport):
            return (delta,)
        held = () if self._continues(delta) else self.flush()
        match delta:
            case TextPiece() | ReasoningPiece():
                self._last = delta
                text = self._text.feed(delta.text)
                if text is delta.text:
                    return (*held, delta)
                return (*held, structs.replace(delta, text=text)) if text else held
            case ToolCallPiece():
                self._last = delta
                name = self._secrets.mask(delta.tool_name)
                arguments = self._text.feed(delta.arguments)
                return (*held, structs.replace(delta, tool_name=name, arguments=arguments))
            case OpaquePiece():
                data = dict(delta.data)
                self._is_changed = self._is_changed or self._secrets.mask_json(data) != data
                return held if self._is_changed or self._text.has_masked else (*held, delta)
            case Stopped():
                return (*held, Stopped(reason=self._secrets.mask(delta.reason)))
            case _:
                assert_never(delta)

    def flush(self) -> Sequence[ModelOutputDelta]:
        last, text = self._last, self._text.flush()
        self._last = None
        if last is None or not text:
            return ()
        if isinstance(last, ToolCallPiece):
            return (ToolCallPiece(index=last.index, arguments=text),)
        return (structs.replace(last, text=text),)

    def _continues(self, delta: ModelOutputDelta) -> bool:
        last = self._last
        if type(delta) is not type(last):
            return False
        return not isinstance(delta, ToolCallPiece) or (
            isinstance(last, ToolCallPiece) and delta.index == last.index
        )
