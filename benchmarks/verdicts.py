"""What a benchmark says in the end: a goal, today's figure, met or missed.

A verdict is made where the figure is, so the limit and its wording can't
drift apart. What can't be measured here is skipped, with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from benchmarks.measuring import Rounds, figure

Outcome = Literal["ok", "MISSED", "no goal", "skipped", "BROKEN", "ran"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    number: str
    what: str
    goal: str
    today: str
    outcome: Outcome
    details: str = ""
    found: float | None = None
    limit: float | None = None
    unit: str = ""

    @property
    def is_failure(self) -> bool:
        return self.outcome in ("MISSED", "BROKEN")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One row of the table before it is answered."""

    number: str
    what: str

    def at_most(self, limit: float, found: float, *, unit: str, details: str = "") -> Verdict:
        verdict = self.holds(f"≤ {figure(limit)} {unit}", found <= limit, "", details)
        return _with_figures(verdict, found, limit, unit)

    def at_least(self, limit: float, found: float, *, unit: str, details: str = "") -> Verdict:
        verdict = self.holds(f"≥ {figure(limit)} {unit}", found >= limit, "", details)
        return _with_figures(verdict, found, limit, unit)

    def without_goal(self, found: float, *, unit: str, details: str = "") -> Verdict:
        return _with_figures(self._verdict("no goal", details=details), found, None, unit)

    def holds(self, goal: str, holds: bool, today: str, details: str = "") -> Verdict:
        return self._verdict("ok" if holds else "MISSED", goal, today, details)

    def skipped(self, reason: str) -> Verdict:
        return self._verdict("skipped", details=reason)

    def ran(self) -> Verdict:
        return self._verdict("ran")

    def broken(self, reason: str) -> Verdict:
        return self._verdict("BROKEN", details=reason)

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


def _with_figures(verdict: Verdict, found: float, limit: float | None, unit: str) -> Verdict:
    # "× bare Protocol" is the goal's unit; beside today's figure "×" will do.
    today = f"{figure(found)} {unit.split(' ', 1)[0]}"
    return replace(verdict, today=today, found=found, limit=limit, unit=unit)


def compared(
    number: str, kind: str, rounds: Rounds, *, unit: str, per_unit: float = 1.0
) -> list[Verdict]:
    """What was measured here, to the same of the checkout beside, if there is one."""
    if "beside" not in rounds.figures:
        return []
    question = Question(number=number, what=f"the same, {kind}, to the checkout beside")
    ratio = rounds.ratio("here", "beside")
    details = rounds.summary("here", "beside", unit=unit, per_unit=per_unit)
    return [question.without_goal(ratio, unit="×", details=details)]


def only_run(verdict: Verdict) -> Verdict:
    """Without the figures: they mean nothing where the counts were tiny."""
    if verdict.outcome in ("skipped", "BROKEN"):
        return verdict
    return Question(number=verdict.number, what=verdict.what).ran()


def table(verdicts: Sequence[Verdict]) -> str:
    rows = [("#", "what", "goal", "today", "", "measured")]
    rows += [(v.number, v.what, v.goal, v.today, v.outcome, v.details) for v in verdicts]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])
