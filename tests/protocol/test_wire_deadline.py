"""A deadline is moved by an assignment and makes one timer at most."""

from __future__ import annotations

from tests.protocol.fake_clock import FakeLoop

from nplt_protocol.deadline import Deadline


def a_deadline() -> tuple[FakeLoop, Deadline, list[float]]:
    loop, missed = FakeLoop(), list[float]()
    deadline = Deadline(loop.as_loop, 10.0, lambda: missed.append(loop.now))
    return loop, deadline, missed


def test_a_deadline_that_was_never_started_has_no_timer() -> None:
    loop, deadline, missed = a_deadline()
    loop.move_to(1_000)
    assert (loop.timers_made, missed, deadline.is_running) == (0, [], False)


def test_a_deadline_is_missed_once_after_its_seconds() -> None:
    loop, deadline, missed = a_deadline()
    deadline.restart()
    loop.move_to(109.9)
    assert missed == []
    loop.move_to(200)
    assert missed == [110.0]
    assert not deadline.is_running


def test_a_restarted_deadline_counts_from_its_last_restart() -> None:
    loop, deadline, missed = a_deadline()
    deadline.restart()
    loop.move_to(107)
    deadline.restart()
    loop.move_to(116.9)
    assert missed == []
    loop.move_to(200)
    assert missed == [117.0]


def test_a_thousand_restarts_make_one_timer() -> None:
    loop, deadline, _ = a_deadline()
    for _ in range(1_000):
        deadline.restart()
    assert loop.timers_made == 1


def test_a_paused_deadline_is_not_missed_and_leaves_no_timer_behind() -> None:
    loop, deadline, missed = a_deadline()
    deadline.restart()
    deadline.pause()
    loop.move_to(1_000)
    assert (missed, loop.timers) == ([], [])


def test_a_cancelled_deadline_takes_its_timer_back() -> None:
    loop, deadline, missed = a_deadline()
    deadline.restart()
    deadline.cancel()
    assert loop.timers[0].cancelled
    loop.move_to(1_000)
    assert missed == []
