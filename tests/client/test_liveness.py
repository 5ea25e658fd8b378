"""A silent server is asked once, then given up; any byte is life."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nplt_client.liveness import Liveness


def test_a_silent_server_is_asked_and_then_given_up() -> None:
    liveness = Liveness(30, now=0)
    assert liveness.judge(29.9) == "wait"
    assert liveness.judge(30) == "ask"
    assert liveness.judge(59.9) == "wait"
    assert liveness.judge(60) == "lost"


def test_an_answer_begins_the_wait_anew() -> None:
    liveness = Liveness(30, now=0)
    assert liveness.judge(30) == "ask"
    liveness.heard(40)
    assert liveness.judge(69) == "wait"
    assert liveness.judge(70) == "ask"


@given(st.lists(st.floats(0.1, 29), min_size=1, max_size=50))
def test_a_server_that_is_heard_often_enough_is_never_asked(pauses: list[float]) -> None:
    liveness = Liveness(30, now=0)
    now = 0.0
    for pause in pauses:
        now += pause
        assert liveness.judge(now) == "wait"
        liveness.heard(now)


@given(st.lists(st.floats(0, 100), max_size=30), st.floats(1, 60))
def test_waiting_as_long_as_it_says_always_ends_in_a_verdict(
    heard: list[float], silence: float
) -> None:
    liveness = Liveness(silence, now=0)
    for when in heard:
        liveness.heard(when)
    now = max([0.0, *heard])
    verdicts = []
    for _ in range(2):
        now += liveness.seconds_left(now) + 0.001
        verdicts.append(liveness.judge(now))
    assert verdicts == ["ask", "lost"]
