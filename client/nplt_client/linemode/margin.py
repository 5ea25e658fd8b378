"""What stands between the paper and the input, redrawn while it changes. Pure.

The end of the block that is being written, prompts that wait, a question that
waits for a yes or a no, and how things are. All of it is bounded: the input
stays in sight.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from nplt_client.tables import shorten, width_of

TAIL_ROWS_MAX = 8
WAITING_ROWS_MAX = 3

Fragment = tuple[str, str]
"""A style, and a text in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MarginFacts:
    unfinished: str = ""
    waiting: Sequence[str] = field(default=())
    question: str = ""
    status: str = ""


def margin_rows(facts: MarginFacts, *, width: int) -> list[Fragment]:
    return list(_rows(facts, width))


def _rows(facts: MarginFacts, width: int) -> Iterator[Fragment]:
    if rows := tail(facts.unfinished, width=width, rows_max=TAIL_ROWS_MAX):
        yield "", ""  # as there will be one on the paper
        yield from (("", row) for row in rows)
    for prompt in facts.waiting[:WAITING_ROWS_MAX]:
        yield "class:waiting", shorten(f"… {' '.join(prompt.split())}", width)
    if (more := len(facts.waiting) - WAITING_ROWS_MAX) > 0:
        yield "class:waiting", f"… and {more} more"
    if facts.question:
        yield "class:question", shorten(facts.question, width)
    yield "class:status", shorten(facts.status, width)


def tail(text: str, *, width: int, rows_max: int) -> list[str]:
    """The last rows of a text, as a terminal of that width breaks it."""
    # What is far above can't be seen, however narrow the characters are.
    near = text[-4 * width * rows_max :].rstrip("\n").expandtabs(4)
    rows = [row for line in near.split("\n")[-rows_max:] for row in _broken(line, width)]
    return rows[-rows_max:] if near.strip() else []


def _broken(line: str, width: int) -> Iterator[str]:
    row = ""
    used = 0
    for character in line:
        cells = width_of(character)
        if used + cells > width:
            yield row
            row, used = "", 0
        row += character
        used += cells
    yield row
