"""The result of a check: kept, broken with examples, or skipped with the reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Outcome = Literal["kept", "BROKEN", "SKIPPED"]
_EXAMPLES_MAX = 5


class CannotBeDone(Exception):
    """The machine or the user lacks something; the check is skipped with a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    number: str
    what: str
    outcome: Outcome
    today: str
    complaints: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Promised:
    """A row of the table without its result."""

    number: str
    what: str

    def judged(self, complaints: Sequence[str], today: str) -> Result:
        return Result(
            number=self.number,
            what=self.what,
            outcome="BROKEN" if complaints else "kept",
            today=today,
            complaints=tuple(complaints),
        )

    def skipped(self, reason: str) -> Result:
        return Result(number=self.number, what=self.what, outcome="SKIPPED", today=reason)


def table(results: Sequence[Result]) -> str:
    rows = [(r.number, r.outcome, r.what, r.today) for r in results]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines: list[str] = []
    for row, result in zip(rows, results, strict=True):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        lines.append("  ".join([*cells, row[3]]).rstrip())
        lines += [f"        {complaint}" for complaint in result.complaints[:_EXAMPLES_MAX]]
        if more := len(result.complaints) - _EXAMPLES_MAX:
            lines += [f"        … and {more} more"] if more > 0 else []
    return "\n".join(lines)
