"""Makes a model call outside of any turn."""

from __future__ import annotations

from nplt_server.errors import AnswerCut, ProviderError, ProviderRefused
from nplt_server.providers import ModelRequest
from nplt_server.providers.accumulator import ModelOutputAccumulator, cleaned
from nplt_server.providers.router import ModelRoute, RetryPolicy


async def call_quietly(
    request: ModelRequest, output: ModelOutputAccumulator, *, route: ModelRoute, policy: RetryPolicy
) -> None:
    """Makes a call outside of any turn, over the same route and with the same retries, and
    without events. Returns when the output is complete; otherwise raises `ProviderError`."""
    retries = 0
    while True:
        try:
            async with route.call_model(request) as deltas:
                async for delta in deltas:
                    output.apply(cleaned(delta))
            break
        except ProviderError as error:
            seconds = policy.wait_before_retry(error, retries=retries)
            if seconds is None or output.has_begun:
                raise
        retries += 1
        route.metrics.retries += 1
        await policy.sleep(seconds)
    if output.stop_reason is None:
        raise AnswerCut
    if output.stop_reason != "end":
        # A cut or refused answer is useless as a summary or a name.
        raise ProviderRefused(
            f"the model stopped before its answer was complete ({output.stop_reason})"
        )
