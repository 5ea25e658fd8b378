"""Counting tokens: the estimate against o200k, the exact count, and texts of any size."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.server.tokens.corpus import o200k_counts, texts

from nplt_server.tokens import (
    WHOLE_CHARACTERS_MAX,
    CharacterCounter,
    FunctionCounter,
    TokenCounter,
    TokenCounting,
    best_counter,
    counted_in_samples,
    load_o200k,
)

TEXTS = texts()
COUNTS = o200k_counts()
ESTIMATE = CharacterCounter()

any_text = st.text(st.characters(exclude_categories=()))
"""Lone surrogates too: a counter is no place to fail."""


def raising(text: str) -> int:
    raise ValueError(text)


@pytest.mark.parametrize("result", [None, "many", 2.5, float("nan")])
async def test_a_counter_that_gives_no_whole_number_is_replaced_by_the_estimate(
    result: object,
) -> None:
    counting = TokenCounting(FunctionCounter("odd", lambda _: result))  # type: ignore[arg-type, return-value]
    assert (await counting.counter()).count("four words of text") == ESTIMATE.count(
        "four words of text"
    )


async def test_a_counter_that_raises_is_replaced_by_the_estimate_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    counter = await TokenCounting(FunctionCounter("own", raising)).counter()
    assert counter.name == "own"
    assert [counter.count("some text"), counter.count("more")] == [
        ESTIMATE.count("some text"),
        ESTIMATE.count("more"),
    ]
    assert counter.name == "own, characters", "figures name both"
    assert [record.levelname for record in caplog.records] == ["ERROR"]


async def test_without_any_counter_a_token_is_two_and_a_half_characters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(CharacterCounter, "count", lambda _, text: raising(text))
    counter = await TokenCounting(FunctionCounter("own", raising)).counter()
    assert [counter.count("x" * size) for size in (0, 1, 5, 10)] == [0, 1, 2, 4]


@pytest.fixture(scope="module")
def o200k() -> FunctionCounter:
    counter = load_o200k()
    if counter is None:
        pytest.skip("needs the extra `tokens`")
    return counter


def test_every_text_of_the_corpus_has_its_count() -> None:
    assert TEXTS.keys() == COUNTS.keys()
    assert len(TEXTS) >= 25


def test_the_counts_of_the_corpus_are_true(o200k: FunctionCounter) -> None:
    assert {name: o200k.count(text) for name, text in TEXTS.items()} == COUNTS


@pytest.mark.parametrize("name", TEXTS)
def test_the_estimate_is_near_o200k_for(name: str) -> None:
    assert 0.95 <= ESTIMATE.count(TEXTS[name]) / COUNTS[name] <= 1.25


def test_the_estimate_is_near_o200k_for_all_of_them_together() -> None:
    estimated = ESTIMATE.count("\n".join(TEXTS.values()))
    assert 1.0 <= estimated / sum(COUNTS.values()) <= 1.15


@given(any_text)
def test_only_the_empty_text_is_estimated_at_nothing(text: str) -> None:
    assert (ESTIMATE.count(text) == 0) == (text == "")


@given(any_text, any_text)
def test_a_longer_text_is_never_estimated_at_much_less(text: str, more: str) -> None:
    # Where two texts meet, one word may come of two, or one number.
    assert ESTIMATE.count(text + more) >= ESTIMATE.count(text) - 3


@pytest.mark.parametrize("text", ["ᚠᚢᚦᚨᚱᚲ", "ᏣᎳᎩ", "\ue000\ue001\ue002"])
def test_writing_unknown_to_the_table_costs_at_least_two_tokens_for_five_characters(
    text: str,
) -> None:
    assert ESTIMATE.count(text) >= len(text) / 2.5


@given(st.text(min_size=0, max_size=50), st.integers(0, 3))
def test_up_to_the_limit_a_text_is_counted_as_it_is(text: str, beyond: int) -> None:
    asked: list[int] = []
    whole = (text or "x") * (WHOLE_CHARACTERS_MAX // max(len(text), 1) + 1)

    def count(piece: str) -> int:
        asked.append(len(piece))
        return len(piece)

    length = WHOLE_CHARACTERS_MAX + beyond
    assert counted_in_samples(whole[:length], count) == len(whole[:length])
    assert (len(asked) == 1) == (len(whole[:length]) <= WHOLE_CHARACTERS_MAX)
    assert sum(asked) == min(len(whole[:length]), WHOLE_CHARACTERS_MAX)


def test_of_a_huge_text_no_more_is_looked_at_than_of_a_large_one() -> None:
    looked_at = 0

    def count(piece: str) -> int:
        nonlocal looked_at
        looked_at += len(piece)
        return piece.count("x")

    huge = "x" * 1_000_000 + "y" * 3_000_000
    assert counted_in_samples(huge, count) == pytest.approx(1_000_000, rel=0.02)
    assert looked_at == WHOLE_CHARACTERS_MAX


@pytest.mark.parametrize("name", ["english", "chinese", "python_source", "hex_digests"])
def test_a_sampled_count_is_near_the_count_of_the_whole(name: str) -> None:
    repeated = 1 + 3 * WHOLE_CHARACTERS_MAX // len(TEXTS[name])
    sampled = ESTIMATE.count(TEXTS[name] * repeated)
    assert sampled == pytest.approx(ESTIMATE.count(TEXTS[name]) * repeated, rel=0.02)


def test_special_tokens_are_plain_text(o200k: FunctionCounter) -> None:
    assert o200k.count("<|endoftext|>") == 7
    assert ESTIMATE.count("<|endoftext|>") > 1


@given(any_text)
def test_the_exact_counter_counts_any_text(o200k: FunctionCounter, text: str) -> None:
    assert 0 <= o200k.count(text) <= len(text.encode("utf-8", "surrogatepass"))


def test_the_best_counter_is_the_exact_one_where_it_is_installed() -> None:
    best: TokenCounter = best_counter()
    assert best.name == ("characters" if load_o200k() is None else "o200k")


def test_without_its_package_there_is_no_exact_counter(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr("nplt_server.tokens.import_module", missing)
    assert best_counter().name == "characters"
