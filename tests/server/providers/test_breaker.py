"""Who failed again and again is left alone for a while, and then tried with one call."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nplt_server.errors import ProviderPaused
from nplt_server.providers.router import (
    FAILURES_MAX,
    OPEN_SECONDS,
    OPEN_SECONDS_MAX,
    Breaker,
    BreakerPermit,
)


class Stage:
    """With a clock that somebody turns."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.breaker = Breaker(patience_seconds=30.0, clock=lambda: self.now)

    def fails(self, times: int = 1, *, retry_after: float | None = None) -> None:
        for _ in range(times):
            self.breaker.admit().failed(retry_after=retry_after)

    def refuses(self) -> float:
        with pytest.raises(ProviderPaused) as caught:
            self.breaker.admit()
        assert caught.value.retry_after is not None
        return caught.value.retry_after


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_one_failure_less_than_five_changes_nothing(stage: Stage) -> None:
    stage.fails(FAILURES_MAX - 1)
    stage.breaker.admit()
    assert stage.breaker.state == "closed"


def test_five_in_a_row_open_it_for_half_a_minute(stage: Stage) -> None:
    stage.fails(FAILURES_MAX)
    assert stage.breaker.state == "open"
    stage.now += 10.0
    assert stage.refuses() == OPEN_SECONDS - 10.0


def test_an_answer_in_between_begins_the_count_anew(stage: Stage) -> None:
    stage.fails(FAILURES_MAX - 1)
    stage.breaker.admit().succeeded()
    stage.fails(FAILURES_MAX - 1)
    assert stage.breaker.state == "closed"


def test_then_one_call_is_let_through_and_no_other(stage: Stage) -> None:
    stage.fails(FAILURES_MAX)
    stage.now += OPEN_SECONDS
    probe = stage.breaker.admit()
    assert stage.refuses() > 0
    probe.succeeded()
    stage.breaker.admit()
    assert stage.breaker.state == "closed"


def test_if_that_fails_too_it_stays_open_twice_as_long_up_to_five_minutes(stage: Stage) -> None:
    stage.fails(FAILURES_MAX)
    expected = OPEN_SECONDS
    for _ in range(6):
        assert stage.refuses() == expected
        stage.now += expected
        stage.fails()
        expected = min(expected * 2, OPEN_SECONDS_MAX)
    assert expected == OPEN_SECONDS_MAX


def test_once_that_is_being_answered_others_are_let_through_too(stage: Stage) -> None:
    stage.fails(FAILURES_MAX)
    stage.now += OPEN_SECONDS
    stage.breaker.admit().began()
    stage.breaker.admit()


def test_but_if_its_answer_breaks_off_it_is_open_again(stage: Stage) -> None:
    stage.fails(FAILURES_MAX)
    stage.now += OPEN_SECONDS
    probe = stage.breaker.admit()
    probe.began()
    probe.failed()
    assert stage.refuses() == OPEN_SECONDS


def test_who_goes_away_before_it_is_known_lets_the_next_one_try(stage: Stage) -> None:
    stage.fails(FAILURES_MAX)
    stage.now += OPEN_SECONDS
    stage.breaker.admit().given_up()
    stage.breaker.admit()


def test_a_call_from_before_it_opened_does_not_speak_for_the_one_that_finds_out(
    stage: Stage,
) -> None:
    given_up, broken = stage.breaker.admit(), stage.breaker.admit()
    stage.fails(FAILURES_MAX)
    stage.now += OPEN_SECONDS
    probe = stage.breaker.admit()
    given_up.given_up()
    assert stage.refuses() > 0
    broken.failed()
    assert stage.breaker.state == "half_open"
    assert stage.refuses() > 0
    probe.failed()
    assert stage.refuses() == 2 * OPEN_SECONDS


def test_but_if_it_is_answered_after_all_the_provider_is_well(stage: Stage) -> None:
    early = stage.breaker.admit()
    stage.fails(FAILURES_MAX)
    early.began()
    assert stage.breaker.state == "closed"


def test_who_says_when_it_is_back_is_alive(stage: Stage) -> None:
    stage.fails(3 * FAILURES_MAX, retry_after=2.0)
    assert stage.breaker.state == "closed"


def test_but_for_longer_than_anybody_waits_it_is_not_asked(stage: Stage) -> None:
    stage.fails(retry_after=60.0)
    assert stage.refuses() == 60.0
    stage.now += 60.0
    stage.breaker.admit()


def test_however_long_it_asks_for_it_is_tried_after_five_minutes(stage: Stage) -> None:
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
def test_whatever_happens_somebody_is_let_through_again_in_time(
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
            under_way[which % len(under_way)].began()
        elif under_way:
            call = under_way.pop(which % len(under_way))
            {"answer": call.succeeded, "fail": call.failed, "leave": call.given_up}[event]()
    for call in under_way:  # whoever was let through is gone by then
        call.given_up()
    stage.now += OPEN_SECONDS_MAX
    stage.breaker.admit()
