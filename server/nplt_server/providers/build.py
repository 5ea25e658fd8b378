"""Builds the providers and the router from the settings.

Reads keys from variables or from files nobody else can read. Where no provider is
configured, uses those there is a key for, the local model, and offline.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, assert_never
from urllib.parse import urlsplit

from pydantic import SecretStr

from nplt_server.errors import ConfigurationError
from nplt_server.providers import Patience, Provider
from nplt_server.providers.models import MODEL as LOCAL_MODEL
from nplt_server.providers.models import (
    KnownModels,
    is_open,
    local_is_installed,
    models_of,
    probe,
)
from nplt_server.settings import (
    AnthropicSettings,
    AnyProviderSettings,
    LocalSettings,
    ModelSettings,
    OfflineSettings,
    OpenAISettings,
    PythonSettings,
    Settings,
    VendorSettings,
    is_loopback,
)

if TYPE_CHECKING:
    from nplt_server.providers.client import VendorProvider
    from nplt_server.providers.router import ProviderRouter

log = logging.getLogger(__name__)

# ------------------------------------------------------------------------------
# Keys: from a variable, or from a file that nobody else can read
#
# A key is held as a secret until the client is made; no message from here quotes it.

_FILE_BYTES_MAX = 16_384


class KeyMistake(Exception):
    """`where` is the setting that is to be mended."""

    def __init__(self, where: str, sentence: str) -> None:
        super().__init__(sentence)
        self.where = where


def read_key(provider: VendorSettings, environ: Mapping[str, str]) -> SecretStr:
    """Empty where none is asked for: servers of one's own often need none."""
    if provider.api_key_file is not None:
        where, holder = "api_key_file", str(provider.api_key_file)
        key = _read_file(provider.api_key_file)
    else:
        if provider.api_key_env is None and provider.base_url is not None:
            return SecretStr("")  # what is for the vendor is not for everybody
        standard = standard_variable(provider, "API_KEY")
        where, holder = "api_key_env", provider.api_key_env or standard
        key = environ.get(holder, "").strip()
        if not key:
            # Variables are written in capitals; anything else may be the key itself.
            told = holder if holder.isupper() else "variable of that name"
            raise KeyMistake(where, f"there is no {told} in the environment")
    # The HTTP library would say so too, and quote it.
    if any(not "!" <= character <= "~" for character in key):
        raise KeyMistake(where, f"what {holder} holds has characters that no key has")
    return SecretStr(key)


def base_url_of(provider: VendorSettings, environ: Mapping[str, str]) -> str | None:
    """None: the vendor's own. Whoever sends a vendor's key elsewhere by a variable, as
    all programs do, sends ours there too."""
    return provider.base_url or environ.get(standard_variable(provider, "BASE_URL")) or None


def standard_variable(provider: VendorSettings, what: str) -> str:
    return f"{provider.type.upper()}_{what}"


def _read_file(path: Path) -> str:
    try:
        # Opened once, so that what is looked at is what is read; a pipe does not hold us up.
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
        with os.fdopen(os.open(path, flags), "rb") as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode):
                raise KeyMistake("api_key_file", f"{path} is not a file")
            if about.st_mode & 0o077:
                mode = stat.S_IMODE(about.st_mode)
                sentence = f"{path} can be read by others (mode {mode:04o}): chmod 600 it"
                raise KeyMistake("api_key_file", sentence)
            key = file.read(_FILE_BYTES_MAX).decode(errors="replace").strip()
    except OSError as error:
        raise KeyMistake("api_key_file", f"can't read {path}: {error.strerror}") from None
    if not key:
        raise KeyMistake("api_key_file", f"{path} is empty")
    return key


def is_on_this_machine(base_url: str) -> bool:
    """Then no proxy is asked the way, though the environment may name one for all else."""
    return is_loopback(urlsplit(base_url).hostname or "")


# ------------------------------------------------------------------------------
# Providers and router from the settings
#
# An adapter is imported only if it is configured; a vendor's SDK, which takes seconds, at the
# first call.


def build_router(
    settings: Settings,
    environ: Mapping[str, str] = os.environ,
    *,
    known: KnownModels | None = None,
) -> ProviderRouter:
    """`known` is told what providers say of their models."""
    from nplt_protocol.errors import RequestError
    from nplt_server.providers.retries import RetryPolicy
    from nplt_server.providers.router import ProviderRouter

    limits = settings.limits
    patience = Patience(
        connect_seconds=limits.connect_seconds_max,
        first_token_seconds=limits.first_token_seconds_max,
        gap_seconds=limits.gap_seconds_max,
    )
    builder = ProviderBuilder(environ=environ, models=settings.models, patience=patience)
    providers = [builder.build(each) for each in settings.providers or (OfflineSettings(),)]
    try:
        router = ProviderRouter(
            providers,
            default_model=settings.default_model,
            roles={role: model for role, model in settings.roles if model is not None},
            fallback=settings.fallback,
            retries=RetryPolicy(retries_max=settings.limits.retries_max),
        )
    except RequestError as error:
        raise ConfigurationError([f"{error.field}: {error.message}"]) from None
    router.lists.keep_in(settings.data_dir / "models.json", known)
    if settings.local_servers:
        router.local_servers = LocalServers(settings, builder, router)
    return router


