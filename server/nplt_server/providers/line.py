"""The line to one model: its provider behind the fuse, with a meter on it.

It is a provider itself, so whoever calls a model needs to know of neither. Bugs of the
provider are kept on its side of the line.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing

from nplt_server.deltas import ModelOutputDelta, Stopped, UsageReport
from nplt_server.errors import AnswerCut, ProviderError, ProviderPaused, ProviderUnavailable
from nplt_server.providers.base import ModelRequest, Provider
from nplt_server.providers.breaker import Breaker
from nplt_server.providers.guarding import guarded
from nplt_server.providers.metrics import ModelMetrics, kind_of


class ProviderLine:
    __slots__ = ("_clock", "_provider", "breaker", "metrics")

    def __init__(self, provider: Provider, breaker: Breaker, *, clock: Callable[[], float]) -> None:
        self._provider = provider
        self._clock = clock
        self.breaker = breaker
        """Shared by all models of the provider."""
        self.metrics = ModelMetrics()

    @property
    def id(self) -> str:
        return self._provider.id

    @property
    def specification(self) -> str:
        return self._provider.specification

    @property
    def models(self) -> tuple[str, ...]:
        return self._provider.models

    async def aclose(self) -> None:
        await self._provider.aclose()

    def call_model(
        self, request: ModelRequest
    ) -> AbstractAsyncContextManager[AsyncIterator[ModelOutputDelta]]:
        return aclosing(self._call(request))

    async def _call(self, request: ModelRequest) -> AsyncGenerator[ModelOutputDelta, None]:
        begun = self._clock()
        usage: UsageReport | None = None
        has_spoken = has_stopped = False
        try:
            with guarded(self.id):
                self.breaker.admit()
                self.metrics.calls += 1
                async with self._provider.call_model(request) as deltas:
                    async for delta in deltas:
                        if isinstance(delta, UsageReport):
                            usage = delta
                        elif isinstance(delta, Stopped):
                            has_stopped = True
                        elif not has_spoken:
                            has_spoken = True
                            self.breaker.spoke()
                            self.metrics.first_token.add(self._clock() - begun)
                        yield delta
        except ProviderError as error:
            self._failed(error)
            raise
        except BaseException:
            self.breaker.given_up()
            raise
        else:
            self._ended(begun, is_whole=has_stopped)
        finally:
            if usage is not None:
                self.metrics.count_usage(usage)

    def _ended(self, begun: float, *, is_whole: bool) -> None:
        if is_whole:
            self.breaker.succeeded()
            self.metrics.whole.add(self._clock() - begun)
        else:
            # Told to whoever listens by the lack of an end; here it is a failure.
            self._failed(AnswerCut())

    def _failed(self, error: ProviderError) -> None:
        self.metrics.failures[kind_of(error)] += 1
        match error:
            case ProviderPaused():
                pass  # it was not asked
            case ProviderUnavailable():
                self.breaker.failed(retry_after=error.retry_after)
            case AnswerCut():
                self.breaker.failed()
            case _:
                self.breaker.succeeded()
