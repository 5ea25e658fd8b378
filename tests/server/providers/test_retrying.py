"""The same is asked again only where that may help, not too soon, and not for ever."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nplt_server.errors import (
    AnswerCut,
    ProviderError,
    ProviderPaused,
    ProviderRefused,
    ProviderUnauthorized,
    ProviderUnavailable,
    RequestTooLarge,
)
from nplt_server.providers.retries import RetryPolicy

chance = st.floats(min_value=0, max_value=1, exclude_max=True)


@pytest.mark.parametrize(
    "error",
    [
        ProviderUnavailable("too slow", timed_out=True),
        ProviderUnavailable("come back tomorrow", retry_after=31.0),
        ProviderPaused(retry_after=1.0),
        ProviderUnauthorized("no"),
        ProviderRefused("no"),
        RequestTooLarge("no"),
    ],
    ids=lambda error: f"{type(error).__name__}: {error}",
)
def test_errors_that_a_retry_can_not_mend_are_not_retried(error: ProviderError) -> None:
    assert RetryPolicy().wait_before_retry(error, retries=0) is None


@pytest.mark.parametrize(
    "error", [AnswerCut(), ProviderUnavailable("broke off", before_first_token=False)]
)
def test_a_broken_stream_is_retried_if_no_delta_was_sent(
    error: ProviderError,
) -> None:
    assert RetryPolicy().wait_before_retry(error, retries=0) is not None


def test_it_is_asked_again_twice_and_no_more() -> None:
    error = ProviderUnavailable("nobody home")
    waits = [RetryPolicy().wait_before_retry(error, retries=retries) for retries in range(4)]
    assert [wait is not None for wait in waits] == [True, True, False, False]


@given(retries=st.integers(min_value=0, max_value=20), chance=chance)
def test_waits_grow_and_stay_between_half_a_second_and_four(retries: int, chance: float) -> None:
    policy = RetryPolicy(retries_max=100, random=lambda: chance)
    error = ProviderUnavailable("nobody home")
    wait = policy.wait_before_retry(error, retries=retries)
    longer = policy.wait_before_retry(error, retries=retries + 1)
    assert wait is not None
    assert longer is not None
    assert 0.5 <= wait <= longer <= 4.0


@given(seconds=st.floats(min_value=0, max_value=30), chance=chance)
def test_who_asks_to_be_left_alone_is_left_alone_as_long(seconds: float, chance: float) -> None:
    policy = RetryPolicy(random=lambda: chance)
    error = ProviderUnavailable("busy", retry_after=seconds)
    wait = policy.wait_before_retry(error, retries=1)
    assert wait is not None
    assert seconds <= wait <= seconds + 0.5
