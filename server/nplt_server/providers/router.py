"""Maps `provider/model` names to providers, with a circuit breaker, retries and metrics.

A turn's model is chosen once, from the prompt, its role, the conversation or the default.
Fallback models are tried only if the failed call produced no output. An exception inside a
provider's adapter ends that call and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
import traceback
from bisect import bisect_left
from collections import Counter
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import aclosing
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import anyio
from msgspec import Struct, field

from nplt_protocol import ErrorCode, JsonObject, JsonValue, RequestError
from nplt_server.errors import (
    AnswerCut,
    ProviderError,
    ProviderPaused,
    ProviderRefused,
    ProviderUnauthorized,
    ProviderUnavailable,
    RequestTooLarge,
)
from nplt_server.providers import (
    DeltaStream,
    ModelOutputDelta,
    ModelRequest,
    Provider,
    Stopped,
    TextPiece,
    UsageReport,
)
from nplt_server.providers.models import ModelLister, ModelLists, is_model_name
from nplt_server.usage import ModelPrices, as_amount
from nplt_storage.entries import ModelInvocationDescriptor

if TYPE_CHECKING:
    from nplt_server.providers.build import LocalServers

log = logging.getLogger(__name__)

# ------------------------------------------------------------------------------
# Circuit breakers: one for each model, and one for each provider
#
# A provider's counts only failures that all its models share: nobody can be reached, or the
# key is wrong. Five failures in a row open a breaker for 30 s; then one call, the probe, is let
# through. If the probe fails, the breaker opens for twice as long, up to 300 s. While the
# breaker is open, calls fail at once, so that a fallback can be tried.
#
# A failure with a retry time does not count, since callers obey that time; only if the time
# exceeds `patience_seconds` does the breaker open until then. Refusals (of a key, of a
# request, by a rate limit) do not count either.

FAILURES_MAX: Final = 5
OPEN_SECONDS: Final = 30.0
OPEN_SECONDS_MAX: Final = 300.0
_PROBE_SECONDS: Final = 1.0
"""Retry time of other calls while a probe is running."""

BreakerState: TypeAlias = Literal["closed", "open", "half_open"]


class Breaker:
    def __init__(
        self,
        *,
        patience_seconds: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
        of_provider: bool = False,
    ) -> None:
        """`patience_seconds`: the longest wait before a retry."""
        self.clock = clock
        self.patience_seconds = patience_seconds
        self._of_provider = of_provider
        self._why = ""
        self._failures = 0
        self._open_seconds = OPEN_SECONDS
        self._open_until: float | None = None
        self._openings = 0
        self._probe: BreakerPermit | None = None

    @property
    def state(self) -> BreakerState:
        if self._open_until is None:
            return "closed"
        return "open" if self.clock() < self._open_until else "half_open"

    @property
    def seconds_left(self) -> float:
        """Seconds until a call is let through."""
        return 0.0 if self._open_until is None else max(0.0, self._open_until - self.clock())

    def admit(self) -> BreakerPermit:
        """Lets a call through, or raises `ProviderPaused`. The call reports its outcome to the
        permit."""
        permit = BreakerPermit(self, self._openings)
        if self._open_until is None:
            return permit
        if self.state == "open" or self._probe is not None:
            seconds = self.seconds_left if self.state == "open" else _PROBE_SECONDS
            raise ProviderPaused(retry_after=seconds, of_provider=self._of_provider, why=self._why)
        self._probe = permit
        return permit

    def _open(self, seconds: float) -> None:
        self._open_until = max(self.clock() + seconds, self._open_until or 0.0)
        self._openings += 1
        self._probe = None


class BreakerPermit:
    """Takes the outcome of one call. For a call that began before the breaker opened, a
    success closes the breaker, but a failure is ignored: the breaker has opened already."""

    def __init__(self, breaker: Breaker, openings: int) -> None:
        self._breaker = breaker
        self._openings = openings
        """The number of times the breaker had opened when the call was let through."""

    def began(self) -> None:
        """The provider has begun to answer. Other calls are let through without waiting for
        the end, which may take minutes. The outcome is still reported at the end."""
        self._breaker._open_until = None
        self._breaker._probe = None

    def succeeded(self) -> None:
        """The provider answered; a refusal counts as an answer."""
        self._breaker._failures = 0
        self._breaker._open_seconds = OPEN_SECONDS
        self.began()

    def failed(self, *, retry_after: float | None = None, why: str = "") -> None:
        """`retry_after`: seconds to wait, if the provider named a time."""
        breaker = self._breaker
        breaker._why = why
        was_probe = breaker._probe is self
        if retry_after is not None:
            if was_probe or retry_after > breaker.patience_seconds:
                breaker._open(min(retry_after, OPEN_SECONDS_MAX))
            return
        if self._openings != breaker._openings:
            return  # the breaker has opened since the call began
        breaker._failures += 1
        if was_probe:
            breaker._open_seconds = min(breaker._open_seconds * 2, OPEN_SECONDS_MAX)
        if was_probe or (breaker._failures >= FAILURES_MAX and breaker._open_until is None):
            breaker._open(breaker._open_seconds)

    def given_up(self) -> None:
        """The call ended without an outcome, for example by cancellation. Counts as neither
        success nor failure."""
        if self._breaker._probe is self:
            self._breaker._probe = None


# ------------------------------------------------------------------------------
# Metrics of one model since the server started, for STATUS

BUCKET_SECONDS: Final = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0)
"""Upper bounds of the buckets; one more bucket holds longer durations."""


_KINDS: Final = (
    (ProviderPaused, "paused"),
    (AnswerCut, "cut"),
    (ProviderUnavailable, "unavailable"),
    (ProviderUnauthorized, "unauthorized"),
    (RequestTooLarge, "too_large"),
)


def kind_of(error: ProviderError) -> str:
    if isinstance(error, ProviderUnavailable) and error.timed_out:
        return "timed_out"
    return next((kind for each, kind in _KINDS if isinstance(error, each)), "refused")


class Durations(Struct):
    count: int = 0
    seconds: float = 0.0
    longest: float = 0.0
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKET_SECONDS) + 1))

    def add(self, seconds: float) -> None:
        self.count += 1
        self.seconds += seconds
        self.longest = max(self.longest, seconds)
        self.buckets[bisect_left(BUCKET_SECONDS, seconds)] += 1

    def as_json(self) -> JsonObject:
        """`buckets`: durations per bucket, by upper bound; not cumulative."""
        edges = [*(f"{edge:g}" for edge in BUCKET_SECONDS), "more"]
        buckets: JsonObject = {
            edge: number for edge, number in zip(edges, self.buckets, strict=True) if number
        }
        return {
            "count": self.count,
            "sum": round(self.seconds, 3),
            "max": round(self.longest, 3),
            "buckets": buckets,
        }


class ModelMetrics(Struct):
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
            cost = prices.cost(
                input_tokens=self.input_tokens,
                output_tokens=self.output_tokens,
                cached_tokens=self.cached_tokens,
                cache_write_tokens=self.cache_write_tokens,
            )
            metrics["cost"] = as_amount(cost)
        return metrics


# ------------------------------------------------------------------------------
# The route to one model: its provider with breaker and metrics
#
# An unexpected exception in a provider's adapter ends a turn, not the server; so does
# SystemExit, and a cancellation that did not come from this server (a library may leak one of
# its own). The text of an exception is never logged: it may contain a key.


class ModelRoute:
    def __init__(self, provider: Provider, model: str, provider_breaker: Breaker) -> None:
        self.id = provider.id
        self._provider = provider
        self._model = model
        self.provider_breaker = provider_breaker
        """Shared by all models of the provider."""
        self.breaker = Breaker(
            patience_seconds=provider_breaker.patience_seconds, clock=provider_breaker.clock
        )
        self.metrics = ModelMetrics()

    @property
    def invocation(self) -> ModelInvocationDescriptor:
        """Its specification may change, once, when the provider learns which API the model
        needs."""
        return ModelInvocationDescriptor(
            provider=self.id,
            specification=self._provider.specification_of(self._model),
            model=self._model,
        )

    def call_model(self, request: ModelRequest) -> DeltaStream:
        return aclosing(self._call(request))

    async def _call(self, request: ModelRequest) -> AsyncGenerator[ModelOutputDelta, None]:
        observer = _CallObserver(self)
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
            observer.failed(error)
            if isinstance(error, ProviderRefused | ProviderUnauthorized):
                log.warning("%s/%s: %s", self.id, self._model, error)
            raise
        except BaseException as error:
            observer.given_up()  # a bug here says nothing about the provider
            refused = self._refusal_for_bug(error)
            if refused is None:
                raise
            self.metrics.failures[kind_of(refused)] += 1
            raise refused from None
        else:
            observer.ended()
        finally:
            if observer.usage is not None:
                self.metrics.count_usage(observer.usage)

    def _refusal_for_bug(self, error: BaseException) -> ProviderRefused | None:
        """`None`: a cancellation by this server, or by whoever stops it."""
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
    """Counts one call in the metrics, and reports to both breakers."""

    def __init__(self, route: ModelRoute) -> None:
        """Raises `ProviderPaused` if one of them is open: no request is to be sent."""
        self._metrics = route.metrics
        of_provider: BreakerPermit | None = None
        try:
            of_provider = route.provider_breaker.admit()
            self._permit = route.breaker.admit()
        except ProviderPaused as error:
            if of_provider is not None:
                of_provider.given_up()
            self._metrics.failures[kind_of(error)] += 1
            raise
        self._of_provider = of_provider
        self._clock = route.breaker.clock
        self._began_at = self._clock()
        self.usage: UsageReport | None = None
        self.has_begun = self.is_whole = False
        self._metrics.calls += 1

    def observe(self, delta: ModelOutputDelta) -> None:
        if isinstance(delta, UsageReport):
            self.usage = delta
        elif isinstance(delta, Stopped):
            self.is_whole = True
        elif not self.has_begun:
            self.has_begun = True
            self._permit.began()
            self._of_provider.succeeded()
            self._metrics.first_token.add(self._clock() - self._began_at)

    def ended(self) -> None:
        if self.is_whole:
            self._permit.succeeded()
            self._of_provider.succeeded()
            self._metrics.whole.add(self._clock() - self._began_at)
        else:
            # The caller sees that `Stopped` is missing; the breaker and the metrics are told.
            self.failed(AnswerCut())

    def failed(self, error: ProviderError) -> None:
        self._metrics.failures[kind_of(error)] += 1
        if error.of_provider:
            self._permit.given_up()
            self._of_provider.failed(why=error.sentence)
            return
        self._of_provider.succeeded()  # it is there
        match error:
            case ProviderUnavailable(is_busy=True, retry_after=None):
                self._permit.given_up()  # rate limited: neither a success nor a failure
            case ProviderUnavailable():
                self._permit.failed(retry_after=error.retry_after, why=error.sentence)
            case _:
                self._permit.succeeded()

    def given_up(self) -> None:
        self._permit.given_up()
        self._of_provider.given_up()


# ------------------------------------------------------------------------------
# Retries
#
# A call is retried only if the provider was unreachable or busy, or broke off, and the call did
# not time out. A retry time that the provider gives is obeyed; if it is longer than
# `patience_seconds`, there is no retry. The policy decides; the caller knows whether a word was
# shown, waits, and announces it.


class RetryPolicy(Struct, frozen=True, kw_only=True):
    retries_max: int = 2
    first_seconds: float = 0.5
    """The shortest first wait; each later wait is twice as long."""
    seconds_max: float = 4.0
    patience_seconds: float = 30.0
    """A provider that asks for a longer wait is not retried."""
    random: Callable[[], float] = random.random
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep

    def wait_before_retry(self, error: ProviderError, *, retries: int) -> float | None:
        """Seconds to wait before the next retry; `None` for no retry. The wait has random
        jitter, so that calls do not come back all at once, but is never shorter than the
        provider's retry time."""
        if retries >= self.retries_max or not isinstance(error, ProviderUnavailable):
            return None
        if isinstance(error, ProviderPaused) or error.timed_out:
            return None
        if error.retry_after is not None:
            if error.retry_after > self.patience_seconds:
                return None
            return error.retry_after + self.first_seconds * self.random()
        shortest = self.first_seconds * 2.0**retries
        return min(shortest * (1.0 + self.random()), self.seconds_max)


