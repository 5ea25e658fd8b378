"""The ratio of what was charged to what we counted, and budgets by it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nplt_server.tokens import COUNTED_MIN, MODELS_MAX, Correction

MODEL = "openai/gpt-5.2"
counts = st.integers(0, 2**40)
observations = st.lists(st.tuples(counts, counts), max_size=4)


def after(seen: list[tuple[int, int]]) -> Correction:
    correction = Correction()
    for counted, real in seen:
        correction = correction.observe(MODEL, counted, real)
    return correction


def test_a_token_count_is_not_corrected_before_the_first_call() -> None:
    assert Correction().corrected(MODEL, 1234) == 1234
    assert Correction().budget_in_counted(MODEL, 1234) == 1234


def test_the_first_call_sets_the_token_correction_ratio() -> None:
    assert after([(1000, 1200)]).corrected(MODEL, 500) == 600


def test_later_calls_move_the_token_correction_ratio_halfway() -> None:
    assert after([(1000, 1200), (1000, 1000)]).corrected(MODEL, 1000) == 1100


def test_what_is_seen_again_and_again_is_believed() -> None:
    assert after([(1000, 800)] + [(1000, 1333)] * 12).corrected(MODEL, 1000) == 1333


def test_other_models_are_not_touched() -> None:
    assert after([(1000, 1500)]).corrected("anthropic/other", 1000) == 1000


@pytest.mark.parametrize(("counted", "real"), [(COUNTED_MIN - 1, 5000), (0, 10), (5000, 0)])
def test_tiny_counts_say_nothing(counted: int, real: int) -> None:
    assert after([(counted, real)]) == Correction()


@pytest.mark.parametrize(("real", "corrected"), [(10, 500), (10**9, 2000)])
def test_a_ratio_stays_between_a_half_and_two(real: int, corrected: int) -> None:
    assert after([(1000, real)]).corrected(MODEL, 1000) == corrected


@given(observations, counts)
def test_what_fits_the_converted_budget_fits_the_budget(
    seen: list[tuple[int, int]], budget: int
) -> None:
    correction = after(seen)
    fitting = correction.budget_in_counted(MODEL, budget)
    assert correction.corrected(MODEL, fitting) <= budget
    assert correction.corrected(MODEL, fitting + 1) > budget - 1


def test_the_models_seen_longest_ago_are_forgotten_when_there_are_too_many() -> None:
    correction = after([(1000, 1500)])
    for number in range(MODELS_MAX - 1):
        correction = correction.observe(f"m/{number}", 1000, 1100)
    assert MODEL in correction.ratios
    correction = correction.observe("m/one more", 1000, 1100)
    assert MODEL not in correction.ratios
    assert len(correction.ratios) == MODELS_MAX
