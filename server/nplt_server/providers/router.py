"""Maps `provider/model` names to routes, and chooses the model of a turn.

A turn's model is the one the prompt names, or its role's, or the conversation's, or the
default. It is chosen when the prompt is accepted or the turn starts and is fixed inside the
turn. Calls outside of turns (a summary) use their role's model. The `fallback` models are
tried in order, only if there was no output. A model may be named without its provider where only
one provider has it.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

import anyio

from nplt_protocol import ErrorCode, RequestError
from nplt_server.errors import ConfigurationError
from nplt_server.masking import NO_SECRETS, SecretMask
from nplt_server.providers import Patience, ProviderClient
from nplt_server.providers.breaker import Breaker
from nplt_server.providers.build import ProviderBuilder
from nplt_server.providers.learned_forms import LearnedForms
from nplt_server.providers.local_servers import LocalServers
from nplt_server.providers.model_lists import ModelLister, ModelLists, is_model_name
from nplt_server.providers.models import KnownModels, hint_of_model
from nplt_server.providers.retries import RetryPolicy
from nplt_server.providers.route import ModelRoute
from nplt_server.settings import (
    FALLBACK_ON,
    AnthropicSettings,
    OfflineSettings,
    OpenAISettings,
    Settings,
)

log = logging.getLogger(__name__)

_UNLISTED_ROUTES_MAX: Final = 256


class ProviderRouter:
    def __init__(  # noqa: PLR0913
        self,
        providers: Iterable[ProviderClient],
        *,
        default_model: str | None = None,
        roles: Mapping[str, str] | None = None,
        fallback: Sequence[str] = (),
        fallback_on: Collection[str] = FALLBACK_ON,
        holding: Collection[str] = (),
        retries: RetryPolicy | None = None,
        clock: Callable[[], float] = time.monotonic,
        secrets: SecretMask = NO_SECRETS,
        learned: LearnedForms | None = None,
    ) -> None:
        """`secrets` are masked in what providers send. Raises `RequestError` for an unknown model;
        its `field` names the setting: `default_model`, `roles.planner`, `fallback`."""
        self.retries = retries or RetryPolicy()
        self.lists = ModelLists(secrets=secrets)
        self.learned = learned or LearnedForms()
        self._secrets = secrets
        self._local_servers: LocalServers | None = None
        self._clock = clock
        self._providers: dict[str, ProviderClient] = {}
        self.breakers: dict[str, Breaker] = {}
        self.routes: dict[str, ModelRoute] = {}
        """The routes of the models in the settings, and of others that were called."""
        for provider in providers:
            self.add(provider)
            for model in provider.models:
                route = ModelRoute(provider, model, self.breakers[provider.id], secrets)
                self.routes[f"{provider.id}/{model}"] = route
        self.models = tuple(self.routes)
        """The models in the settings; a provider's own list may have more."""
        if default_model:
            self.default_model = self.check(default_model, field="default_model")
        elif self.models:
            self.default_model = self.models[0]
        else:
            example = f"{next(iter(self._providers))}/NAME"
            message = f"no model is known here; say which, as in {example}"
            raise RequestError(ErrorCode.NOT_FOUND, message, field="default_model")
        self.roles = {
            role: self.check(model, field=f"roles.{role}") for role, model in (roles or {}).items()
        }
        self.fallback_on = frozenset(fallback_on)
        """The reasons (`ProviderError.reason`) for which a fallback is asked."""
        self.holding = frozenset(holding)
        """The providers at whose rate limits prompts are held."""
        self.fallback = tuple(self.check(model, field="fallback") for model in fallback)

    def add(self, provider: ProviderClient) -> None:
        self._providers[provider.id] = provider
        self.breakers[provider.id] = Breaker(
            patience_seconds=self.retries.patience_seconds, clock=self._clock, of_provider=True
        )
        if isinstance(provider, ModelLister):
            self.lists.add(provider)

    def add_local_servers(self, servers: LocalServers) -> None:
        self._local_servers = servers

    def begin_lists(self) -> Callable[[], Awaitable[None]]:
        """Work that looks for servers on this machine and asks providers for lists that are
        old; from now on `lists` says that they are asked."""
        ports = {} if self._local_servers is None else self._local_servers.begin()
        due = self.lists.begin()

        async def update() -> None:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self.lists.update, due)
                tasks.start_soon(self._find_local_servers, ports)

        return update

    async def find_local_servers(self) -> None:
        if self._local_servers is not None:
            await self._find_local_servers(self._local_servers.begin())

    async def _find_local_servers(self, ports: Mapping[str, int]) -> None:
        if self._local_servers is not None:
            await self._local_servers.find(ports)
            for provider in self._local_servers.providers:
                if provider.id not in self._providers:
                    self.add(provider)

    async def before_call(self, name: str, *, is_window_known: bool) -> None:
        """Finds out the window of a model that is about to be called."""
        provider_id, _, model = name.partition("/")
        await self.lists.before_call(provider_id, model, is_window_known=is_window_known)

    def can_call(self, name: str) -> bool:
        """Whether the model is in the settings, or of a provider that takes any name."""
        provider_id, _, model = name.partition("/")
        if name in self.routes or not is_model_name(model):
            return name in self.routes
        provider = self._provider(provider_id)
        return isinstance(provider, ModelLister) and provider.is_open

    def _provider(self, provider_id: str) -> ProviderClient | None:
        known = self._providers.get(provider_id)
        if known is None and self._local_servers is not None:
            known = self._local_servers.provider(provider_id)
            if known is not None:
                self.add(known)
        return known

    def check(self, name: str, *, field: str = "model") -> str:
        """Returns the model's whole name, or raises an error that lists the models. A name that
        is not in the settings must be in the provider's list, if that is known. A name without
        its provider is enough where only one provider has the model."""
        provider_id, _, model = name.partition("/")
        if name in self.routes or (self.can_call(name) and self.lists.may_have(provider_id, model)):
            return name
        found = self._with_provider(name)
        if len(found) == 1:
            return found[0]
        if found:
            raise RequestError(
                ErrorCode.AMBIGUOUS,
                f"several providers have the model {name!r}: {', '.join(found)}",
                field=field,
                details={"candidates": list(found)},
            )
        known = self._known_of(provider_id) if self._provider(provider_id) else self.models
        raise RequestError(
            ErrorCode.NOT_FOUND,
            f"there is no model {name!r}{hint_of_model(name, known)}",
            field=field,
            details={"candidates": list(known)},
        )

    def _with_provider(self, model: str) -> tuple[str, ...]:
        """The whole names of the model at those providers that have it. A server that was only
        found on this machine answers by its whole name."""
        return tuple(
            name
            for id_ in self._providers
            if self._local_servers is None or not self._local_servers.has_found(id_)
            for name in (f"{id_}/{model}",)
            if name in self.models or (self.can_call(name) and self.lists.has(id_, model))
        )

    def _known_of(self, provider_id: str) -> tuple[str, ...]:
        """The models of one provider, of the settings and of its own list."""
        own = (name for name in self.models if name.startswith(f"{provider_id}/"))
        listed = self.lists.of(provider_id) if self.can_call(f"{provider_id}/x") else None
        names = () if listed is None else (f"{provider_id}/{m.name}" for m in listed.models)
        return tuple(dict.fromkeys((*own, *names)))

    def wished(self, *, model: str | None, role: str | None) -> str | None:
        """The model that is named, or that has the role; `None` if neither is given. Raises an
        error that lists the models or the roles."""
        if role is not None and role not in self.roles:
            known = f"there is {', '.join(self.roles)}" if self.roles else "no role is set here"
            raise RequestError(
                ErrorCode.NOT_FOUND,
                f"no model plays the role {role!r}; {known}",
                field="role",
                details={"candidates": list(self.roles)},
            )
        if model is not None:
            return self.check(model)
        return None if role is None else self.roles[role]

    def choose(self, *wishes: str | None) -> str:
        """The first of the models that exists, or the default: a conversation whose model was
        removed from the settings must stay usable."""
        for wish in wishes:
            if wish and self.can_call(wish):
                return wish
        return self.default_model

    def route_of(self, name: str) -> ModelRoute:
        known = self.routes.get(name)
        if known is not None:
            return known
        if not self.can_call(name):
            self.check(name)
        others = [each for each in self.routes if each not in self.models]
        if len(others) >= _UNLISTED_ROUTES_MAX:
            del self.routes[others[0]]
        provider_id, _, model = name.partition("/")
        provider, breaker = self._providers[provider_id], self.breakers[provider_id]
        route = self.routes[name] = ModelRoute(provider, model, breaker, self._secrets)
        return route

    def instead_of(self, tried: Sequence[str], *, avoid: str | None = None) -> str | None:
        """The next fallback that was not tried yet, is not of the provider to avoid, and
        whose breaker is not open; `None` if there is none."""
        for model in self.fallback:
            route = self.route_of(model)
            is_paused = "open" in (route.provider_breaker.state, route.breaker.state)
            if model not in tried and route.id != avoid and not is_paused:
                return model
        return None

    async def aclose(self) -> None:
        """Closes all providers concurrently, so that one that hangs does not delay the
        others."""

        async def close(provider: ProviderClient) -> None:
            try:
                await provider.aclose()
            except Exception as error:
                # Not the exception's text, which may contain a key.
                log.warning("%s could not be closed: %s", provider.id, type(error).__name__)

        async with anyio.create_task_group() as closing:
            for provider in self._providers.values():
                closing.start_soon(close, provider)


