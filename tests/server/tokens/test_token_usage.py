"""Billed, occupancy and estimate, each its own; and what it all cost, to the last digit."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nplt_protocol.json_text import JsonObject
from nplt_server.usage import ModelPrices, as_amount, billed_series, occupancy_of
from nplt_storage.rows import Billed

PRICES = {"openai/big": ModelPrices.of(1.25, 10, 0.125), "openai/small": ModelPrices.of(0.1, 0.4)}
tokens = st.integers(0, 2**53 - 1)
prices = st.decimals(0, 1000, places=4)


def as_json(billed: Billed) -> JsonObject:
    series, cost = billed_series(billed, (), PRICES)
    return {"billed": series} if cost is None else {"billed": series, "cost": cost}


def test_what_was_billed_is_summed_and_stands_by_model() -> None:
    billed = (("openai/big", 2, 1_000_000, 2_000, 400_000), ("openai/small", 1, 50, 5, 0))
    assert as_json(billed) == {
        "billed": {
            "input_tokens": 1_000_050,
            "output_tokens": 2_005,
            "cached_tokens": 400_000,
            "calls": 3,
            "total_tokens": 1_002_055,
            "models": [
                {
                    "model": "openai/big",
                    "calls": 2,
                    "input_tokens": 1_000_000,
                    "output_tokens": 2_000,
                    "cached_tokens": 400_000,
                    "cost": "0.82",
                },
                {
                    "model": "openai/small",
                    "calls": 1,
                    "input_tokens": 50,
                    "output_tokens": 5,
                    "cached_tokens": 0,
                    "cost": "0.000007",
                },
            ],
        },
        "cost": {"amount": "0.820007", "currency": "USD"},
    }


def test_a_model_without_a_price_makes_the_total_partial() -> None:
    account = as_json((("openai/small", 1, 10, 0, 0), ("offline/echo", 1, 10, 0, 0)))
    assert account["cost"] == {"amount": "0.000001", "currency": "USD", "partial": True}


@pytest.mark.parametrize("billed", [(), (("offline/echo", 1, 10, 5, 0),)])
def test_without_any_price_there_is_no_cost(billed: Billed) -> None:
    assert "cost" not in as_json(billed)


def test_occupancy_is_the_usage_that_the_provider_reported() -> None:
    usage = {"input_tokens": 700, "output_tokens": 50, "cached_tokens": 600}
    assert occupancy_of(usage, counted=640, context_tokens=1000) == {
        "tokens": 750,
        "context_tokens": 1000,
        "percent": 75.0,
        "source": "api",
    }


@pytest.mark.parametrize("usage", [None, {}, {"input_tokens": 700}, {"output_tokens": True}])
def test_occupancy_is_our_count_if_the_provider_reported_no_complete_usage(
    usage: dict[str, int] | None,
) -> None:
    assert occupancy_of(usage, counted=640, context_tokens=1000) == {
        "tokens": 640,
        "context_tokens": 1000,
        "percent": 64.0,
        "source": "counted",
    }


def test_occupancy_of_an_unknown_window_has_no_percentage() -> None:
    assert occupancy_of(None, counted=5, context_tokens=0) == {
        "tokens": 5,
        "source": "counted",
    }


@given(tokens, tokens, tokens, st.tuples(prices, prices, st.none() | prices))
def test_a_cost_is_exact(
    read: int, written: int, cached: int, each: tuple[Decimal, Decimal, Decimal | None]
) -> None:
    price_in, price_out, price_cached = each
    model = ModelPrices(price_in=price_in, price_out=price_out, price_cached=price_cached)
    from_cache = min(cached, read)
    exact = (
        (read - from_cache) * Fraction(price_in)
        + from_cache * Fraction(price_in if price_cached is None else price_cached)
        + written * Fraction(price_out)
    ) / 1_000_000
    cost = model.cost(input_tokens=read, output_tokens=written, cached_tokens=cached)
    assert Fraction(cost) == exact
    assert Fraction(as_amount(cost)) == exact


@pytest.mark.parametrize(
    ("cost", "amount"),
    [("0", "0"), ("100", "100"), ("1E+3", "1000"), ("0.10", "0.1"), ("1E-8", "0.00000001")],
)
def test_an_amount_has_no_exponent_and_no_idle_zeros(cost: str, amount: str) -> None:
    assert as_amount(Decimal(cost)) == amount
