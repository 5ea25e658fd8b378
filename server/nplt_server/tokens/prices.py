"""What calls cost, where the settings say what a model's tokens cost."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Final, Self

_MILLION: Final = Decimal(1_000_000)
_EXACT: Final = Context(prec=80)
"""Counts have up to 16 digits and prices a few: nothing is ever rounded away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPrices:
    """In US dollars for a million tokens."""

    price_in: Decimal
    price_out: Decimal
    price_cached: Decimal | None = None
    """Of input that came from the provider's cache; None: the price of any input."""

    @classmethod
    def of(cls, price_in: float, price_out: float, price_cached: float | None = None) -> Self:
        """From numbers as the settings have them: 0.1 is meant to be a tenth."""
        return cls(
            price_in=Decimal(str(price_in)),
            price_out=Decimal(str(price_out)),
            price_cached=None if price_cached is None else Decimal(str(price_cached)),
        )

    def cost(self, *, input_tokens: int, output_tokens: int, cached_tokens: int = 0) -> Decimal:
        """The cached tokens are a part of the input, never more than it."""
        cached = min(cached_tokens, input_tokens)
        price_cached = self.price_in if self.price_cached is None else self.price_cached
        charged = (
            (input_tokens - cached, self.price_in),
            (cached, price_cached),
            (output_tokens, self.price_out),
        )
        millions = Decimal(0)
        for tokens, price in charged:
            millions = _EXACT.add(millions, _EXACT.multiply(Decimal(tokens), price))
        return _EXACT.divide(millions, _MILLION)


def total(costs: list[Decimal]) -> Decimal:
    amount = Decimal(0)
    for cost in costs:
        amount = _EXACT.add(amount, cost)
    return amount


def as_amount(cost: Decimal) -> str:
    """`0.0425`: every digit, no exponent; text, because a float is not money."""
    amount = format(cost, "f")
    return amount.rstrip("0").rstrip(".") if "." in amount else amount
