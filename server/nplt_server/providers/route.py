"""The route to one model: its provider, with circuit breakers and metrics.

An unexpected exception in a provider's adapter ends a turn, not the server; so does
SystemExit, and a cancellation that did not come from this server (a library may leak one of
its own). The text of an exception is never logged: it may contain a key. Known secrets are
masked in the output and in the errors of all providers.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from decimal import Decimal
from typing import Final

import anyio
from msgspec import Struct, field, structs

from nplt_protocol import JsonObject, JsonValue
from nplt_server.errors import (
    AnswerCut,
    ProviderError,
    ProviderPaused,
    ProviderRefused,
    ProviderUnauthorized,
    ProviderUnavailable,
    RequestTooLarge,
    VendorWords,
)
from nplt_server.masking import NO_SECRETS, SecretMask
from nplt_server.providers import (
    DeltaStream,
    LlmRequest,
    ModelOutputDelta,
    ProviderClient,
    Stopped,
    TextPiece,
    UsageReport,
)
from nplt_server.providers.breaker import Breaker
from nplt_server.providers.masked_output import MaskedOutput
from nplt_server.providers.model_lists import ModelLister
from nplt_server.usage import ModelPrices, as_amount
from nplt_storage.durations import Durations
from nplt_storage.entries import ModelInvocationDescriptor

log = logging.getLogger(__name__)

_CHECK_SECONDS_MAX: Final = 1.0
_NO_LIST: Final = (404, 405)
"""The statuses with which a server that can be reached says that it has no list of models."""

_KINDS: Final = (
    (ProviderPaused, "paused"),
    (AnswerCut, "cut"),
    (ProviderUnavailable, "unavailable"),
    (ProviderUnauthorized, "unauthorized"),
    (RequestTooLarge, "too_large"),
)


def failure_kind(error: ProviderError) -> str:
    """The name under which the metrics count the failure."""
    if isinstance(error, ProviderUnavailable) and error.timed_out:
        return "timed_out"
    return next((kind for each, kind in _KINDS if isinstance(error, each)), "refused")


class ModelMetrics(Struct):
    """Counts the calls of one model since the server started, for STATUS."""

    calls: int = 0
    retries: int = 0
    fail_overs: int = 0
    """How often a fallback was called instead of this model."""
    failures: Counter[str] = field(default_factory=Counter[str])
    first_token: Durations = field(default_factory=Durations)
    whole: Durations = field(default_factory=Durations)
    """Durations of complete calls."""
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0

    def count_usage(self, usage: UsageReport) -> None:
        """Negative counts are treated as 0."""
        self.input_tokens += max(0, usage.input_tokens)
        self.output_tokens += max(0, usage.output_tokens)
        self.cached_tokens += max(0, usage.cached_tokens)
        self.cache_write_tokens += max(0, usage.cache_write_tokens)

    def as_json(self, prices: ModelPrices | None) -> JsonObject:
        metrics: JsonObject = {
            "calls": self.calls,
            "failures": dict[str, JsonValue](self.failures),
            "retries": self.retries,
            "fail_overs": self.fail_overs,
            "first_token_seconds": self.first_token.as_json(),
            "call_seconds": self.whole.as_json(),
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "cached_tokens": self.cached_tokens,
        }
        if prices is not None:
            metrics["cost"] = as_amount(self.cost(prices))
        return metrics

    def cost(self, prices: ModelPrices) -> Decimal:
        return prices.cost(
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            cached_tokens=self.cached_tokens,
            cache_write_tokens=self.cache_write_tokens,
        )


class ModelRoute:
    """One model of one provider. Every call of the model goes through its route."""

    def __init__(
        self,
        provider: ProviderClient,
        model: str,
        provider_breaker: Breaker,
        secrets: SecretMask = NO_SECRETS,
    ) -> None:
        self.id = provider.id
        self._secrets = secrets
        self._stream = self._masked_call if secrets else self._call
        self._provider = provider
        self._model = model
        self.is_listed = isinstance(provider, ModelLister)
        """Whether the provider can be asked about its models."""
        self.provider_breaker = provider_breaker
        """Shared by all models of the provider."""
        self.breaker = Breaker(
            patience_seconds=provider_breaker.patience_seconds, clock=provider_breaker.clock
        )
        self.metrics = ModelMetrics()

    @property
    def invocation(self) -> ModelInvocationDescriptor:
        """The descriptor that entries store. Its specification changes once, if the provider
        learns that the model needs another API."""
        return ModelInvocationDescriptor(
            provider=self.id,
            specification=self._provider.specification_of(self._model),
            model=self._model,
        )

    def call_model(self, request: LlmRequest) -> DeltaStream:
        return aclosing(self._stream(request))

    async def _masked_call(self, request: LlmRequest) -> AsyncGenerator[ModelOutputDelta, None]:
        masked = MaskedOutput(self._secrets)
        try:
            async with aclosing(self._call(request)) as deltas:
                async for delta in deltas:
                    for each in masked.feed(delta):
                        yield each
        except ProviderError as error:
            for each in masked.flush():
                yield each
            raise self._without_secrets(error) from None
        for each in masked.flush():
            yield each

    async def _call(self, request: LlmRequest) -> AsyncGenerator[ModelOutputDelta, None]:
        if self.provider_breaker.open_until is not None:
            await self.provider_breaker.check_again(self._is_back)
        observer = _CallObserver(self, request)
        try:
            async with self._provider.call_model(request) as deltas:
                async for delta in deltas:
                    if not (observer.has_begun and type(delta) is TextPiece):
                        observer.observe(delta)
                    yield delta
            if not (observer.has_begun or observer.is_whole):
                # An empty stream that ends cleanly counts as unavailable.
                raise ProviderUnavailable("the provider ended its answer before it began")
        except ProviderError as error:
            if isinstance(error, ProviderRefused) and error.instead is not None:
                observer.abandoned()  # the same call goes on in another form
                raise
            observer.failed(error)
            needs_operator = isinstance(error, ProviderRefused | ProviderUnauthorized)
            level = logging.WARNING if needs_operator else logging.INFO
            log.log(level, "%s/%s: %s", self.id, self._model, self._without_secrets(error))
            raise
        except BaseException as error:
            observer.abandoned()  # a bug here says nothing about the provider
            refused = self._refusal_for_bug(error)
            if refused is None:
                raise
            self.metrics.failures[failure_kind(refused)] += 1
            raise refused from None
        else:
            observer.ended()
        finally:
            if observer.usage is not None:
                self.metrics.count_usage(observer.usage)

    async def _is_back(self) -> bool:
        """Whether the provider returns its list of models, or replies that it has none."""
        if not isinstance(self._provider, ModelLister):
            return False
        try:
            with anyio.fail_after(_CHECK_SECONDS_MAX):
                await self._provider.list_models()
        except Exception as error:
            return getattr(error, "status_code", None) in _NO_LIST
        log.info("%s can be reached again", self.id)
        return True

    def _without_secrets(self, error: ProviderError) -> ProviderError:
        if error.vendor is None or not self._secrets:
            return error
        vendor_words: dict[str, str] = structs.asdict(error.vendor)
        words = {name: self._secrets.mask(each) for name, each in vendor_words.items()}
        return replace(error, vendor=VendorWords(**words))

    def _refusal_for_bug(self, error: BaseException) -> ProviderRefused | None:
        """Returns `None` for a cancellation by this server, or by a signal that stops it."""
        match error:
            case asyncio.CancelledError():
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    return None
                log.error("provider %s cancelled itself", self.id)
                return ProviderRefused("the provider failed: it cancelled itself")
            case Exception() | SystemExit():
                name = type(error).__name__
                where = "".join(traceback.format_tb(error.__traceback__)).rstrip()
                log.error("provider %s failed: %s\n%s", self.id, name, where)
                return ProviderRefused(f"the provider failed: {name}")
            case _:
                return None


class _CallObserver:
    """Counts one call in the metrics, and reports its outcome to the breakers of the model and of
    the provider."""

    def __init__(self, route: ModelRoute, request: LlmRequest) -> None:
        """Raises `ProviderPaused` if one of them is open. Then no request may be sent."""
        self._metrics = route.metrics
        self._of_model, self._of_provider = route.breaker, route.provider_breaker
        try:
            self._provider_permit = self._of_provider.admit()
            try:
                self._model_permit = self._of_model.admit()
            except ProviderPaused:
                self._of_provider.abandoned(self._provider_permit)
                raise
        except ProviderPaused as error:
            self._metrics.failures[failure_kind(error)] += 1
            raise
        self._clock = route.breaker.clock
        self._began_at = self._clock()
        self.usage: UsageReport | None = None
        self.has_begun = self.is_whole = False
        self._is_retry = request.is_retry
        if request.form is None:  # else it was counted in its first form
            self._metrics.calls += 1

    def observe(self, delta: ModelOutputDelta) -> None:
        if isinstance(delta, UsageReport):
            self.usage = delta
        elif isinstance(delta, Stopped):
            self.is_whole = True
        elif not self.has_begun:
            self.has_begun = True
            self._metrics.first_token.add(self._clock() - self._began_at)
            self._of_model.began()
            self._of_provider.succeeded()

    def ended(self) -> None:
        if self.is_whole:
            self._metrics.whole.add(self._clock() - self._began_at)
            self._of_model.succeeded()
            self._of_provider.succeeded()
        else:
            # The caller sees that `Stopped` is missing; here it is only counted.
            self.failed(AnswerCut())

    def failed(self, error: ProviderError) -> None:
        self._metrics.failures[failure_kind(error)] += 1
        if error.of_provider:
            self._of_model.abandoned(self._model_permit)
            self._of_provider.failed(
                self._provider_permit,
                why=error.sentence,
                reason=error.reason,
                is_retry=self._is_retry,
            )
            return
        self._of_provider.succeeded()  # it can be reached
        match error:
            case (
                ProviderUnavailable(reason="rate_limited", retry_after=None)
                | ProviderUnavailable(is_starting=True)
            ):
                # This counts as neither a success nor a failure.
                self._of_model.abandoned(self._model_permit)
            case ProviderUnavailable():
                self._of_model.failed(
                    self._model_permit,
                    retry_after=error.retry_after,
                    why=error.sentence,
                    reason=error.reason,
                    is_retry=self._is_retry,
                )
            case _:
                self._of_model.succeeded()

    def abandoned(self) -> None:
        """The call ended without an outcome: it says nothing about the provider."""
        self._of_model.abandoned(self._model_permit)
        self._of_provider.abandoned(self._provider_permit)
