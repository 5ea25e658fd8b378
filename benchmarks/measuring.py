"""Rounds and medians: several things measured in turns, then compared.

In every round each thing is measured once, and the order rotates, so that
whatever else the machine does meets them alike. Two things are compared round
by round; the median of those ratios is the figure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

from benchmarks.progress import tick

ROUNDS = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    figures: Mapping[str, list[float]]

    def median(self, name: str) -> float:
        return median(self.figures[name])

    def ratio(self, name: str, other: str) -> float:
        pairs = zip(self.figures[name], self.figures[other], strict=True)
        return median(one / two for one, two in pairs)

    def summary(self, *names: str, unit: str, per_unit: float = 1.0) -> str:
        """The medians themselves, for the reader: `nplt 1.62 µs, bare 1.2 µs`."""
        figures = (f"{name} {figure(self.median(name) * per_unit)} {unit}" for name in names)
        return ", ".join(figures)


def alternate(things: Mapping[str, Callable[[], float]], *, rounds: int = ROUNDS) -> Rounds:
    def only(measure: Callable[[], float]) -> Callable[[], Mapping[str, float]]:
        return lambda: {"": measure()}

    alone = {name: only(measure) for name, measure in things.items()}
    return alternate_several(alone, rounds=rounds)[""]


def alternate_several(
    things: Mapping[str, Callable[[], Mapping[str, float]]], *, rounds: int = ROUNDS
) -> dict[str, Rounds]:
    """For measurements that give several figures at once; the rounds of each figure."""
    found: dict[str, list[Mapping[str, float]]] = {name: [] for name in things}
    for number in range(rounds):
        for name in rotated(list(things), number):
            found[name].append(things[name]())
        tick()
    return {
        kind: Rounds(figures={name: [each[kind] for each in found[name]] for name in things})
        for kind in next(iter(found.values()))[0]
    }


def figure(value: float) -> str:
    """Three digits that mean something, and no exponent."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def rotated(names: list[str], by: int) -> list[str]:
    start = by % len(names)
    return names[start:] + names[:start]
