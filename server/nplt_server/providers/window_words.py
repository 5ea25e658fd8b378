"""How much fits a model, out of the words with which its provider refused more.

Many say so, each in its own way; nothing else of their words goes any further. Limits of
tokens per minute are windows too: a request that is larger is never taken.
"""

from __future__ import annotations

import re
from typing import Final

WINDOW_TOKENS_MIN: Final = 256
"""Less is no window but a misreading."""
_TOKENS: Final = r"(\d{1,3}(?:,\d{3})+|\d+)"
_SAYINGS: Final = tuple(
    re.compile(saying.replace("N", _TOKENS), re.IGNORECASE)
    for saying in (
        # OpenAI, vLLM, SGLang, OpenRouter; llama.cpp; Mistral
        r"maximum context length (?:is|of) N\b",
        r"context (?:size|window|length) (?:is |of )?\(?N\b",
        r"with N maximum context length",
        # Anthropic: the prompt alone, or with the room for the answer
        r"\d+ tokens > N maximum",
        r"exceed context limit: \d+ \+ \d+ > N\b",
        # Gemini
        r"maximum number of tokens allowed \(?N\b",
        # OpenAI and Groq, of an account
        r"tokens per min\w* \(TPM\): limit:? N\b",
    )
)


def window_named(words: str) -> int | None:
    """The tokens of the question and the room for the answer, together."""
    for saying in _SAYINGS:
        found = saying.search(words)
        if found is not None:
            tokens = int(found[1].replace(",", "")[:12])
            return tokens if tokens >= WINDOW_TOKENS_MIN else None
    return None
