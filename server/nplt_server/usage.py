"""Adds up token usage and cost.

Keeps three series apart: what providers billed, how full the window is, and our own
estimates. Costs are computed only for models whose prices are known.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Context, Decimal
from typing import Final, Literal, Self

from msgspec import Struct, structs

from nplt_protocol.json_text import JsonObject, JsonValue
from nplt_storage.rows import Billed, BilledDetails

_MILLION: Final = Decimal(1_000_000)
_EXACT: Final = Context(prec=80)
"""Counts have up to 16 digits and prices a few: nothing is ever rounded away."""


class ModelPrices(Struct, frozen=True, kw_only=True):
    """In US dollars for a million tokens."""

    price_in: Decimal
    price_out: Decimal
    price_cached: Decimal | None = None
    """Of input that came from the provider's cache; None: the price of any input."""
    price_cache_write: Decimal | None = None
    """Of input that was written to it; None: the price of any input."""

    @classmethod
    def of(
        cls,
        price_in: float,
        price_out: float,
        price_cached: float | None = None,
        price_cache_write: float | None = None,
    ) -> Self:
        """From numbers as the settings have them: 0.1 is meant to be a tenth."""
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
        """What was read from the cache and written to it is a part of the input, never more
        than it."""
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


def total(costs: list[Decimal]) -> Decimal:
    amount = Decimal(0)
    for cost in costs:
        amount = _EXACT.add(amount, cost)
    return amount


def as_amount(cost: Decimal) -> str:
    """`0.0425`: every digit, no exponent; text, because a float is not money."""
    amount = format(cost, "f")
    return amount.rstrip("0").rstrip(".") if "." in amount else amount


# ------------------------------------------------------------------------------
# Three series of figures that are easily taken for each other, kept apart.
#
#     billed      what providers said they charge for, summed over all calls
#     occupancy   what the last call took of the model's window
#     estimate    our own count of the context that would be sent next
#
# A context that is sent ten times is billed ten times and occupies the window
# once: what is compared with a window's limit is never what was billed.


class ModelBill(Struct, frozen=True, kw_only=True):
    model: str
    calls: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cache_write_tokens: int = 0
    estimated_calls: int = 0
    """Calls that were cut off before their provider said what they cost: counted by us."""
    cost: Decimal | None = None
    """In US dollars; None: nobody said what this model costs."""

    def as_json(self) -> JsonObject:
        said: JsonObject = structs.asdict(self)
        del said["cost"]
        for name in _MAY_BE_LEFT_OUT:
            if not said[name]:
                del said[name]
        return said if self.cost is None else {**said, "cost": as_amount(self.cost)}


class Occupancy(Struct, frozen=True, kw_only=True):
    tokens: int
    context_tokens: int
    """The model's window; 0: not known."""
    source: Literal["api", "counted"]

    def as_json(self) -> JsonObject:
        said: JsonObject = {"tokens": self.tokens, "source": self.source}
        if self.context_tokens > 0:
            percent = round(100 * self.tokens / self.context_tokens, 1)
            said |= {"context_tokens": self.context_tokens, "percent": percent}
        return said


class Estimate(Struct, frozen=True, kw_only=True):
    tokens: int
    counter: str


_COUNTS: Final = ("input_tokens", "output_tokens", "cached_tokens", "calls")
_MAY_BE_LEFT_OUT: Final = ("cache_write_tokens", "estimated_calls")
"""Where they are 0."""


class UsageSeries(Struct, frozen=True, kw_only=True):
    billed: tuple[ModelBill, ...]
    occupancy: Occupancy
    estimate: Estimate

    def as_json(self) -> JsonObject:
        """The three series and the cost, as USAGE answers them."""
        said: JsonObject = {
            "billed": {
                **{name: self._sum(name) for name in _COUNTS},
                **{name: total for name in _MAY_BE_LEFT_OUT if (total := self._sum(name))},
                "models": [bill.as_json() for bill in self.billed],
            },
            "occupancy": self.occupancy.as_json(),
            "estimate": structs.asdict(self.estimate),
        }
        cost = self._cost()
        return said if cost is None else {**said, "cost": cost}

    def _sum(self, name: str) -> int:
        return sum(getattr(bill, name) for bill in self.billed)

    def _cost(self) -> JsonObject | None:
        costs = [bill.cost for bill in self.billed if bill.cost is not None]
        if not costs:
            return None
        said: JsonObject = {"amount": as_amount(total(costs)), "currency": "USD"}
        return said if len(costs) == len(self.billed) else {**said, "partial": True}


def model_bills(
    billed: Billed, details: BilledDetails, prices: Mapping[str, ModelPrices]
) -> tuple[ModelBill, ...]:
    """What was billed, by model, each with its cost if it has a price."""
    more = {model: (written, estimated) for model, written, estimated in details}
    bills: list[ModelBill] = []
    for model, calls, read, written, cached in billed:
        kept, estimated = more.get(model, (0, 0))
        bill = ModelBill(
            model=model,
            calls=calls,
            input_tokens=read,
            output_tokens=written,
            cached_tokens=cached,
            cache_write_tokens=kept,
            estimated_calls=estimated,
        )
        if model in prices:
            cost = prices[model].cost(
                input_tokens=read,
                output_tokens=written,
                cached_tokens=cached,
                cache_write_tokens=kept,
            )
            bill = structs.replace(bill, cost=cost)
        bills.append(bill)
    return tuple(bills)


def occupancy_of(
    usage: Mapping[str, JsonValue] | None, *, counted: int, context_tokens: int
) -> Occupancy:
    """Of one call: what the provider said it read and wrote, else what we had counted."""
    said = [(usage or {}).get(name) for name in ("input_tokens", "output_tokens")]
    tokens = [one for one in said if isinstance(one, int) and not isinstance(one, bool)]
    if len(tokens) == len(said):
        return Occupancy(tokens=sum(tokens), context_tokens=context_tokens, source="api")
    return Occupancy(tokens=counted, context_tokens=context_tokens, source="counted")
