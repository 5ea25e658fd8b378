"""Whether a text holds what is looked for, and the piece of it that is shown."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final, TypeAlias

from nplt_storage.conversation.words import UNSPACED, wanted_words, words

Wanted: TypeAlias = tuple[str, ...]
"""What is looked for, as it stands among the words of a text joined by blanks:
each with a blank on both sides, the last one without the second."""

WANTED_MAX: Final = 64
"""Words of a query; further ones are not looked at."""
SNIPPET_CHARACTERS: Final = 160

_BLOCK_SIZES = (8192, 128)
_RUNS = re.compile(rf"[{UNSPACED}]|[^\s{UNSPACED}]+")


def query_words(text: str) -> Wanted:
    found = wanted_words(text)[:WANTED_MAX]
    return (*(f" {word} " for word in found[:-1]), *(f" {word}" for word in found[-1:]))


def matches(wanted: Wanted, text: str) -> bool:
    said = _joined(words(text))
    return bool(wanted) and all(one in said for one in wanted)


def snippet(text: str, wanted: Wanted, characters: int = SNIPPET_CHARACTERS) -> str:
    """One printable line around the first of the words, `…` where it was cut."""
    hit = _first_hit(text, wanted)
    begin = 0
    if len(text) > characters:
        begin = max(0, min(hit - characters // 4, len(text) - characters + 1))
        if begin and (blank := text.find(" ", begin, hit)) != -1:
            begin = blank + 1
    # Blanks are joined, so more is taken than can be shown.
    end = begin + 4 * characters
    line = _single_line(text[begin:end])
    if begin:
        line = "…" + line
    if len(line) > characters or end < len(text):
        line = line[: characters - 1].rstrip() + "…"
    return line


def _joined(found: Sequence[str]) -> str:
    return f" {' '.join(found)} "


def _first_hit(text: str, wanted: Wanted) -> int:
    """Where in the text: found by narrowing it down, since only whole words can be
    compared, and a word's place among words says little about its place here."""
    begin, end = 0, len(text)
    for size in _BLOCK_SIZES:
        for block in _blocks(text, begin, end, size):
            said = _joined(words(text[slice(*block)]))
            if any(one in said for one in wanted):
                begin, end = block
                break
        else:
            return begin
    return _place_in(text, begin, end, wanted)


def _blocks(text: str, begin: int, end: int, size: int) -> Iterator[tuple[int, int]]:
    """Cut at blanks, where no word is."""
    for block in re.compile(rf"(?s).{{1,{size}}}\S*").finditer(text, begin, end):
        yield block.span()


def _place_in(text: str, begin: int, end: int, wanted: Wanted) -> int:
    starts: list[int] = []
    found: list[str] = []
    for run in _RUNS.finditer(text, begin, end):
        said = words(run.group())
        found += said
        starts += [run.start()] * len(said)
    joined = _joined(found)
    hits = [place for one in wanted if (place := joined.find(one)) != -1]
    if not hits:
        return begin
    # A word begins one after the blank that its neighbour ends with.
    places = list(accumulate((len(word) + 1 for word in found), initial=0))
    return starts[bisect_right(places, min(hits)) - 1]


def _single_line(text: str) -> str:
    line = " ".join(text.split())
    if not line.isprintable():
        line = " ".join("".join(c if c.isprintable() else " " for c in line).split())
    return line
