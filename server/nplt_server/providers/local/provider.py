"""The port, spoken to a model on this machine.

Tools are not offered to it: so small a model never calls one, and takes their
descriptions for what it was asked. A call whose process dies before the first word is
put to the next process, once; after the first word it is cut, as anybody's.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing
from pathlib import Path

from nplt_server.deltas import ModelOutputDelta
from nplt_server.errors import ProviderUnavailable
from nplt_server.providers.base import ModelRequest
from nplt_server.providers.local.engine import Engine, EngineOrder
from nplt_server.providers.local.installed import FACTS, MODEL, installed_model
from nplt_server.providers.local.keeper import EngineKeeper
from nplt_server.providers.local.plain import in_plain_words
from nplt_server.providers.openai.chat_render import ChatDialect
from nplt_server.providers.openai.client import OpenAIClient
from nplt_server.providers.openai.provider import OpenAIProvider
from nplt_server.providers.patience import Patience

_DIALECT = ChatDialect()
_ONE_CALL = {"Connection": "close"}
"""Its server ends connections it said it would keep, now and then before an answer."""


class LocalProvider:
    specification = _DIALECT.specification
    models = (MODEL,)

    def __init__(
        self,
        provider_id: str = "local",
        *,
        file: Path | None = None,
        window_tokens: int | None = None,
        patience: Patience | None = None,
    ) -> None:
        """`file`: the model, if it is not the one that was installed."""
        self.id = provider_id
        self.patience = patience
        file = file or installed_model() or Path(f"{MODEL}.gguf")
        self.keeper = EngineKeeper(
            EngineOrder(file=file, name=MODEL, window_tokens=window_tokens or FACTS.context_tokens)
        )
        self._spoken_to: Engine | None = None
        self._speaking: OpenAIProvider | None = None

    def call_model(
        self, request: ModelRequest
    ) -> AbstractAsyncContextManager[AsyncIterator[ModelOutputDelta]]:
        return aclosing(self._answer(in_plain_words(request)))

    async def aclose(self) -> None:
        if self._speaking is not None:
            await self._speaking.aclose()
        await self.keeper.aclose()

    async def _answer(self, request: ModelRequest) -> AsyncGenerator[ModelOutputDelta, None]:
        for may_ask_again in (True, False):
            engine = await self.keeper.running()
            speaking = await self._speaking_to(engine)
            try:
                async with speaking.call_model(request) as deltas:
                    async for delta in deltas:
                        yield delta
                return
            except ProviderUnavailable as failure:
                is_lost = await self.keeper.is_lost(engine)
                if not (is_lost and may_ask_again and failure.before_first_token):
                    raise

    async def _speaking_to(self, engine: Engine) -> OpenAIProvider:
        if self._speaking is None or self._spoken_to is not engine:
            before = self._speaking
            client = OpenAIClient(
                api_key=engine.key,
                base_url=f"{engine.address}/v1",
                headers=_ONE_CALL,
                patience=self.patience,
            )
            self._speaking = speaking = OpenAIProvider(
                self.id, client, dialect=_DIALECT, models=self.models
            )
            self._spoken_to = engine
            if before is not None:
                await before.aclose()
            return speaking
        return self._speaking
