"""On the route to a model stand a breaker and metrics, whatever becomes of the call."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import suppress

import anyio
import pytest
from msgspec import structs
from tests.server.services import Model, model_of

from nplt_server.context.messages import ModelInputMessage
from nplt_server.errors import (
    ProviderError,
    ProviderPaused,
    ProviderRefused,
    ProviderUnauthorized,
    ProviderUnavailable,
    RequestTooLarge,
    VendorWords,
)
from nplt_server.masking import NO_SECRETS, SecretMask
from nplt_server.providers import LlmRequest, ModelOutputDelta, Stopped, TextPiece, UsageReport
from nplt_server.providers.breaker import FAILURES_MAX, OPEN_SECONDS
from nplt_server.providers.offline import ScriptedProvider
from nplt_server.providers.router import ProviderRouter
from nplt_server.request_form import RequestForm
from nplt_server.usage import ModelPrices
from nplt_storage.durations import BUCKET_SECONDS, Durations


class Meter:
    """A model on a route, with a clock the model turns."""

    def __init__(self, model: Model, *, secrets: SecretMask = NO_SECRETS) -> None:
        self.now = 0.0
        router = ProviderRouter([model_of(model)], clock=lambda: self.now, secrets=secrets)
        self.route = router.route_of("test/model")
        invocation = self.route.invocation
        self.request = LlmRequest(
            invocation=invocation, context=(ModelInputMessage(content="hello", seq=1),)
        )

    async def calls(self) -> list[ModelOutputDelta]:
        async with self.route.call_model(self.request) as deltas:
            return [delta async for delta in deltas]

    async def fails_until_paused(self) -> None:
        for _ in range(FAILURES_MAX):
            with pytest.raises(ProviderUnavailable):
                await self.calls()


async def test_a_secret_in_the_words_of_a_refusal_is_masked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    secret = "ghp_0f1e2d3c4b5a69788796a5b4c3d2e1f0"

    async def model(request: LlmRequest) -> AsyncGenerator[ModelOutputDelta, None]:
        yield TextPiece(text=f"I saw {secret[:9]}")
        raise ProviderRefused("it refuses", vendor=VendorWords(message=f"no {secret} here"))

    meter = Meter(model, secrets=SecretMask([secret]))
    with pytest.raises(ProviderRefused) as refused:
        await meter.calls()
    assert refused.value.vendor is not None
    assert refused.value.vendor.message == "no [secret] here"
    assert secret not in caplog.text + str(refused.value)


async def test_an_answer_is_counted_and_its_time_taken() -> None:
    async def model(request: LlmRequest) -> AsyncGenerator[ModelOutputDelta, None]:
        meter.now += 0.4
        yield TextPiece(text="a")
        meter.now += 3.0
        yield TextPiece(text="b")
        yield UsageReport(input_tokens=5, output_tokens=0)
        yield UsageReport(input_tokens=1_000, output_tokens=200, cached_tokens=400)
        yield Stopped(reason="end")

    meter = Meter(model)
    await meter.calls()
    await meter.calls()
    prices = ModelPrices.of(2.0, 10.0, 0.5)
    assert meter.route.metrics.as_json(prices) == {
        "calls": 2,
        "failures": {},
        "retries": 0,
        "fail_overs": 0,
        "first_token_seconds": {"count": 2, "sum": 0.8, "max": 0.4, "buckets": {"0.5": 2}},
        "call_seconds": {"count": 2, "sum": 6.8, "max": 3.4, "buckets": {"5": 2}},
        "input_tokens": 2_000,
        "output_tokens": 400,
        "cached_tokens": 800,
        "cost": "0.0068",
    }


def failing(error: Exception) -> Model:
    async def model(request: LlmRequest) -> AsyncGenerator[ModelOutputDelta, None]:
        raise error
        yield TextPiece(text="never")

    return model


async def cut(request: LlmRequest) -> AsyncGenerator[ModelOutputDelta, None]:
    yield TextPiece(text="half an ans")


@pytest.mark.parametrize(
    ("model", "kind", "opens"),
    [
        (failing(ProviderUnavailable("down")), "unavailable", True),
        (failing(ProviderUnavailable("slow", timed_out=True)), "timed_out", True),
        (cut, "cut", True),
        (failing(ProviderUnavailable("busy", retry_after=3)), "unavailable", False),
        (failing(ProviderUnavailable("429", reason="rate_limited")), "unavailable", False),
        (failing(ProviderUnauthorized("key")), "unauthorized", False),
        (failing(ProviderRefused("no")), "refused", False),
        (failing(RequestTooLarge("much")), "too_large", False),
        (failing(KeyError("a bug")), "refused", False),
    ],
)
async def test_a_failure_is_counted_by_its_kind_and_opens_the_fuse_if_it_is_the_providers(
    model: Model, kind: str, opens: bool
) -> None:
    meter = Meter(model)
    for _ in range(FAILURES_MAX):
        with suppress(ProviderError):
            await meter.calls()
    assert dict(meter.route.metrics.failures) == {kind: FAILURES_MAX}
    assert meter.route.breaker.state == ("open" if opens else "closed")


async def test_a_refusal_that_another_form_may_mend_is_no_failure_and_counts_one_call(
    caplog: pytest.LogCaptureFixture,
) -> None:
    other = RequestForm(specification="other")

    async def model(request: LlmRequest) -> AsyncGenerator[ModelOutputDelta, None]:
        if request.form is None:
            raise ProviderRefused("wrong API", wrong_api=True, instead=other)
        yield TextPiece(text="hello")
        yield Stopped(reason="end")

    meter = Meter(model)
    with pytest.raises(ProviderRefused):
        await meter.calls()
    meter.request = structs.replace(meter.request, form=other)
    await meter.calls()
    metrics = meter.route.metrics
    assert (metrics.calls, metrics.failures, metrics.whole.count) == (1, {}, 1)
    assert caplog.records == []


async def test_a_refusal_that_another_form_may_mend_leaves_the_breaker_half_open() -> None:
    async def model(request: LlmRequest) -> AsyncGenerator[ModelOutputDelta, None]:
        if meter.now == 0.0:
            raise ProviderUnavailable("down")
        raise ProviderRefused("wrong API", instead=RequestForm(specification="other"))
        yield TextPiece(text="never")

    meter = Meter(model)
    await meter.fails_until_paused()
    meter.now = OPEN_SECONDS
    with pytest.raises(ProviderRefused):
        await meter.calls()
    assert meter.route.breaker.state == "half_open"
    meter.route.breaker.admit()  # the next attempt is the probe


async def test_while_it_is_open_the_provider_is_not_even_asked() -> None:
    meter = Meter(failing(ProviderUnavailable("down")))
    await meter.fails_until_paused()
    with pytest.raises(ProviderPaused) as caught:
        await meter.calls()
    assert caught.value.retry_after == OPEN_SECONDS
    assert meter.route.metrics.calls == FAILURES_MAX
    assert meter.route.metrics.failures["paused"] == 1


async def test_a_cancelled_call_does_not_count_for_the_circuit_breaker() -> None:
    async def model(request: LlmRequest) -> AsyncGenerator[ModelOutputDelta, None]:
        if meter.now == 0.0:
            raise ProviderUnavailable("down")
        await anyio.sleep_forever()
        yield TextPiece(text="never")

    meter = Meter(model)
    await meter.fails_until_paused()
    meter.now = OPEN_SECONDS
    with anyio.move_on_after(0):
        await meter.calls()
    assert meter.route.breaker.state == "half_open"
    meter.route.breaker.admit()  # the next one finds out


class Gateway:
    """Two models behind one address; `x` fails."""

    def __init__(self, error: ProviderError) -> None:
        def model(request: LlmRequest) -> str:
            if request.invocation.model == "x":
                raise error
            return "fine"

        self.router = ProviderRouter([ScriptedProvider(model, provider_id="a", models=("x", "y"))])

    async def calls(self, name: str) -> None:
        route = self.router.route_of(name)
        invocation = route.invocation
        asked = LlmRequest(
            invocation=invocation, context=(ModelInputMessage(content="hello", seq=1),)
        )
        async with route.call_model(asked) as deltas:
            assert [delta async for delta in deltas]

    async def fails(self) -> None:
        for _ in range(FAILURES_MAX):
            with pytest.raises(ProviderError):
                await self.calls("a/x")


async def test_a_model_that_fails_is_paused_and_its_neighbour_is_not() -> None:
    gateway = Gateway(ProviderUnavailable("the model does not load (500)"))
    await gateway.fails()
    with pytest.raises(ProviderPaused, match=r"this model .*does not load") as caught:
        await gateway.calls("a/x")
    assert not caught.value.of_provider
    await gateway.calls("a/y")
    assert gateway.router.breakers["a"].state == "closed"


@pytest.mark.parametrize(
    "error",
    [
        ProviderUnavailable("can't be reached", of_provider=True),
        ProviderUnauthorized("no such key (401)", of_provider=True),
    ],
)
async def test_failures_that_all_models_share_open_the_breaker_of_the_provider(
    error: ProviderError,
) -> None:
    gateway = Gateway(error)
    await gateway.fails()
    with pytest.raises(ProviderPaused, match=r"the provider .*(reached|key)") as caught:
        await gateway.calls("a/y")
    assert caught.value.of_provider


async def test_an_answer_of_another_model_keeps_the_breaker_of_the_provider_closed() -> None:
    gateway = Gateway(ProviderUnavailable("can't be reached", of_provider=True))
    for _ in range(FAILURES_MAX + 1):
        with pytest.raises(ProviderUnavailable, match="can't be reached"):
            await gateway.calls("a/x")
        await gateway.calls("a/y")


@pytest.mark.parametrize("edge", BUCKET_SECONDS)
def test_an_edge_belongs_to_the_bucket_below_it(edge: float) -> None:
    durations = Durations()
    durations.add(edge)
    assert durations.as_json()["buckets"] == {f"{edge:g}": 1}


def test_what_took_longer_than_all_edges_is_counted_too() -> None:
    durations = Durations()
    durations.add(BUCKET_SECONDS[-1] + 1)
    assert durations.as_json()["buckets"] == {"more": 1}


async def test_who_asks_for_fewer_requests_is_in_good_health() -> None:
    async def model(request: LlmRequest) -> AsyncGenerator[ModelOutputDelta, None]:
        raise ProviderUnavailable("fewer, please (429)", reason="rate_limited")
        yield

    meter = Meter(model)
    for _ in range(FAILURES_MAX + 1):
        with pytest.raises(ProviderUnavailable):
            await meter.calls()
    assert meter.route.breaker.state == "closed"


async def test_a_bug_in_the_adapter_is_no_answer_of_the_provider() -> None:
    """It must not end a row of failures, nor close the breaker."""
    errors = [*[ProviderUnavailable("down")] * (FAILURES_MAX - 1), KeyError("a bug")]
    errors.append(ProviderUnavailable("down"))

    async def model(request: LlmRequest) -> AsyncGenerator[ModelOutputDelta, None]:
        raise errors.pop(0)
        yield Stopped(reason="end")

    meter = Meter(model)
    while errors:
        with suppress(ProviderError):
            await meter.calls()
    assert meter.route.breaker.state == "open"
    assert meter.route.metrics.failures == {"unavailable": FAILURES_MAX, "refused": 1}
