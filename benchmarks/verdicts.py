"""What a benchmark says in the end: a goal, today's figure, met or missed.

A verdict is made where the figure is, so the limit and its wording can't
drift apart. What can't be measured here is skipped, with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from benchmarks.measuring import figure

Outcome = Literal["ok", "MISSED", "skipped", "BROKEN"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    number: str
    what: str
    goal: str
    today: str
    outcome: Outcome
    details: str = ""

    @property
    def is_failure(self) -> bool:
        return self.outcome in ("MISSED", "BROKEN")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One row of the table before it is answered."""

    number: str
    what: str

    def at_most(self, limit: float, found: float, *, unit: str, details: str = "") -> Verdict:
        return self._judged(f"≤ {figure(limit)} {unit}", found <= limit, found, unit, details)

    def at_least(self, limit: float, found: float, *, unit: str, details: str = "") -> Verdict:
        return self._judged(f"≥ {figure(limit)} {unit}", found >= limit, found, unit, details)

    def holds(self, goal: str, holds: bool, today: str, details: str = "") -> Verdict:
        return self._verdict("ok" if holds else "MISSED", goal, today, details)

    def skipped(self, reason: str) -> Verdict:
        return self._verdict("skipped", details=reason)

    def broken(self, reason: str) -> Verdict:
        return self._verdict("BROKEN", details=reason)

    def _judged(self, goal: str, holds: bool, found: float, unit: str, details: str) -> Verdict:
        # "× bare Protocol" is the goal's unit; beside today's figure "×" will do.
        return self.holds(goal, holds, f"{figure(found)} {unit.split(' ', 1)[0]}", details)

    def _verdict(
        self, outcome: Outcome, goal: str = "", today: str = "", details: str = ""
    ) -> Verdict:
        return Verdict(
            number=self.number,
            what=self.what,
            goal=goal,
            today=today,
            outcome=outcome,
            details=details,
        )


def table(verdicts: Sequence[Verdict]) -> str:
    rows = [("#", "what", "goal", "today", "", "measured")]
    rows += [(v.number, v.what, v.goal, v.today, v.outcome, v.details) for v in verdicts]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])
