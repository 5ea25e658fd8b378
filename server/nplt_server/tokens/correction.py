"""Our own counts, brought to what a model's provider really charged.

Every vocabulary is different, and providers add tokens of their own around the
messages. After each call the ratio of what was charged to what we had counted
is moved half of the way to what was just seen; the next count is corrected by
it. Ratios are whole thousandths, so that figures are the same everywhere and a
budget that was converted and back never grows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

EVEN: Final = 1000
RATIO_MIN: Final = 500
RATIO_MAX: Final = 2000
"""Beyond this it is no vocabulary but a mistake, ours or the provider's."""

COUNTED_MIN: Final = 200
"""Of a small context most is the provider's frame around it: it says nothing."""

MODELS_MAX: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    ratios: Mapping[str, int] = field(default_factory=dict[str, int])
    """Charged to counted in thousandths, by model; the one seen last is last."""

    def observe(self, model: str, counted: int, real: int) -> Correction:
        if counted < COUNTED_MIN or real <= 0:
            return self
        seen = min(max(real * EVEN // counted, RATIO_MIN), RATIO_MAX)
        known = self.ratios.get(model)
        moved = seen if known is None else known + _half(seen - known)
        others = {name: ratio for name, ratio in self.ratios.items() if name != model}
        while len(others) >= MODELS_MAX:
            del others[next(iter(others))]
        return Correction(ratios={**others, model: moved})

    def corrected(self, model: str, counted: int) -> int:
        return -(-counted * self.ratios.get(model, EVEN) // EVEN)

    def budget_in_counted(self, model: str, budget: int) -> int:
        """How much may be counted so that what is charged stays within the budget."""
        return budget * EVEN // self.ratios.get(model, EVEN)


def _half(difference: int) -> int:
    """Away from zero, or the last thousandth would never be made up."""
    return (difference + 1) // 2 if difference > 0 else -((1 - difference) // 2)
