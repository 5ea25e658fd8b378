"""What became of the calls of one model since the server started, for STATUS.

Figures only, and few of them: how often, how long, how much, and why not.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from nplt_protocol.json_values import JsonObject
from nplt_server.deltas import UsageReport
from nplt_server.errors import (
    AnswerCut,
    ProviderError,
    ProviderPaused,
    ProviderUnauthorized,
    ProviderUnavailable,
    RequestTooLarge,
)
from nplt_server.tokens.prices import ModelPrices, as_amount

FailureKind: TypeAlias = Literal[
    "paused", "timed_out", "unavailable", "unauthorized", "too_large", "refused", "cut"
]
BUCKET_SECONDS: Final = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0)
"""Upper edges; what took longer is in one more bucket."""


def kind_of(error: ProviderError) -> FailureKind:
    match error:
        case ProviderPaused():
            return "paused"
        case ProviderUnavailable(timed_out=True):
            return "timed_out"
        case ProviderUnavailable():
            return "unavailable"
        case ProviderUnauthorized():
            return "unauthorized"
        case RequestTooLarge():
            return "too_large"
        case AnswerCut():
            return "cut"
        case _:
            return "refused"


@dataclass(slots=True)
class Durations:
    count: int = 0
    seconds: float = 0.0
    longest: float = 0.0
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKET_SECONDS) + 1))

    def add(self, seconds: float) -> None:
        self.count += 1
        self.seconds += seconds
        self.longest = max(self.longest, seconds)
        place = next((n for n, edge in enumerate(BUCKET_SECONDS) if seconds <= edge), -1)
        self.buckets[place] += 1

    def as_json(self) -> JsonObject:
        """`buckets`: how many took up to so many seconds, those before it not included."""
        edges = [*(f"{edge:g}" for edge in BUCKET_SECONDS), "more"]
        buckets: JsonObject = {
            edge: number for edge, number in zip(edges, self.buckets, strict=True) if number
        }
        return {
            "count": self.count,
            "sum": round(self.seconds, 3),
            "max": round(self.longest, 3),
            "buckets": buckets,
        }


@dataclass(slots=True)
class ModelMetrics:
    calls: int = 0
    retries: int = 0
    fail_overs: int = 0
    """How often another model was asked instead of this one."""
    failures: Counter[FailureKind] = field(default_factory=Counter[FailureKind])
    first_token: Durations = field(default_factory=Durations)
    whole: Durations = field(default_factory=Durations)
    """Of calls that were answered to the end."""
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0

    def count_usage(self, usage: UsageReport) -> None:
        """A provider may say anything, but it does not pay us."""
        self.input_tokens += max(0, usage.input_tokens)
        self.output_tokens += max(0, usage.output_tokens)
        self.cached_tokens += max(0, usage.cached_tokens)

    def as_json(self, prices: ModelPrices | None) -> JsonObject:
        failures: JsonObject = {str(kind): number for kind, number in self.failures.items()}
        said: JsonObject = {
            "calls": self.calls,
            "failures": failures,
            "retries": self.retries,
            "fail_overs": self.fail_overs,
            "first_token_seconds": self.first_token.as_json(),
            "call_seconds": self.whole.as_json(),
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "cached_tokens": self.cached_tokens,
        }
        if prices is not None:
            cost = prices.cost(
                input_tokens=self.input_tokens,
                output_tokens=self.output_tokens,
                cached_tokens=self.cached_tokens,
            )
            said["cost"] = as_amount(cost)
        return said
