"""Outlines logs, tables and other lists of lines.

An outline has the number of lines, the first and the last, and above all errors and warnings, each
sort once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, Literal, TypeAlias

from msgspec import structs

from nplt_server.digest.text import (
    LINE_END,
    REST_WEIGHT,
    Passage,
    PassageOutline,
    TextLine,
    counted,
    lines_of,
    passage_of,
    sampled_lines,
    sampled_ranges,
)

_FIRST_ERROR: Final = 102
_LAST_ERROR: Final = 100
_FIRST_LINE: Final = 96
_LAST_LINE: Final = 90
_NEAR_AN_END: Final = 55

_LISTING_LINE_CHARACTERS_MAX: Final = 180
_ERROR_WORDS: Final = (
    *("error", "exception", "fatal", "failed", "failure", "panic", "critical", "traceback"),
    *("denied", "refused", "timed out", "segfault", "abort"),
    *("错误", "失败", "异常", "致命", "崩溃", "超时", "拒绝"),
)
_WARNING_WORDS: Final = ("warn", "deprecat", "警告", "告警")
_NO_TROUBLE: Final = re.compile(
    r"\b(?:0|no) (?:error|fail|warn)|(?:error|exception|warning|failure)s?[./_-]\w"
    r"|[0无没](?: ?个)?有?(?:错误|异常|失败)"
)
"""Matches `0 errors`, and names of files like `error_handler.py`, which are no errors."""
_DIGITS: Final = re.compile(r"\d+")
_LISTING_LINE_LOOKED_AT: Final = 400
_SOUGHT_IN_THE_WHOLE: Final = (
    *("ERROR", "Error", "FATAL", "Traceback", "FAILED", "panic", "WARN", "错误", "异常", "失败"),
)
"""Words whose first and last occurrence are found even in a text that is only sampled."""

Trouble: TypeAlias = Literal["error", "warning", ""]

_NEW: Final[dict[Trouble, int]] = {"error": 84, "warning": 64, "": 30}
"""The weight of the first line of each sort."""


def outline_of_listing(text: str, *, name: str = "") -> PassageOutline:
    lines = sampled_lines(text)
    is_read_whole = len(sampled_ranges(text)) == 1
    if not is_read_whole:
        lines = _with_lines_found(text, lines)
    troubles = troubles_in(lines)
    sorts_seen: set[str] = set()
    passages: list[Passage] = []
    for index, (line, trouble) in enumerate(zip(lines, troubles, strict=True)):
        # Lines that differ only in numbers are of the same sort.
        sort = _DIGITS.sub("#", line.text[:_LISTING_LINE_LOOKED_AT])
        of_words = REST_WEIGHT if sort in sorts_seen else _NEW[trouble]
        sorts_seen.add(sort)
        from_end = len(lines) - 1 - index
        of_place = _NEAR_AN_END - min(index, 3) if min(index, from_end) < 3 else REST_WEIGHT
        if index == 0 or from_end == 0:
            of_place = _FIRST_LINE if index == 0 else _LAST_LINE
        weight = max(of_place, of_words)
        passages.append(passage_of(text, line, weight, _LISTING_LINE_CHARACTERS_MAX))
    if "error" in troubles:
        first = troubles.index("error")
        last = len(troubles) - 1 - troubles[::-1].index("error")
        passages[last] = structs.replace(passages[last], weight=_LAST_ERROR)
        passages[first] = structs.replace(passages[first], weight=_FIRST_ERROR)
    count = text.count(LINE_END) + (not text.endswith(LINE_END))
    label = f"{name}{counted(count, 'line')}"
    for trouble in ("error", "warning") if is_read_whole else ():
        if found := troubles.count(trouble):
            label += f", {found:,} with {trouble}s"
    return PassageOutline(text=text, passages=passages, label=f"[{label}]")


def troubles_in(lines: Sequence[TextLine]) -> list[Trouble]:
    """Returns whether each line reports an error or a warning. Lines are searched only for words
    that occur in the text at all."""
    lowered = "\n".join(line.text for line in lines).lower()
    errors = [word for word in _ERROR_WORDS if word in lowered]
    warnings = [word for word in _WARNING_WORDS if word in lowered]
    troubles: list[Trouble] = [""] * len(lines)
    for index, line in enumerate(lines if errors or warnings else ()):
        start = line.text[:_LISTING_LINE_LOOKED_AT].lower()
        is_error = any(word in start for word in errors)
        if (is_error or any(word in start for word in warnings)) and not _NO_TROUBLE.search(start):
            troubles[index] = "error" if is_error else "warning"
    return troubles


def _with_lines_found(text: str, lines: Iterable[TextLine]) -> list[TextLine]:
    by_start = {line.start: line for line in lines}
    for word in _SOUGHT_IN_THE_WHOLE:
        for place in (text.find(word), text.rfind(word)):
            if place < 0:
                continue
            near = _LISTING_LINE_CHARACTERS_MAX
            start = text.rfind("\n", max(0, place - near), place) + 1 or place
            end = text.find("\n", place, place + near)
            for line in lines_of(text, start, end if end > 0 else place + near):
                by_start.setdefault(line.start, line)
    return [by_start[start] for start in sorted(by_start)]
