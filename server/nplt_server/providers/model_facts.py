"""What is known of one model besides its name: how much fits, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass

from nplt_server.tokens.prices import ModelPrices

CONTEXT_TOKENS = 128_000
"""Of a model nobody said anything about."""
OFFLINE_CONTEXT_TOKENS = 16_000_000
"""Of one that only says what it heard: whatever fits a message fits it."""
_OUTPUT_TOKENS = 8_192
_OUTPUT_TOKENS_OF_LARGE = 16_384
_LARGE_CONTEXT_TOKENS = 200_000
"""Models with such windows think before they answer, and that counts as output."""


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