# ------------------------------------------------------------------------------
# The router
#
# A turn's model is the one the prompt names, or its role's, or the conversation's, or the
# default. It is chosen when the prompt is accepted or the turn starts and is fixed inside the
# turn. Calls outside of turns (a summary) use their role's model. The `fallback` models are
# tried in order, only if there was no output.


_UNLISTED_ROUTES_MAX: Final = 256


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
        """Raises `RequestError` for an unknown model; its `field` names the setting:
        `default_model`, `roles.planner`, `fallback`."""
        self.retries = retries or RetryPolicy()
        self.lists = ModelLists()
        self.local_servers: LocalServers | None = None
        self._clock = clock
        self._providers: dict[str, Provider] = {}
        self.breakers: dict[str, Breaker] = {}
        self.routes: dict[str, ModelRoute] = {}
        """Of the models in the settings, and of others that were called."""
        for provider in providers:
            self.add(provider)
            for model in provider.models:
                route = ModelRoute(provider, model, self.breakers[provider.id])
                self.routes[f"{provider.id}/{model}"] = route
        self.models = tuple(self.routes)
        """Without those that only a provider's own list has."""
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
        self.fallback = tuple(self.check(model, field="fallback") for model in fallback)

    def add(self, provider: Provider) -> None:
        self._providers[provider.id] = provider
        self.breakers[provider.id] = Breaker(
            patience_seconds=self.retries.patience_seconds, clock=self._clock, of_provider=True
        )
        if isinstance(provider, ModelLister):
            self.lists.add(provider)

    def begin_lists(self) -> Callable[[], Awaitable[None]]:
        """Work that looks for servers on this machine and asks providers for lists that are
        old; from now on `lists` says that they are asked."""
        local = self.local_servers
        ports = {} if local is None else local.begin()
        due = self.lists.begin()

        async def update() -> None:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self.lists.update, due)
                if local is not None:
                    tasks.start_soon(local.find, ports)

        return update

    def can_call(self, name: str) -> bool:
        """Whether the model is in the settings, or of a provider that takes any name."""
        provider_id, _, model = name.partition("/")
        if name in self.routes or not is_model_name(model):
            return name in self.routes
        provider = self._providers.get(provider_id)
        if provider is None and self.local_servers is not None:
            provider = self.local_servers.provider(provider_id)
        return isinstance(provider, ModelLister) and provider.is_open

    def check(self, name: str, *, field: str = "model") -> str:
        """Returns the name, or raises an error that lists the models. A name that is not in
        the settings must be in the provider's list, if that is known."""
        provider_id, _, model = name.partition("/")
        if name in self.routes or (self.can_call(name) and self.lists.may_have(provider_id, model)):
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
        route = self.routes[name] = ModelRoute(provider, model, breaker)
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

        async def close(provider: Provider) -> None:
            try:
                await provider.aclose()
            except Exception as error:
                # Not the exception's text, which may contain a key.
                log.warning("%s could not be closed: %s", provider.id, type(error).__name__)

        async with anyio.create_task_group() as closing:
            for provider in self._providers.values():
                closing.start_soon(close, provider)
