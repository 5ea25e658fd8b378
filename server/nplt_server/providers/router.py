"""`provider/model` names to the provider that answers under them.

Who answers a turn: the model the prompt names, or the one that plays the role it names,
or the conversation's, or the default. That is decided when the prompt is accepted or the
turn starts, and holds for all calls of the turn: a model is fixed inside a turn. Calls
outside of turns (a summary) ask for their role's model one by one. Only if nobody began
to answer may one of the `fallback` models take the turn, in their order.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches

import anyio

from nplt_protocol.codes import ErrorCode
from nplt_protocol.errors import RequestError
from nplt_server.providers.base import Provider
from nplt_server.providers.breaker import Breaker
from nplt_server.providers.line import ProviderLine
from nplt_server.providers.retrying import RetryPolicy
from nplt_storage.facts.entries import ModelInvocationDescriptor

log = logging.getLogger(__name__)


class ProviderRouter:
    def __init__(
        self,
        providers: Iterable[Provider],
        *,
        default_model: str | None = None,
        roles: Mapping[str, str] | None = None,
        fallback: Sequence[str] = (),
        retries: RetryPolicy | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """A name nobody answers to is a `RequestError` whose field says where it stands:
        `default_model`, `roles.planner`, `fallback`."""
        self.retries = retries or RetryPolicy()
        self._providers = tuple(providers)
        self.breakers = {
            provider.id: Breaker(patience_seconds=self.retries.patience_seconds, clock=clock)
            for provider in self._providers
        }
        self._lines = {
            f"{provider.id}/{model}": ProviderLine(
                provider, self.breakers[provider.id], clock=clock
            )
            for provider in self._providers
            for model in provider.models
        }
        self.models = tuple(self._lines)
        self.default_model = self.models[0]
        if default_model:
            self.default_model = self.check(default_model, field="default_model")
        self.roles = {
            role: self.check(model, field=f"roles.{role}") for role, model in (roles or {}).items()
        }
        self.fallback = tuple(self.check(model, field="fallback") for model in fallback)

    def check(self, name: str, *, field: str = "model") -> str:
        """The name itself, or an error that says which ones there are."""
        if name in self._lines:
            return name
        near = get_close_matches(name, self.models, n=1, cutoff=0.4)
        hint = f"; did you mean {near[0]}?" if near else f"; there is {', '.join(self.models)}"
        raise RequestError(
            ErrorCode.NOT_FOUND,
            f"there is no model {name!r}{hint}",
            field=field,
            details={"candidates": list(self.models)},
        )

    def wished(self, *, model: str | None, role: str | None) -> str | None:
        """The model somebody asks for by its name or by its role; `None`: they don't mind."""
        of_role = None if role is None else self.played_by(role)
        return of_role if model is None else self.check(model)

    def played_by(self, role: str) -> str:
        """The model that plays the role, or an error that says which roles there are."""
        if role in self.roles:
            return self.roles[role]
        known = f"there is {', '.join(self.roles)}" if self.roles else "no role is set here"
        raise RequestError(
            ErrorCode.NOT_FOUND,
            f"no model plays the role {role!r}; {known}",
            field="role",
            details={"candidates": list(self.roles)},
        )

    def choose(self, *wishes: str | None) -> str:
        """The first wish that can be met: a model that left the settings since
        it was chosen must not make a conversation unusable."""
        return next((wish for wish in wishes if wish and wish in self._lines), self.default_model)

    def route(self, name: str) -> tuple[ProviderLine, ModelInvocationDescriptor]:
        line = self._lines[self.check(name)]
        _, _, model = name.partition("/")
        return line, ModelInvocationDescriptor(
            provider=line.id, specification=line.specification, model=model
        )

    def instead_of(self, tried: Sequence[str], *, avoid: str | None = None) -> str | None:
        """The next model to be asked when those did not begin to answer; not one of the
        provider to be avoided, nor of one that is left alone for now."""
        for model in self.fallback:
            line = self._lines[model]
            is_well = line.id != avoid and line.breaker.state != "open"
            if is_well and model not in tried:
                return model
        return None

    @property
    def lines(self) -> Iterator[tuple[str, ProviderLine]]:
        return iter(self._lines.items())

    async def aclose(self) -> None:
        """When the server stops: all side by side, for one that hangs, or can't be closed,
        must not take the time of the others."""
        async with anyio.create_task_group() as closing:
            for provider in self._providers:
                closing.start_soon(_close, provider)


async def _close(provider: Provider) -> None:
    try:
        await provider.aclose()
    except Exception as error:
        # Not its words: a key may be in them.
        log.warning("%s could not be closed: %s", provider.id, type(error).__name__)