class LocalServers:
    """Finds servers with models on this machine, and adds them to the router. Their models are
    shown, and answer when they are named; none is ever chosen for anybody."""

    def __init__(
        self, settings: Settings, builder: ProviderBuilder, router: ProviderRouter
    ) -> None:
        self._ports = {
            name: port
            for name, port in (settings.local_servers or {}).items()
            if name not in {each.id for each in settings.providers}
        }
        self._builder = builder
        self._router = router
        self._addresses = {
            each.base_url
            for each in settings.providers
            if isinstance(each, OpenAISettings | AnthropicSettings)
        }
        self._found: dict[str, VendorProvider] = {}

    def begin(self) -> dict[str, int]:
        """The ports to look at; from now on the lists say so."""
        asked = self._router.lists.begin_to_ask(self._ports.keys())
        return {name: self._ports[name] for name in asked}

    def provider(self, name: str) -> VendorProvider | None:
        """One of them, found or not: a conversation that has chosen its model is never answered
        by another one because the server is down."""
        if name not in self._ports:
            return None
        if name not in self._found:
            base_url = f"http://127.0.0.1:{self._ports[name]}/v1"
            settings = OpenAISettings(
                id=name, base_url=base_url, api="chat", tokens_field="max_tokens"
            )
            self._found[name] = self._builder.build_vendor(settings)
            self._router.add(self._found[name])
        return self._found[name]

    async def find(self, ports: Mapping[str, int] | None = None) -> None:
        import anyio

        ports = self.begin() if ports is None else ports
        async with anyio.create_task_group() as looking:
            for name, port in ports.items():
                looking.start_soon(self._look, name, port)

    async def _look(self, name: str, port: int) -> None:
        own_names = (f"http://127.0.0.1:{port}/v1", f"http://localhost:{port}/v1")
        is_configured = not self._addresses.isdisjoint(own_names)
        try:
            models = None if is_configured else await probe(port)
        finally:
            self._router.lists.asked(name)
        if models is None:
            self._router.lists.forget(name)
            return
        provider = self.provider(name)
        assert provider is not None
        log.debug("%s is on this machine at port %d: %d models", name, port, len(models))
        self._router.lists.add(provider)
        self._router.lists.take(provider, models)


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

                    told = self._models.get(f"{settings.id}/{LOCAL_MODEL}")
                    window_tokens = told.context_tokens if told is not None else None
                    return LocalProvider(
                        settings.id, window_tokens=window_tokens, patience=self._patience
                    )
                case OpenAISettings() | AnthropicSettings():
                    return self.build_vendor(settings)
                case _:
                    assert_never(settings)
        except KeyMistake as mistake:
            sentence = f"providers, {settings.id}, {mistake.where}: {mistake}"
            raise ConfigurationError([sentence]) from None

    def build_vendor(self, settings: OpenAISettings | AnthropicSettings) -> VendorProvider:
        if isinstance(settings, OpenAISettings):
            provider = self._openai(settings)
        else:
            provider = self._anthropic(settings)
        named = ((*name.partition("/"), told) for name, told in self._models.items())
        provider.extra_bodies = {
            model: told.extra_body for id_, _, model, told in named if id_ == settings.id
        }
        provider.is_open = is_open(settings)
        return provider

    def _key(self, settings: VendorSettings) -> str:
        key = read_key(settings, self._environ).get_secret_value()
        base_url = base_url_of(settings, self._environ) or ""
        if key and base_url.startswith("http://") and not is_on_this_machine(base_url):
            log.warning("the key of %s travels unencrypted: its base_url is http", settings.id)
        return key

    def _openai(self, settings: OpenAISettings) -> VendorProvider:
        from nplt_server.providers.client import VendorProvider
        from nplt_server.providers.openai import (
            ChatApi,
            OpenAIClient,
            ResponsesApi,
            needs_responses,
        )

        base_url = base_url_of(settings, self._environ)
        has_cache_key = base_url is None if settings.cache_key is None else settings.cache_key
        responses = ResponsesApi(
            summarizes_reasoning=settings.summarizes_reasoning, has_cache_key=has_cache_key
        )
        chat = ChatApi(
            tokens_field=settings.tokens_field,
            returns_reasoning=settings.returns_reasoning,
            has_cache_key=has_cache_key,
        )
        api = settings.api or ("responses" if base_url is None else None)
        return VendorProvider(
            settings.id,
            OpenAIClient(
                api_key=self._key(settings),
                base_url=base_url,
                headers=settings.headers,
                patience=self._patience,
            ),
            vendor_api=responses if api == "responses" else chat,
            other_api=responses if api is None else None,
            is_for_other_api=needs_responses,
            models=models_of(settings, self._models),
        )

    def _anthropic(self, settings: AnthropicSettings) -> VendorProvider:
        from nplt_server.providers.anthropic import MessagesApi, MessagesClient
        from nplt_server.providers.client import VendorProvider

        client = MessagesClient(
            api_key=self._key(settings),
            base_url=base_url_of(settings, self._environ),
            headers=settings.headers,
            patience=self._patience,
        )
        models = models_of(settings, self._models)
        return VendorProvider(settings.id, client, vendor_api=MessagesApi(), models=models)


def discover_providers(environ: Mapping[str, str]) -> tuple[AnyProviderSettings, ...]:
    """Where none is configured."""
    found: list[AnyProviderSettings] = [
        vendor
        for vendor in (OpenAISettings.model_construct(), AnthropicSettings.model_construct())
        if environ.get(standard_variable(vendor, "API_KEY"), "").strip()
    ]
    if local_is_installed():
        found.append(LocalSettings.model_construct())
    return (*found, OfflineSettings.model_construct())
