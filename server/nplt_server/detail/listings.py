"""What a log, a table or any other list of lines says.

How many lines there are, the first and the last of them, and before all others
those that tell of errors and warnings, each sort of them once: a log of ten
thousand lines is mostly asked what went wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Final, Literal, TypeAlias

from nplt_server.detail.cut import place_to_stop
from nplt_server.detail.glance import (
    LINE_END,
    Line,
    counted,
    is_looked_at_whole,
    lines_looked_at,
    lines_of,
)
from nplt_server.detail.passage_outline import PassageOutline
from nplt_server.detail.passages import Passage

_FIRST: Final = 100
_LAST: Final = 90
_FIRST_ERROR: Final = 102
_NEAR_THE_ENDS: Final = 55
_REST: Final = 10

_LINE_CHARACTERS_MAX: Final = 180
_ERROR_WORDS: Final = (
    *("error", "exception", "fatal", "failed", "failure", "panic", "critical", "traceback"),
    *("denied", "refused", "timed out", "segfault", "abort"),
)
_WARNING_WORDS: Final = ("warn", "deprecat")
_NO_TROUBLE: Final = re.compile(
    r"\b(?:0|no) (?:error|fail|warn)|(?:error|exception|warning|failure)s?[./_-]\w"
)
"""`0 errors`; and files that are named for what they are about."""
_DIGITS: Final = re.compile(r"\d+")
_LOOKED_AT_OF_LINE: Final = 400
_SOUGHT_IN_THE_WHOLE: Final = ("ERROR", "Error", "FATAL", "Traceback", "FAILED", "panic", "WARN")
"""Of a text that is too long to be read line by line the first and the last are found."""

_Trouble: TypeAlias = Literal["error", "warning", ""]

_NEW: Final[dict[_Trouble, int]] = {"error": 84, "warning": 64, "": 30}
"""The worth of a line of a sort that was not there before."""


def outline_of_listing(text: str, *, name: str = "") -> PassageOutline:
    lines = lines_looked_at(text)
    if not is_looked_at_whole(text):
        lines = _with_lines_found(text, lines)
    troubles: list[_Trouble] = [_trouble_of(line.text) for line in lines]
    sorts_seen: set[str] = set()
    passages: list[Passage] = []
    for index, (line, trouble) in enumerate(zip(lines, troubles, strict=True)):
        weight = _worth_of_place(index, len(lines) - 1 - index)
        weight = max(weight, _worth_of_words(line.text, trouble, sorts_seen))
        end = min(line.end, place_to_stop(text, line.start, _LINE_CHARACTERS_MAX))
        passages.append(Passage(start=line.start, end=end, weight=weight))
    if "error" in troubles:
        first = troubles.index("error")
        passages[first] = replace(passages[first], weight=_FIRST_ERROR)
    return PassageOutline(text=text, passages=passages, label=_label(text, name, troubles))


def _label(text: str, name: str, troubles: list[_Trouble]) -> str:
    count = text.count(LINE_END) + (not text.endswith(LINE_END))
    parts = [f"{name}{counted(count, 'line')}"]
    if is_looked_at_whole(text):
        for trouble in ("error", "warning"):
            lines = troubles.count(trouble)
            parts += [f"{lines:,} with {trouble}s"] * (lines > 0)
    return f"[{', '.join(parts)}]"


def _worth_of_place(from_start: int, from_end: int) -> int:
    if from_start == 0 or from_end == 0:
        return _FIRST if from_start == 0 else _LAST
    return _NEAR_THE_ENDS - min(from_start, 3) if min(from_start, from_end) < 3 else _REST


def _worth_of_words(line: str, trouble: _Trouble, seen: set[str]) -> int:
    """The first of each sort; the same with other numbers is the same."""
    sort = _DIGITS.sub("#", line[:_LOOKED_AT_OF_LINE])
    if sort in seen:
        return _REST
    seen.add(sort)
    return _NEW[trouble]


def _trouble_of(line: str) -> _Trouble:
    said = line[:_LOOKED_AT_OF_LINE].lower()
    is_error = any(word in said for word in _ERROR_WORDS)
    if not is_error and not any(word in said for word in _WARNING_WORDS):
        return ""
    if _NO_TROUBLE.search(said):
        return ""
    return "error" if is_error else "warning"


def _with_lines_found(text: str, lines: Iterable[Line]) -> list[Line]:
    by_start = {line.start: line for line in lines}
    for word in _SOUGHT_IN_THE_WHOLE:
        for place in (text.find(word), text.rfind(word)):
            if place < 0:
                continue
            start = text.rfind("\n", max(0, place - _LINE_CHARACTERS_MAX), place) + 1 or place
            end = text.find("\n", place, place + _LINE_CHARACTERS_MAX)
            for line in lines_of(text, start, end if end > 0 else place + _LINE_CHARACTERS_MAX):
                by_start.setdefault(line.start, line)
    return [by_start[start] for start in sorted(by_start)]
