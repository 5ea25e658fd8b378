"""The port, spoken to OpenAI or to a server that speaks as OpenAI does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing

from nplt_server.deltas import ModelOutputDelta
from nplt_server.providers.base import ModelRequest
from nplt_server.providers.compiling import ContextCompiler
from nplt_server.providers.openai.client import OpenAIClient
from nplt_server.providers.openai.dialect import Dialect


class OpenAIProvider:
    def __init__(
        self, provider_id: str, client: OpenAIClient, *, dialect: Dialect, models: tuple[str, ...]
    ) -> None:
        self.id = provider_id
        self.models = models
        self._client = client
        self._dialect = dialect
        self._compiler = ContextCompiler(dialect.rules)

    @property
    def specification(self) -> str:
        return self._dialect.specification

    def call_model(
        self, request: ModelRequest
    ) -> AbstractAsyncContextManager[AsyncIterator[ModelOutputDelta]]:
        compiled = self._compiler.compile(request.context, origin=request.invocation)
        rendered = self._dialect.render(request, compiled)
        parser = self._dialect.parser(rendered)
        return aclosing(self._client.stream(self._dialect.path, rendered, parser))

    async def aclose(self) -> None:
        await self._client.aclose()
