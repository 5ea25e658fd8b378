"""What is known of one model besides its name: how much fits, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from nplt_server.tokens.prices import ModelPrices

CONTEXT_TOKENS = 128_000
"""Of a model nobody said anything about."""
OFFLINE_CONTEXT_TOKENS = 16_000_000
"""Of one that only says what it heard: whatever fits a message fits it."""
_OUTPUT_TOKENS = 8_192
_OUTPUT_TOKENS_OF_LARGE = 16_384
_LARGE_CONTEXT_TOKENS = 200_000
"""Models with such windows think before they answer, and that counts as output."""
_CONTEXT_TOKENS_MIN = 1_024
_ANSWER_TOKENS_MIN = 256
"""No model is too small for so much: who refuses it does so for another reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    context_tokens: int = CONTEXT_TOKENS
    output_tokens: int | None = None
    prices: ModelPrices | None = None
    counts_tokens: bool = True
    """Whether what it reports is in tokens: one that counts words teaches us nothing."""
    takes_images: bool = False
    takes_tools: bool = True
    """Whether it is told of tools: if not, they take no room in its window."""

    @property
    def answer_tokens(self) -> int:
        """How long an answer may be, with all the thinking before it."""
        if self.output_tokens:
            return self.output_tokens
        is_large = self.context_tokens >= _LARGE_CONTEXT_TOKENS
        most = _OUTPUT_TOKENS_OF_LARGE if is_large else _OUTPUT_TOKENS
        return min(most, self.context_tokens // 4)

    @property
    def budget_tokens(self) -> int:
        """What may be sent: the window without the room for the answer."""
        # A setting that leaves nothing to send is a mistake no call can mend.
        return max(self.context_tokens - self.answer_tokens, self.context_tokens // 8)

    def within(self, window_tokens: int) -> ModelFacts:
        """The same model, whose window is smaller than anybody said."""
        room = window_tokens // 4
        return replace(
            self,
            context_tokens=min(self.context_tokens, window_tokens),
            output_tokens=None if self.output_tokens is None else min(self.output_tokens, room),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRoom:
    """What one call may take of a model's window: to be shown, and to answer in."""

    context_tokens: int
    answer_tokens: int

    def shortened(self, share: float) -> CallRoom:
        """Both, for providers refuse their sum without saying what of it is too much."""
        return CallRoom(
            context_tokens=max(int(self.context_tokens * share), _CONTEXT_TOKENS_MIN),
            answer_tokens=max(int(self.answer_tokens * share), _ANSWER_TOKENS_MIN),
        )

    def within(self, other: CallRoom | None) -> CallRoom:
        if other is None:
            return self
        return CallRoom(
            context_tokens=min(self.context_tokens, other.context_tokens),
            answer_tokens=min(self.answer_tokens, other.answer_tokens),
        )
