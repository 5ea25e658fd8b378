"""One engine for all who ask: started at the first call, and again when it is gone.

Calls that come while it starts wait for the same start, and one that is cancelled there
takes nothing from the others. How often it is worth starting again is decided by who
counts failures (a breaker): a start that fails is told to everyone who waits for it.
"""

from __future__ import annotations

import asyncio

from nplt_server.errors import ProviderUnavailable
from nplt_server.providers.local.engine import Engine, EngineOrder, start_engine


class EngineKeeper:
    def __init__(self, order: EngineOrder) -> None:
        self.order = order
        self._engine: Engine | None = None
        self._starting: asyncio.Task[Engine] | None = None
        self._is_closed = False

    async def running(self) -> Engine:
        if self._is_closed:
            raise ProviderUnavailable("the local model was stopped")
        if self._engine is not None and not self._engine.has_ended:
            return self._engine
        if self._starting is None or self._starting.done():
            self._starting = asyncio.create_task(self._start())
        # It is everyone's, so nobody's cancellation ends it.
        return await asyncio.shield(self._starting)

    async def is_lost(self, engine: Engine) -> bool:
        """Whether a call failed because its engine did; the next one gets another."""
        if await engine.is_well():
            return False
        if self._engine is engine:
            self._engine = None
            await engine.leave()
        return True

    async def aclose(self) -> None:
        self._is_closed = True
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        if self._engine is not None:
            await self._engine.leave()

    async def _start(self) -> Engine:
        gone, self._engine = self._engine, None
        if gone is not None:
            await gone.leave()
        self._engine = await start_engine(self.order)
        return self._engine
