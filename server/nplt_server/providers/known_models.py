"""What is known of vendors' models without asking: their names, and how much fits.

A list like this grows old: `models` in the settings adds to it and overrules it. Prices
are left to the settings, because a wrong one is worse than none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, assert_never

from nplt_server.provider_settings import (
    AnthropicSettings,
    AnyProviderSettings,
    LocalSettings,
    OfflineSettings,
    OpenAISettings,
    PythonSettings,
)
from nplt_server.providers.local.installed import MODEL as LOCAL_MODEL

OPENAI_MODELS: Final[tuple[str, ...]] = (
    "gpt-5.2",
    "gpt-6.1-sol",
    "gpt-6.1-terra",
    "gpt-6-luna",
    "gpt-5.5",
    "gpt-5.4",
    "gpt-5.4-mini",
)
ANTHROPIC_MODELS: Final[tuple[str, ...]] = (
    "claude-opus-5-5",
    "claude-sonnet-5-5",
    "claude-haiku-5-5",
    "claude-fable-5-1",
    "claude-opus-4-5",
    "claude-haiku-4-5",
)

# Not all of the largest windows, a million tokens: every call pays for what is in it.
# OpenAI takes 272,000 of input, or twice the price for more.
_WINDOWS: Final = (
    (re.compile(r"gpt-\d.*-chat"), 128_000),
    (re.compile(r"gpt-([5-9]|\d\d)|gpt-4\.1|codex"), 272_000),
    (re.compile(r"o[134]\b"), 200_000),
    (re.compile(r"claude-([a-z]+-)?([5-9]|\d\d)\b"), 400_000),
    (re.compile(r"claude"), 200_000),
)


_SEEING: Final = re.compile(r"gpt-(4o|4\.1|[5-9]|\d\d)|o[134]\b|claude")


def takes_images(model: str) -> bool:
    return _SEEING.match(model.lower().rpartition("/")[2]) is not None


def context_tokens_of(model: str) -> int | None:
    """By its name, also behind a vendor's, as routers write it."""
    name = model.lower().rpartition("/")[2]
    return next((tokens for pattern, tokens in _WINDOWS if pattern.match(name)), None)


def models_of(provider: AnyProviderSettings, described: Iterable[str] = ()) -> tuple[str, ...]:
    """Those a provider answers for. `described`: the names under `models` in the settings,
    which add to a list that is ours."""
    match provider:
        case OfflineSettings():
            return ("echo",)
        case LocalSettings():
            return (LOCAL_MODEL,)
        case PythonSettings():
            return provider.models
        case OpenAISettings():
            known = OPENAI_MODELS
        case AnthropicSettings():
            known = ANTHROPIC_MODELS
        case _:
            assert_never(provider)
    if provider.models:
        return provider.models
    added = (name.partition("/") for name in described)
    return tuple(dict.fromkeys((*known, *(model for id_, _, model in added if id_ == provider.id))))
