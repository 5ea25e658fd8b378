"""Three series of figures that are easily taken for each other, kept apart.

    billed      what providers said they charge for, summed over all calls
    occupancy   what the last call took of the model's window
    estimate    our own count of the context that would be sent next

A context that is sent ten times is billed ten times and occupies the window
once: what is compared with a window's limit is never what was billed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

from nplt_protocol.json_values import JsonObject, JsonValue
from nplt_server.tokens.prices import ModelPrices, as_amount, total
from nplt_storage.conversation.billing import Billed, BilledModel


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelBill:
    model: str
    calls: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cost: Decimal | None = None
    """In US dollars; None: nobody said what this model costs."""

    def as_json(self) -> JsonObject:
        said: JsonObject = {
            "model": self.model,
            "calls": self.calls,
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "cached_tokens": self.cached_tokens,
        }
        return said if self.cost is None else {**said, "cost": as_amount(self.cost)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    tokens: int
    counter: str

    def as_json(self) -> JsonObject:
        return {"tokens": self.tokens, "counter": self.counter}


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageSeries:
    billed: tuple[ModelBill, ...]
    occupancy: Occupancy
    estimate: Estimate

    def as_json(self) -> JsonObject:
        """The three series and the cost, as USAGE answers them."""
        said: JsonObject = {
            "billed": {
                "input_tokens": sum(bill.input_tokens for bill in self.billed),
                "output_tokens": sum(bill.output_tokens for bill in self.billed),
                "cached_tokens": sum(bill.cached_tokens for bill in self.billed),
                "calls": sum(bill.calls for bill in self.billed),
                "models": [bill.as_json() for bill in self.billed],
            },
            "occupancy": self.occupancy.as_json(),
            "estimate": self.estimate.as_json(),
        }
        cost = self._cost()
        return said if cost is None else {**said, "cost": cost}

    def _cost(self) -> JsonObject | None:
        costs = [bill.cost for bill in self.billed if bill.cost is not None]
        if not costs:
            return None
        said: JsonObject = {"amount": as_amount(total(costs)), "currency": "USD"}
        return said if len(costs) == len(self.billed) else {**said, "partial": True}


def model_bills(billed: Billed, prices: Mapping[str, ModelPrices]) -> tuple[ModelBill, ...]:
    """What was billed, by model, each with its cost if it has a price."""
    return tuple(_model_bill(one, prices.get(one[0])) for one in billed)


def occupancy_of(
    usage: Mapping[str, JsonValue] | None, *, counted: int, context_tokens: int
) -> Occupancy:
    """Of one call: what the provider said it read and wrote, else what we had counted."""
    said = [(usage or {}).get(name) for name in ("input_tokens", "output_tokens")]
    tokens = [one for one in said if isinstance(one, int) and not isinstance(one, bool)]
    if len(tokens) == len(said):
        return Occupancy(tokens=sum(tokens), context_tokens=context_tokens, source="api")
    return Occupancy(tokens=counted, context_tokens=context_tokens, source="counted")


def _model_bill(one: BilledModel, price: ModelPrices | None) -> ModelBill:
    model, calls, read, written, cached = one
    cost = (
        price.cost(input_tokens=read, output_tokens=written, cached_tokens=cached)
        if price
        else None
    )
    return ModelBill(
        model=model,
        calls=calls,
        input_tokens=read,
        output_tokens=written,
        cached_tokens=cached,
        cost=cost,
    )
