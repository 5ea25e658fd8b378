"""Who failed again and again is left alone for a while, and then tried with one call."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nplt_server.errors import ProviderPaused
from nplt_server.providers.breaker import (
    FAILURES_MAX,
    OPEN_SECONDS,
    OPEN_SECONDS_MAX,
    Admission,
    Breaker,
)


class Fuse:
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
def fuse() -> Fuse:
    return Fuse()


def test_one_failure_less_than_five_changes_nothing(fuse: Fuse) -> None:
    fuse.fails(FAILURES_MAX - 1)
    fuse.breaker.admit()
    assert fuse.breaker.state == "closed"


def test_five_in_a_row_open_it_for_half_a_minute(fuse: Fuse) -> None:
    fuse.fails(FAILURES_MAX)
    assert fuse.breaker.state == "open"
    fuse.now += 10.0
    assert fuse.refuses() == OPEN_SECONDS - 10.0


def test_an_answer_in_between_begins_the_count_anew(fuse: Fuse) -> None:
    fuse.fails(FAILURES_MAX - 1)
    fuse.breaker.admit().succeeded()
    fuse.fails(FAILURES_MAX - 1)
    assert fuse.breaker.state == "closed"


def test_then_one_call_is_let_through_and_no_other(fuse: Fuse) -> None:
    fuse.fails(FAILURES_MAX)
    fuse.now += OPEN_SECONDS
    probe = fuse.breaker.admit()
    assert fuse.refuses() > 0
    probe.succeeded()
    fuse.breaker.admit()
    assert fuse.breaker.state == "closed"


def test_if_that_fails_too_it_stays_open_twice_as_long_up_to_five_minutes(fuse: Fuse) -> None:
    fuse.fails(FAILURES_MAX)
    expected = OPEN_SECONDS
    for _ in range(6):
        assert fuse.refuses() == expected
        fuse.now += expected
        fuse.fails()
        expected = min(expected * 2, OPEN_SECONDS_MAX)
    assert expected == OPEN_SECONDS_MAX


def test_once_that_is_being_answered_others_are_let_through_too(fuse: Fuse) -> None:
    fuse.fails(FAILURES_MAX)
    fuse.now += OPEN_SECONDS
    fuse.breaker.admit().spoke()
    fuse.breaker.admit()


def test_but_if_its_answer_breaks_off_it_is_open_again(fuse: Fuse) -> None:
    fuse.fails(FAILURES_MAX)
    fuse.now += OPEN_SECONDS
    probe = fuse.breaker.admit()
    probe.spoke()
    probe.failed()
    assert fuse.refuses() == OPEN_SECONDS


def test_who_goes_away_before_it_is_known_lets_the_next_one_try(fuse: Fuse) -> None:
    fuse.fails(FAILURES_MAX)
    fuse.now += OPEN_SECONDS
    fuse.breaker.admit().given_up()
    fuse.breaker.admit()


def test_a_call_from_before_it_opened_does_not_speak_for_the_one_that_finds_out(
    fuse: Fuse,
) -> None:
    given_up, broken = fuse.breaker.admit(), fuse.breaker.admit()
    fuse.fails(FAILURES_MAX)
    fuse.now += OPEN_SECONDS
    probe = fuse.breaker.admit()
    given_up.given_up()
    assert fuse.refuses() > 0
    broken.failed()
    assert fuse.breaker.state == "half_open"
    assert fuse.refuses() > 0
    probe.failed()
    assert fuse.refuses() == 2 * OPEN_SECONDS


def test_but_if_it_is_answered_after_all_the_provider_is_well(fuse: Fuse) -> None:
    early = fuse.breaker.admit()
    fuse.fails(FAILURES_MAX)
    early.spoke()
    assert fuse.breaker.state == "closed"


def test_who_says_when_it_is_back_is_alive(fuse: Fuse) -> None:
    fuse.fails(3 * FAILURES_MAX, retry_after=2.0)
    assert fuse.breaker.state == "closed"


def test_but_for_longer_than_anybody_waits_it_is_not_asked(fuse: Fuse) -> None:
    fuse.fails(retry_after=60.0)
    assert fuse.refuses() == 60.0
    fuse.now += 60.0
    fuse.breaker.admit()


def test_however_long_it_asks_for_it_is_tried_after_five_minutes(fuse: Fuse) -> None:
    fuse.fails(retry_after=3_600.0)
    assert fuse.refuses() == OPEN_SECONDS_MAX


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
    fuse = Fuse()
    under_way: list[Admission] = []
    for event, which in events:
        if event == "call":
            with suppress(ProviderPaused):
                under_way.append(fuse.breaker.admit())
            assert fuse.breaker.seconds_left <= OPEN_SECONDS_MAX
        elif event == "later":
            fuse.now += 7.0
        elif under_way and event == "speak":
            under_way[which % len(under_way)].spoke()
        elif under_way:
            call = under_way.pop(which % len(under_way))
            {"answer": call.succeeded, "fail": call.failed, "leave": call.given_up}[event]()
    for call in under_way:  # whoever was let through is gone by then
        call.given_up()
    fuse.now += OPEN_SECONDS_MAX
    fuse.breaker.admit()
