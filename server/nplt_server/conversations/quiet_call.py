"""A call of a model outside of any turn: nobody listens while it answers.

It goes over the same line as a turn's calls, and is asked again by the same rules;
only that nobody is told. Whoever asks looks at the output for what came of it.
"""

from __future__ import annotations

from nplt_server.accumulator import ModelOutputAccumulator, cleaned
from nplt_server.errors import AnswerCut, ProviderError, ProviderRefused
from nplt_server.providers.base import ModelRequest
from nplt_server.providers.line import ProviderLine
from nplt_server.providers.retrying import RetryPolicy


async def call_quietly(
    request: ModelRequest, output: ModelOutputAccumulator, *, line: ProviderLine, rules: RetryPolicy
) -> None:
    """The output is whole when it returns; else a `ProviderError` is raised."""
    retries = 0
    while True:
        try:
            async with line.call_model(request) as deltas:
                async for delta in deltas:
                    output.apply(cleaned(delta))
            break
        except ProviderError as error:
            seconds = rules.wait_before_retry(error, retries=retries)
            if seconds is None or output.has_begun:
                raise
        retries += 1
        line.metrics.retries += 1
        await rules.sleep(seconds)
    if output.stop_reason is None:
        raise AnswerCut
    if output.stop_reason != "end":
        # Half a sentence, or why there is none: nobody is there to take it as that.
        raise ProviderRefused(f"the model did not say all of it ({output.stop_reason})")
