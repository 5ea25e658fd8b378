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
from nplt_server.providers.breaker import Admission, Breaker
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
        try:
            admission = self.breaker.admit()
        except ProviderPaused as error:  # it is not asked
            self.metrics.failures[kind_of(error)] += 1
            raise
        call = _Call(self.metrics, admission, clock=self._clock)
        try:
            with guarded(self.id):
                async with self._provider.call_model(request) as deltas:
                    async for delta in deltas:
                        call.hear(delta)
                        yield delta
                call.check_begun()
        except ProviderError as error:
            call.failed(error)
            raise
        except BaseException:
            admission.given_up()
            raise
        else:
            call.ended()
        finally:
            call.count_usage()


class _Call:
    """What is noted of one call."""

    __slots__ = ("_admission", "_begun", "_clock", "_has_spoken", "_is_whole", "_metrics", "_usage")

    def __init__(
        self, metrics: ModelMetrics, admission: Admission, *, clock: Callable[[], float]
    ) -> None:
        self._metrics = metrics
        self._admission = admission
        self._clock = clock
        self._begun = clock()
        self._usage: UsageReport | None = None
        self._has_spoken = self._is_whole = False
        metrics.calls += 1

    def hear(self, delta: ModelOutputDelta) -> None:
        if isinstance(delta, UsageReport):
            self._usage = delta
        elif isinstance(delta, Stopped):
            self._is_whole = True
        elif not self._has_spoken:
            self._has_spoken = True
            self._admission.spoke()
            self._metrics.first_token.add(self._clock() - self._begun)

    def check_begun(self) -> None:
        """Who hung up before the first word was not there, however politely it did."""
        if not (self._has_spoken or self._is_whole):
            raise ProviderUnavailable("the provider ended its answer before it began")

    def ended(self) -> None:
        if self._is_whole:
            self._admission.succeeded()
            self._metrics.whole.add(self._clock() - self._begun)
        else:
            # Told to whoever listens by the lack of an end; here it is a failure.
            self.failed(AnswerCut())

    def failed(self, error: ProviderError) -> None:
        self._metrics.failures[kind_of(error)] += 1
        match error:
            case ProviderUnavailable(is_busy=True, retry_after=None):
                self._admission.given_up()  # it is well, but how soon it may be asked is not said
            case ProviderUnavailable():
                self._admission.failed(retry_after=error.retry_after)
            case AnswerCut():
                self._admission.failed()
            case _:
                self._admission.succeeded()

    def count_usage(self) -> None:
        if self._usage is not None:
            self._metrics.count_usage(self._usage)
