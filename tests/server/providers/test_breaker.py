"""The circuit breaker: opens after failures in a row, then lets one probe through."""

from __future__ import annotations

from contextlib import suppress

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nplt_server.errors import ProviderPaused
from nplt_server.providers.breaker import (
    FAILURES_MAX,
    OPEN_SECONDS,
    OPEN_SECONDS_MAX,
    Breaker,
    BreakerPermit,
)


class Stage:
    """A breaker with a clock that the test sets."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.breaker = Breaker(patience_seconds=30.0, clock=lambda: self.now)

    def fails(self, times: int = 1, *, retry_after: float | None = None) -> None:
        for _ in range(times):
            self.breaker.failed(self.breaker.admit(), retry_after=retry_after)

    def refuses(self) -> float:
        with pytest.raises(ProviderPaused) as caught:
            self.breaker.admit()
        assert caught.value.retry_after is not None
        return caught.value.retry_after


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_fewer_than_five_failures_leave_the_breaker_closed(stage: Stage) -> None:
    stage.fails(FAILURES_MAX - 1)
    stage.breaker.admit()
    assert stage.breaker.state == "closed"


def test_five_failures_in_a_row_open_the_breaker_for_30_seconds(stage: Stage) -> None:
    stage.fails(FAILURES_MAX)
    assert stage.breaker.state == "open"
    stage.now += 10.0
    assert stage.refuses() == OPEN_SECONDS - 10.0


def test_retries_of_a_failed_prompt_are_not_counted(stage: Stage) -> None:
    for _ in range(FAILURES_MAX - 1):
        for is_retry in (False, True, True):
            stage.breaker.failed(stage.breaker.admit(), is_retry=is_retry)
    stage.breaker.admit()
    stage.fails()
    assert stage.breaker.state == "open"


async def test_an_open_breaker_looks_four_times_a_second_and_closes_when_the_provider_is_back(
    stage: Stage,
) -> None:
    looks: list[float] = []
    is_back = False

    async def look() -> bool:
        looks.append(stage.now)
        await anyio.lowlevel.checkpoint()
        return is_back

    stage.fails(FAILURES_MAX)
    async with anyio.create_task_group() as callers:
        for _ in range(3):
            callers.start_soon(stage.breaker.check_again, look)
    stage.now += 0.2
    await stage.breaker.check_again(look)
    assert len(looks) == 1
    stage.now += 0.1
    is_back = True
    await stage.breaker.check_again(look)
    assert stage.breaker.state == "closed"
    stage.now += 1.0
    await stage.breaker.check_again(look)
    assert len(looks) == 2, "there is nothing to look for"


def test_a_pause_keeps_the_reason_of_the_last_failure(stage: Stage) -> None:
    stage.breaker.failed(stage.breaker.admit(), retry_after=90.0, reason="rate_limited")
    with pytest.raises(ProviderPaused) as caught:
        stage.breaker.admit()
    assert caught.value.reason == "rate_limited"


def test_a_success_resets_the_count_of_failures(stage: Stage) -> None:
    stage.fails(FAILURES_MAX - 1)
    stage.breaker.succeeded()
    stage.fails(FAILURES_MAX - 1)
    assert stage.breaker.state == "closed"


def test_half_open_breaker_admits_one_probe_and_no_other_call(stage: Stage) -> None:
    stage.fails(FAILURES_MAX)
    stage.now += OPEN_SECONDS
    stage.breaker.admit()
    assert stage.refuses() > 0
    stage.breaker.succeeded()
    stage.breaker.admit()
    assert stage.breaker.state == "closed"


def test_each_failed_probe_doubles_the_open_time_up_to_300_seconds(stage: Stage) -> None:
    stage.fails(FAILURES_MAX)
    expected = OPEN_SECONDS
    for _ in range(6):
        assert stage.refuses() == expected
        stage.now += expected
        stage.fails()
        expected = min(expected * 2, OPEN_SECONDS_MAX)
    assert expected == OPEN_SECONDS_MAX


def test_other_calls_are_admitted_once_the_probe_is_being_answered(stage: Stage) -> None:
    stage.fails(FAILURES_MAX)
    stage.now += OPEN_SECONDS
    stage.breaker.admit()
    stage.breaker.began()
    stage.breaker.admit()


def test_a_probe_whose_answer_breaks_off_opens_the_breaker_again(stage: Stage) -> None:
    stage.fails(FAILURES_MAX)
    stage.now += OPEN_SECONDS
    probe = stage.breaker.admit()
    stage.breaker.began()
    stage.breaker.failed(probe)
    assert stage.refuses() == OPEN_SECONDS


def test_a_probe_that_is_given_up_lets_the_next_call_be_the_probe(stage: Stage) -> None:
    stage.fails(FAILURES_MAX)
    stage.now += OPEN_SECONDS
    stage.breaker.abandoned(stage.breaker.admit())
    stage.breaker.admit()


def test_a_call_admitted_before_the_breaker_opened_does_not_end_the_probe(
    stage: Stage,
) -> None:
    given_up, broken = stage.breaker.admit(), stage.breaker.admit()
    stage.fails(FAILURES_MAX)
    stage.now += OPEN_SECONDS
    probe = stage.breaker.admit()
    stage.breaker.abandoned(given_up)
    assert stage.refuses() > 0
    stage.breaker.failed(broken)
    assert stage.breaker.state == "half_open"
    assert stage.refuses() > 0
    stage.breaker.failed(probe)
    assert stage.refuses() == 2 * OPEN_SECONDS


def test_a_call_admitted_before_the_breaker_opened_closes_it_when_it_is_answered(
    stage: Stage,
) -> None:
    stage.breaker.admit()
    stage.fails(FAILURES_MAX)
    stage.breaker.began()
    assert stage.breaker.state == "closed"


def test_failures_with_a_short_retry_after_do_not_count(stage: Stage) -> None:
    stage.fails(3 * FAILURES_MAX, retry_after=2.0)
    assert stage.breaker.state == "closed"


def test_a_retry_after_beyond_patience_opens_the_breaker_until_then(stage: Stage) -> None:
    stage.fails(retry_after=60.0)
    assert stage.refuses() == 60.0
    stage.now += 60.0
    stage.breaker.admit()


def test_a_retry_after_opens_the_breaker_for_at_most_300_seconds(stage: Stage) -> None:
    stage.fails(retry_after=3_600.0)
    assert stage.refuses() == OPEN_SECONDS_MAX


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["call", "speak", "answer", "fail", "leave", "later"]),
            st.integers(0, 7),
        ),
        max_size=60,
    )
)
def test_after_any_events_a_call_is_admitted_within_300_seconds(
    events: list[tuple[str, int]],
) -> None:
    stage = Stage()
    under_way: list[BreakerPermit] = []
    for event, which in events:
        if event == "call":
            with suppress(ProviderPaused):
                under_way.append(stage.breaker.admit())
            assert stage.breaker.seconds_left <= OPEN_SECONDS_MAX
        elif event == "later":
            stage.now += 7.0
        elif under_way and event == "speak":
            stage.breaker.began()
        elif under_way:
            permit = under_way.pop(which % len(under_way))
            match event:
                case "answer":
                    stage.breaker.succeeded()
                case "fail":
                    stage.breaker.failed(permit)
                case _:
                    stage.breaker.abandoned(permit)
    for permit in under_way:  # no call lasts that long
        stage.breaker.abandoned(permit)
    stage.now += OPEN_SECONDS_MAX
    stage.breaker.admit()
