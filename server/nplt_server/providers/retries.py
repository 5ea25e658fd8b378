"""Decides when a failed call is repeated: after a wait, or at once in another form.

A call is retried only if the provider was unreachable or busy, or broke off, and the call did
not time out. A retry time that the provider gives is obeyed; if it is longer than
`patience_seconds`, there is no retry. The policy decides; the caller knows whether any text was
shown, waits, and announces it.

A request that was refused in one form is repeated in another at once, without an event.
`call_quietly` is a whole call outside of any turn.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Final

import anyio
from msgspec import Struct
from msgspec.structs import replace

from nplt_server.errors import (
    AnswerCut,
    ProviderError,
    ProviderPaused,
    ProviderRefused,
    ProviderUnavailable,
)
from nplt_server.providers import LlmRequest
from nplt_server.providers.accumulator import ModelOutputAccumulator, cleaned
from nplt_server.providers.route import ModelRoute
from nplt_server.request_form import RequestForm


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


FORMS_MAX: Final = 3
"""The forms in which one request is tried, the usual one included."""


class RequestForms:
    """The forms in which one request was tried, from its first attempt to an answer or to an
    error that no other form avoids."""

    def __init__(self) -> None:
        self.form: RequestForm | None = None
        """The form of the next attempt; `None` for the provider's own choice."""
        self._first: ProviderRefused | None = None
        self._changes = 0

    def after(self, error: ProviderError) -> ProviderError | None:
        """`None` if the request is to be sent again at once, in `form`. Otherwise the error to
        recover from, after which all forms may be tried again: the first refusal, if the last
        one is no better."""
        if isinstance(error, ProviderRefused):
            is_about_form = error.wrong_api or error.wrong_reasoning
            if error.instead is not None and self._changes < FORMS_MAX - 1:
                self._changes += 1
                if self._first is None and is_about_form:
                    self._first = error
                self.form = error.instead
                return None
            if self._first is not None and is_about_form:
                error = self._first
        self.form, self._first, self._changes = None, None, 0
        return error


async def call_quietly(
    request: LlmRequest, output: ModelOutputAccumulator, *, route: ModelRoute, policy: RetryPolicy
) -> None:
    """Makes a call outside of any turn, over the same route and with the same retries, and
    without events. Returns when the output is complete; otherwise raises `ProviderError`."""
    forms, retries = RequestForms(), 0
    while True:
        try:
            attempt = replace(request, form=forms.form, is_retry=retries > 0)
            async with route.call_model(attempt) as deltas:
                async for delta in deltas:
                    output.apply(cleaned(delta))
            break
        except ProviderError as failure:
            error = forms.after(failure)
            if error is None:
                continue
            seconds = policy.wait_before_retry(error, retries=retries)
            if seconds is None or output.has_begun:
                raise error from None
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
