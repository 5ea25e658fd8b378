"""The time of Redis, counted on by a clock that nobody sets."""

from __future__ import annotations

from datetime import UTC, datetime

from nplt_storage.redis.clock import Reading, RedisClock


def reading(seconds: float, asked_at: float, took: float = 0.0) -> Reading:
    return Reading(seconds=seconds, asked_at=asked_at, answered_at=asked_at + took)


class Elapsed:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def shown(clock: RedisClock) -> float:
    return (clock() - datetime.fromtimestamp(0, UTC)).total_seconds()


def test_the_time_goes_on_from_the_middle_of_a_reading() -> None:
    elapsed = Elapsed()
    clock = RedisClock(reading(1_000.0, 0.0, took=2.0), elapsed=elapsed)
    elapsed.seconds = 11.0
    assert shown(clock) == 1_010.0


def test_a_reply_that_took_long_does_not_replace_a_better_reading() -> None:
    elapsed = Elapsed()
    clock = RedisClock(reading(1_000.0, 0.0), elapsed=elapsed)
    elapsed.seconds = 10.0
    clock.learn(reading(1_010.9, 9.0, took=2.0))
    assert shown(clock) == 1_010.0


def test_a_reading_that_differs_by_more_than_can_be_chance_is_believed() -> None:
    """The clock of Redis was set, or a replica on another machine has taken its place."""
    elapsed = Elapsed()
    clock = RedisClock(reading(1_000.0, 0.0), elapsed=elapsed)
    elapsed.seconds = 10.0
    clock.learn(reading(4_610.0, 9.0, took=2.0))
    assert shown(clock) == 4_610.0


def test_an_old_reading_gives_way_to_one_that_took_a_little_longer() -> None:
    elapsed = Elapsed()
    clock = RedisClock(reading(1_000.0, 0.0), elapsed=elapsed)
    elapsed.seconds = 1_000.0
    clock.learn(reading(2_000.5, 999.9, took=0.2))
    assert shown(clock) == 2_000.5