def build_router(
    settings: Settings,
    environ: Mapping[str, str] = os.environ,
    *,
    known: KnownModels | None = None,
    secrets: SecretMask = NO_SECRETS,
    learned: LearnedForms | None = None,
) -> ProviderRouter:
    """The router of these settings. `known` learns what providers say of their models; `secrets`
    are masked in what they send; `learned` is read from its file if it is not given. Raises
    `ConfigurationError`."""
    limits = settings.limits
    patience = Patience(
        connect_seconds=limits.connect_seconds_max,
        first_token_seconds=limits.first_token_seconds_max,
        gap_seconds=limits.gap_seconds_max,
    )
    learned = learned or LearnedForms(settings.data_dir / "forms.json")
    if known is not None:
        known.use(learned)
    builder = ProviderBuilder(
        environ=environ, models=settings.models, patience=patience, learned=learned
    )
    providers = [builder.build(each) for each in settings.providers or (OfflineSettings(),)]
    try:
        router = ProviderRouter(
            providers,
            default_model=settings.default_model,
            roles={role: model for role, model in settings.roles if model is not None},
            fallback=settings.fallback,
            fallback_on=settings.fallback_on,
            holding=[
                each.id
                for each in settings.providers
                if isinstance(each, OpenAISettings | AnthropicSettings) and each.on_limit == "hold"
            ],
            retries=RetryPolicy(retries_max=limits.retries_max),
            secrets=secrets,
            learned=learned,
        )
    except RequestError as error:
        raise ConfigurationError([f"{error.field}: {error.message}"]) from None
    router.lists.keep_in(settings.data_dir / "models.json", known)
    if settings.local_servers:
        router.add_local_servers(LocalServers(settings, builder, router.lists))
    return router
