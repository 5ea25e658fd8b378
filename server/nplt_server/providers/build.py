"""Builds providers from their settings.

An adapter is imported only if it is configured; a vendor's SDK, which takes seconds, at the
first call.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, assert_never

from nplt_server.errors import ConfigurationError
from nplt_server.providers import Patience, ProviderClient
from nplt_server.providers.credentials import (
    KeyMistake,
    base_url_of,
    is_on_this_machine,
    key_source,
    read_key,
    standard_variable,
)
from nplt_server.providers.learned_forms import LearnedForms
from nplt_server.providers.model_lists import ModelLister
from nplt_server.providers.models import (
    facts_of_local,
    form_of,
    is_open,
    local_is_installed,
    models_of,
)
from nplt_server.request_form import RequestForm
from nplt_server.settings import (
    AnthropicSettings,
    AnyProviderSettings,
    LocalSettings,
    ModelSettings,
    OfflineSettings,
    OpenAISettings,
    PythonSettings,
    VendorSettings,
)

if TYPE_CHECKING:
    from nplt_server.providers.client import VendorClient
    from nplt_server.providers.vendor_api import VendorApi

log = logging.getLogger(__name__)


class ProviderBuilder:
    def __init__(
        self,
        *,
        environ: Mapping[str, str],
        models: Mapping[str, ModelSettings],
        patience: Patience,
        learned: LearnedForms | None = None,
    ) -> None:
        """`models`: what the settings say about single models."""
        self._learned = learned or LearnedForms()
        self._environ = environ
        self._models = models
        self._patience = patience

    def build(self, settings: AnyProviderSettings) -> ProviderClient:
        try:
            match settings:
                case OfflineSettings():
                    from nplt_server.providers.offline import OfflineProvider

                    return OfflineProvider(settings.id, words_per_second=settings.words_per_second)
                case PythonSettings():
                    from nplt_server.providers.offline import ScriptedProvider, load_function

                    function = load_function(settings.function)
                    return ScriptedProvider(
                        function, provider_id=settings.id, models=settings.models
                    )
                case LocalSettings():
                    from nplt_server.providers.local_model import LocalProvider

                    (name,) = models_of(settings)
                    description = self._models.get(f"{settings.id}/{name}")
                    return LocalProvider(
                        settings.id,
                        file=settings.path,
                        name=name,
                        facts=facts_of_local(settings),
                        window_tokens=None if description is None else description.context_tokens,
                        patience=self._patience,
                    )
                case OpenAISettings() | AnthropicSettings():
                    return self.build_vendor(settings)
                case _:
                    assert_never(settings)
        except KeyMistake as mistake:
            sentence = f"providers, {settings.id}, {mistake.where}: {mistake}"
            raise ConfigurationError([sentence]) from None

    def build_vendor(self, settings: OpenAISettings | AnthropicSettings) -> ModelLister:
        if isinstance(settings, OpenAISettings):
            return self._openai(settings)
        return self._anthropic(settings)

    def _extra_bodies(self, provider_id: str) -> dict[str, dict[str, Any]]:
        named = ((*name.partition("/"), description) for name, description in self._models.items())
        return {
            model: description.extra_body
            for id_, _, model, description in named
            if id_ == provider_id
        }

    def _model_forms(self, provider_id: str) -> dict[str, RequestForm]:
        """The models that the settings say take no tools."""
        told = {
            name: settings for name, settings in self._models.items() if settings.tools is False
        }
        parts = (name.partition("/") for name in told)
        return {
            model: RequestForm(without_tools=True) for id_, _, model in parts if id_ == provider_id
        }

    def _key(self, settings: VendorSettings) -> str:
        key = read_key(settings, self._environ).get_secret_value()
        base_url = base_url_of(settings, self._environ) or ""
        if key and base_url.startswith("http://") and not is_on_this_machine(base_url):
            log.warning("the key of %s travels unencrypted: its base_url is http", settings.id)
        return key

    def _openai(self, settings: OpenAISettings) -> ModelLister:
        from nplt_server.providers.openai import OpenAIClient
        from nplt_server.providers.openai_chat import ChatApi
        from nplt_server.providers.openai_responses import ResponsesApi

        base_url = base_url_of(settings, self._environ)
        has_cache_key = base_url is None if settings.cache_key is None else settings.cache_key
        responses = ResponsesApi(
            summarizes_reasoning=settings.summarizes_reasoning, has_cache_key=has_cache_key
        )
        chat = ChatApi(has_cache_key=has_cache_key)
        by_name = {"chat": (chat,), "responses": (responses,)}
        api = settings.api or ("responses" if base_url is None else None)
        apis = (chat, responses) if api is None else by_name[api]
        return self._provider(settings, OpenAIClient, apis)

    def _anthropic(self, settings: AnthropicSettings) -> ModelLister:
        from nplt_server.providers.anthropic import MessagesApi, MessagesClient

        return self._provider(settings, MessagesClient, (MessagesApi(),))

    def _provider(
        self, settings: VendorSettings, client: type[VendorClient], apis: Sequence[VendorApi]
    ) -> ModelLister:
        from nplt_server.providers.client import VendorProvider

        return VendorProvider(
            settings.id,
            client(
                api_key=self._key(settings),
                key_source=key_source(settings),
                base_url=base_url_of(settings, self._environ),
                headers=settings.headers,
                patience=self._patience,
            ),
            apis=apis,
            models=models_of(settings, self._models),
            form=form_of(settings),
            model_forms=self._model_forms(settings.id),
            learned=self._learned,
            extra_bodies=self._extra_bodies(settings.id),
            is_open=is_open(settings),
        )


def discover_providers(environ: Mapping[str, str]) -> tuple[AnyProviderSettings, ...]:
    """The providers of a server whose settings name none: those there is a key for, the local
    model if it is installed, and offline."""
    found: list[AnyProviderSettings] = [
        vendor
        for vendor in (OpenAISettings.model_construct(), AnthropicSettings.model_construct())
        if environ.get(standard_variable(vendor, "API_KEY"), "").strip()
    ]
    if local_is_installed():
        found.append(LocalSettings.model_construct())
    return (*found, OfflineSettings.model_construct())
