"""Claude behind the provider port."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, aclosing

from nplt_server.deltas import ModelOutputDelta
from nplt_server.errors import ProviderRefused
from nplt_server.providers.anthropic.abilities import ModelAbilities, abilities_of
from nplt_server.providers.anthropic.client import MessagesClient
from nplt_server.providers.anthropic.parse import MessageParser
from nplt_server.providers.anthropic.render import RULES, Rendered, render
from nplt_server.providers.base import ModelRequest
from nplt_server.providers.compiling import ContextCompiler
from nplt_server.providers.patience import Patience
from nplt_server.providers.sse import SseParser


class AnthropicProvider:
    specification = "anthropic-messages"

    def __init__(
        self,
        provider_id: str = "anthropic",
        *,
        models: tuple[str, ...],
        key: str,
        base_url: str | None = None,
        abilities: Mapping[str, ModelAbilities] | None = None,
        patience: Patience | None = None,
    ) -> None:
        """`abilities`: of models whose names don't tell, or tell wrongly."""
        self.id = provider_id
        self.models = models
        self._abilities = {model: abilities_of(model) for model in models} | dict(abilities or {})
        self._compiler = ContextCompiler(RULES)
        self._client = MessagesClient(key=key, base_url=base_url, patience=patience)

    def call_model(
        self, request: ModelRequest
    ) -> AbstractAsyncContextManager[AsyncIterator[ModelOutputDelta]]:
        return aclosing(self._answer(request))

    async def aclose(self) -> None:
        await self._client.aclose()

    async def _answer(self, request: ModelRequest) -> AsyncGenerator[ModelOutputDelta, None]:
        model = request.invocation.model
        compiled = self._compiler.compile(request.context, origin=request.invocation)
        rendered = render(request, compiled, self._abilities.get(model) or abilities_of(model))
        events, message = SseParser(), MessageParser(rendered.own_names)
        stream = self._client.stream(rendered.body, betas=rendered.betas, progress=message)
        try:
            async with aclosing(stream) as chunks:
                async for chunk in chunks:
                    for event in events.feed(chunk):
                        for delta in message.feed(event.data):
                            yield delta
        except ProviderRefused as refusal:
            raise _with_entries(refusal, rendered) from None


def _with_entries(refusal: ProviderRefused, rendered: Rendered) -> ProviderRefused:
    """A refusal that names a message names the entries it was made of; one that names a
    result or a text in it, the one it is from."""
    place, block = refusal.message_index, refusal.block_index
    if place is None or place >= len(rendered.seqs):
        return refusal
    refusal.entry_seqs = rendered.seqs[place]
    seqs = rendered.block_seqs[place]
    if block is not None and block < len(seqs) and seqs[block]:
        refusal.entry_seqs = (seqs[block],)
    return refusal
