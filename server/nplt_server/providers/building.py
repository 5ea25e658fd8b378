"""From settings to providers that can be asked, and the router in front of them.

An adapter's modules are imported only where it is configured, and no vendor's SDK at
all: that takes seconds, and is left to the first call.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import assert_never

from nplt_protocol.errors import RequestError
from nplt_server.errors import ConfigurationError
from nplt_server.provider_settings import (
    AnthropicSettings,
    AnyProviderSettings,
    LocalSettings,
    OfflineSettings,
    OpenAISettings,
    PythonSettings,
    VendorSettings,
)
from nplt_server.providers.addresses import is_on_this_machine
from nplt_server.providers.base import Provider
from nplt_server.providers.keys import KeyMistake, base_url_of, read_key
from nplt_server.providers.known_models import models_of
from nplt_server.providers.local.installed import MODEL as LOCAL_MODEL
from nplt_server.providers.offline import OfflineProvider
from nplt_server.providers.patience import Patience
from nplt_server.providers.retrying import RetryPolicy
from nplt_server.providers.router import ProviderRouter
from nplt_server.settings import Limits, ModelSettings, Settings

log = logging.getLogger(__name__)


def build_router(settings: Settings, environ: Mapping[str, str] = os.environ) -> ProviderRouter:
    builder = ProviderBuilder(
        environ=environ, models=settings.models, patience=_patience(settings.limits)
    )
    providers = [builder.build(each) for each in settings.providers or (OfflineSettings(),)]
    try:
        return ProviderRouter(
            providers,
            default_model=settings.default_model,
            roles={role: model for role, model in settings.roles if model is not None},
            fallback=settings.fallback,
            retries=RetryPolicy(retries_max=settings.limits.retries_max),
        )
    except RequestError as error:
        raise ConfigurationError([f"{error.field}: {error.message}"]) from None


def _patience(limits: Limits) -> Patience:
    return Patience(
        connect_seconds=limits.connect_seconds_max,
        first_token_seconds=limits.first_token_seconds_max,
        gap_seconds=limits.gap_seconds_max,
    )


class ProviderBuilder:
    def __init__(
        self,
        *,
        environ: Mapping[str, str],
        models: Mapping[str, ModelSettings],
        patience: Patience,
    ) -> None:
        """`models`: what the settings say of single ones."""
        self._environ = environ
        self._models = models
        self._patience = patience

    def build(self, settings: AnyProviderSettings) -> Provider:
        try:
            match settings:
                case OfflineSettings():
                    return OfflineProvider(settings.id, words_per_second=settings.words_per_second)
                case PythonSettings():
                    return _python(settings)
                case LocalSettings():
                    return self._local(settings)
                case OpenAISettings():
                    return self._openai(settings)
                case AnthropicSettings():
                    return self._anthropic(settings)
                case _:
                    assert_never(settings)
        except KeyMistake as mistake:
            sentence = f"providers, {settings.id}, {mistake.where}: {mistake}"
            raise ConfigurationError([sentence]) from None

    def _key(self, settings: VendorSettings) -> str:
        key = read_key(settings, self._environ).get_secret_value()
        base_url = base_url_of(settings, self._environ) or ""
        if key and base_url.startswith("http://") and not is_on_this_machine(base_url):
            log.warning("the key of %s travels unencrypted: its base_url is http", settings.id)
        return key

    def _openai(self, settings: OpenAISettings) -> Provider:
        from nplt_server.providers.openai.chat_render import ChatDialect
        from nplt_server.providers.openai.client import OPENAI_URL, OpenAIClient
        from nplt_server.providers.openai.provider import OpenAIProvider
        from nplt_server.providers.openai.responses_render import ResponsesDialect

        base_url = base_url_of(settings, self._environ)
        api = settings.api or ("responses" if base_url is None else "chat")
        return OpenAIProvider(
            settings.id,
            OpenAIClient(
                api_key=self._key(settings),
                base_url=base_url or OPENAI_URL,
                headers=settings.headers,
                patience=self._patience,
            ),
            dialect=(
                ResponsesDialect(summarizes_reasoning=settings.summarizes_reasoning)
                if api == "responses"
                else ChatDialect(
                    tokens_field=settings.tokens_field,
                    returns_reasoning=settings.returns_reasoning,
                )
            ),
            models=models_of(settings, self._models),
        )

    def _anthropic(self, settings: AnthropicSettings) -> Provider:
        from nplt_server.providers.anthropic.provider import AnthropicProvider

        return AnthropicProvider(
            settings.id,
            models=models_of(settings, self._models),
            key=self._key(settings),
            base_url=base_url_of(settings, self._environ),
            patience=self._patience,
        )

    def _local(self, settings: LocalSettings) -> Provider:
        from nplt_server.providers.local.provider import LocalProvider

        told = self._models.get(f"{settings.id}/{LOCAL_MODEL}")
        window_tokens = told.context_tokens if told is not None else None
        return LocalProvider(settings.id, window_tokens=window_tokens, patience=self._patience)


def _python(settings: PythonSettings) -> Provider:
    from nplt_server.providers.scripted import ScriptedProvider, load_function

    return ScriptedProvider(
        load_function(settings.function), provider_id=settings.id, models=settings.models
    )
