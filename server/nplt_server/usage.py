"""Adds up token usage and cost.

Three series of figures are easily confused, and are kept apart here:

    billed      what providers charged for, summed over all calls
    occupancy   how much of the model's window the last call took
    estimate    our own count of the context that would be sent next

A context that is sent ten times is billed ten times and occupies the window once, so a window's
limit is never compared with billed tokens. Costs are computed only for models whose prices are
known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from decimal import Context, Decimal
from typing import Final, Self

from msgspec import Struct

from nplt_protocol.json_text import JsonObject, JsonValue
from nplt_storage.rows import Billed, BilledDetails

_MILLION: Final = Decimal(1_000_000)
_EXACT: Final = Context(prec=80)
"""Enough precision that nothing is rounded: counts have up to 16 digits, prices a few."""


class ModelPrices(Struct, frozen=True, kw_only=True):
    """The prices of one model, in US dollars per million tokens."""

    price_in: Decimal
    price_out: Decimal
    price_cached: Decimal | None = None
    """The price of input that is read from the provider's cache; None: `price_in`."""
    price_cache_write: Decimal | None = None
    """The price of input that is written to the provider's cache; None: `price_in`."""

    @classmethod
    def of(
        cls,
        price_in: float,
        price_out: float,
        price_cached: float | None = None,
        price_cache_write: float | None = None,
    ) -> Self:
        """Converts the floats of the settings exactly as they were written: 0.1 is a tenth."""
        return cls(
            price_in=Decimal(str(price_in)),
            price_out=Decimal(str(price_out)),
            price_cached=None if price_cached is None else Decimal(str(price_cached)),
            price_cache_write=None
            if price_cache_write is None
            else Decimal(str(price_cache_write)),
        )

    def cost(
        self,
        *,
        input_tokens: int,
        output_tokens: int,
        cached_tokens: int = 0,
        cache_write_tokens: int = 0,
    ) -> Decimal:
        """Tokens read from the cache and written to it are part of `input_tokens`; larger counts
        are cut to it."""
        cached = min(cached_tokens, input_tokens)
        kept = min(cache_write_tokens, input_tokens - cached)
        charged = (
            (input_tokens - cached - kept, self.price_in),
            (cached, self.price_in if self.price_cached is None else self.price_cached),
            (kept, self.price_in if self.price_cache_write is None else self.price_cache_write),
            (output_tokens, self.price_out),
        )
        millions = Decimal(0)
        for tokens, price in charged:
            millions = _EXACT.add(millions, _EXACT.multiply(Decimal(tokens), price))
        return _EXACT.divide(millions, _MILLION)


def as_amount(cost: Decimal) -> str:
    """Formats a cost as text with every digit and without exponent: `0.0425`. A float would
    round."""
    amount = format(cost, "f")
    return amount.rstrip("0").rstrip(".") if "." in amount else amount


def billed_series(
    billed: Billed, details: BilledDetails, prices: Mapping[str, ModelPrices]
) -> tuple[JsonObject, JsonObject | None]:
    """Returns the billed tokens, in total and by model, and their cost if a price is known.
    `estimated_calls` ended before their provider reported usage, so their tokens are our count."""
    more = {model: (written, estimated) for model, written, estimated in details}
    totals: Counter[str] = Counter()
    models: list[JsonValue] = []
    costs: list[Decimal] = []
    for model, calls, read, written, cached in billed:
        kept, estimated = more.get(model, (0, 0))
        counts = {"input_tokens": read, "output_tokens": written, "cached_tokens": cached}
        rare = {"cache_write_tokens": kept, "estimated_calls": estimated}
        totals.update(counts, calls=calls, **rare)
        nonzero = {name: count for name, count in rare.items() if count}
        bill: JsonObject = {"model": model, "calls": calls, **counts, **nonzero}
        if model in prices:
            costs.append(prices[model].cost(**counts, cache_write_tokens=kept))
            bill["cost"] = as_amount(costs[-1])
        models.append(bill)
    always = ("input_tokens", "output_tokens", "cached_tokens", "calls")
    series: JsonObject = {name: totals[name] for name in always}
    series |= {name: count for name, count in totals.items() if count and name not in always}
    series["total_tokens"] = totals["input_tokens"] + totals["output_tokens"]
    series["models"] = models
    if not costs:
        return series, None
    amount = Decimal(0)
    for cost in costs:
        amount = _EXACT.add(amount, cost)
    whole: JsonObject = {"amount": as_amount(amount), "currency": "USD"}
    return series, whole if len(costs) == len(billed) else {**whole, "partial": True}


def occupancy_of(
    usage: Mapping[str, JsonValue] | None, *, counted: int, context_tokens: int
) -> JsonObject:
    """Returns the occupancy after one call: the tokens that the provider reported, else our own
    count. `context_tokens` is the model's window; 0 if it is not known."""
    reported = [(usage or {}).get(name) for name in ("input_tokens", "output_tokens")]
    known = [one for one in reported if isinstance(one, int) and not isinstance(one, bool)]
    is_reported = len(known) == len(reported)
    tokens = sum(known) if is_reported else counted
    occupancy: JsonObject = {"tokens": tokens, "source": "api" if is_reported else "counted"}
    if context_tokens > 0:
        percent = round(100 * tokens / context_tokens, 1)
        occupancy |= {"context_tokens": context_tokens, "percent": percent}
    return occupancy
