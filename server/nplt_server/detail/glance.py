"""How far into a text one looks: all of it, or its beginning and its end.

What is said about a text costs the same for ten megabytes as for one tenth of
one. Only what a single pass of `str.find` or `str.count` can tell is asked of
the whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from nplt_server.detail.cut import place_to_resume, place_to_stop

HEAD_CHARACTERS: Final = 96 * 1024
TAIL_CHARACTERS: Final = 32 * 1024
HEAD_LINES: Final = 1_500
TAIL_LINES: Final = 500

LINE_END: Final = "\n"

_TO_A_GOOD_PLACE: Final = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One that is not blank, without its end; the indentation belongs to it."""

    start: int
    end: int
    text: str


def ranges_looked_at(text: str) -> list[tuple[int, int]]:
    length = len(text)
    head_end = _after_lines(text)
    if length <= HEAD_CHARACTERS + TAIL_CHARACTERS and head_end == length:
        return [(0, length)]
    if head_end > HEAD_CHARACTERS:
        head_end = place_to_stop(text, HEAD_CHARACTERS - _TO_A_GOOD_PLACE, _TO_A_GOOD_PLACE)
    tail_start = _before_lines(text, max(head_end, length - TAIL_CHARACTERS))
    return [(0, head_end), (place_to_resume(text, tail_start, length), length)]


def is_looked_at_whole(text: str) -> bool:
    return len(ranges_looked_at(text)) == 1


def _after_lines(text: str) -> int:
    if text.count(LINE_END, 0, HEAD_CHARACTERS + TAIL_CHARACTERS) <= HEAD_LINES + TAIL_LINES:
        return len(text)
    place = -1
    for _ in range(HEAD_LINES):
        place = text.find(LINE_END, place + 1)
    return place


def _before_lines(text: str, start: int) -> int:
    place = len(text)
    for _ in range(TAIL_LINES):
        place = text.rfind(LINE_END, start, place)
        if place < 0:
            return start
    return place + 1


def lines_of(text: str, start: int, end: int) -> list[Line]:
    lines: list[Line] = []
    for line in text[start:end].split("\n"):
        if line and not line.isspace():
            lines.append(Line(start=start, end=start + len(line.rstrip()), text=line.rstrip()))
        start += len(line) + 1
    return lines


def lines_looked_at(text: str) -> list[Line]:
    return [line for start, end in ranges_looked_at(text) for line in lines_of(text, start, end)]


def counted(number: int, name: str) -> str:
    return f"{number:,} {name}" if number == 1 else f"{number:,} {name}s"
