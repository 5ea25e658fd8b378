"""`provider/model` names to the provider that answers under them."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from nplt_protocol.codes import ErrorCode
from nplt_protocol.errors import RequestError
from nplt_server.providers.base import Provider
from nplt_storage.facts.entries import ModelInvocationDescriptor


class ProviderRouter:
    def __init__(self, providers: Iterable[Provider], *, default_model: str | None = None) -> None:
        self._by_model: dict[str, Provider] = {
            f"{provider.id}/{model}": provider
            for provider in providers
            for model in provider.models
        }
        self.models = tuple(self._by_model)
        self.default_model = self.check(default_model) if default_model else self.models[0]

    def check(self, name: str) -> str:
        """The name itself, or an error that says which ones there are."""
        if name in self._by_model:
            return name
        near = get_close_matches(name, self.models, n=1, cutoff=0.4)
        hint = f"; did you mean {near[0]}?" if near else f"; there is {', '.join(self.models)}"
        raise RequestError(
            ErrorCode.NOT_FOUND,
            f"there is no model {name!r}{hint}",
            field="model",
            details={"candidates": list(self.models)},
        )

    def choose(self, *wishes: str | None) -> str:
        """The first wish that can be met: a model that left the settings since
        it was chosen must not make a conversation unusable."""
        return next(
            (wish for wish in wishes if wish in self._by_model and wish), self.default_model
        )

    def route(self, name: str) -> tuple[Provider, ModelInvocationDescriptor]:
        provider = self._by_model[self.check(name)]
        _, _, model = name.partition("/")
        return provider, ModelInvocationDescriptor(
            provider=provider.id, specification=provider.specification, model=model
        )
