"""What is known of every model that can answer: told by the settings, or by its name."""

from __future__ import annotations

from dataclasses import replace

from nplt_server.provider_settings import AnyProviderSettings, LocalSettings, OfflineSettings
from nplt_server.providers.known_models import context_tokens_of, models_of, takes_images
from nplt_server.providers.local.installed import FACTS as LOCAL_FACTS
from nplt_server.providers.model_facts import (
    CONTEXT_TOKENS,
    OFFLINE_CONTEXT_TOKENS,
    ModelFacts,
)
from nplt_server.settings import ModelSettings, Settings
from nplt_server.tokens.prices import ModelPrices


def facts_of_models(settings: Settings) -> dict[str, ModelFacts]:
    facts = {
        f"{provider.id}/{model}": _by_name(provider, model)
        for provider in settings.providers or (OfflineSettings(),)
        for model in models_of(provider, settings.models)
    }
    for name, told in settings.models.items():
        facts[name] = _as_told(facts.get(name) or ModelFacts(), told)
    return facts


def _by_name(provider: AnyProviderSettings, model: str) -> ModelFacts:
    match provider:
        case OfflineSettings():
            return ModelFacts(context_tokens=OFFLINE_CONTEXT_TOKENS, counts_tokens=False)
        case LocalSettings():
            return LOCAL_FACTS
        case _:
            return ModelFacts(
                context_tokens=context_tokens_of(model) or CONTEXT_TOKENS,
                takes_images=takes_images(model),
            )


def _as_told(known: ModelFacts, told: ModelSettings) -> ModelFacts:
    prices = known.prices
    if told.price_in is not None and told.price_out is not None:
        prices = ModelPrices.of(told.price_in, told.price_out, told.price_cached)
    return replace(
        known,
        context_tokens=told.context_tokens or known.context_tokens,
        output_tokens=told.output_tokens or known.output_tokens,
        prices=prices,
        takes_images=known.takes_images if told.images is None else told.images,
    )
