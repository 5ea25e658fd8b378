"""Passages of a text, and as many of them as fit.

A passage is a piece of the text, by its place, and how much it is worth. The
worthiest are taken first, and shown in the order of the text; where something
was left out between them a seam says so. So a summary holds nothing but the
text's own words and marks of ours.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from nplt_server.detail.cut import MARK_OF_A_CUT, may_cut, place_to_stop

LONG_GAP_CHARACTERS: Final = 1_000
"""A gap of this size is worth saying how large it is."""
TELLING_WEIGHT: Final = 50
"""Passages from here on say what the text is about; the others fill up."""

_BLANK_GAP_CHARACTERS: Final = 64
_WORTH_CUTTING_CHARACTERS: Final = 40
_SEAMS_DIFFER_BY: Final = 2
_MISSES_MAX: Final = 40
"""Telling passages that do not fit, until the shorter ones behind them are given up.
What only fills up ends with the first that does not: no crumbs."""
_ENDS_OF_SENTENCES: Final = ".!?。！？؟।:;…"


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    start: int
    end: int
    weight: int
    """0: to be shown only where there is nothing else."""
    order: int = 0
    """Among passages of one weight the lower comes first."""
    is_heading: bool = False
    """Tells where something is said, and little of what."""
    closing: tuple[int, int] | None = None
    """A piece that must be there too, as a fence that was opened must be closed."""


class Seam(Protocol):
    def __call__(self, text: str, start: int, end: int) -> str:
        """What stands between two passages, in the place of `text[start:end]`."""
        ...


def fit_passages(text: str, passages: Sequence[Passage], characters_max: int, *, seam: Seam) -> str:
    """What those passages say that are worth most, within `characters_max`."""
    selection = _Selection(text=text, characters_max=characters_max, seam=seam)
    misses = 0
    worthy = [passage for passage in passages if passage.weight] or passages
    for passage in sorted(worthy, key=_worthiest_first):
        misses_max = _MISSES_MAX if passage.weight >= TELLING_WEIGHT else 0
        if misses > misses_max:
            break
        if not selection.take(passage):
            misses += 1
    return selection.joined()


def _worthiest_first(passage: Passage) -> tuple[int, int, int]:
    return -passage.weight, passage.order, passage.start


@dataclass(slots=True, kw_only=True)
class _Selection:
    text: str
    characters_max: int
    seam: Seam
    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    used: int = 0

    def __post_init__(self) -> None:
        self.used = len(self.seam(self.text, 0, len(self.text)))

    def take(self, passage: Passage) -> bool:
        """All of it if there is room, else a beginning that is worth it."""
        start, end = passage.start, passage.end
        if self._insert(start, end):
            return passage.closing is None or self._close(start, passage.closing)
        room = self._room_for_beginning(start)
        if passage.closing is not None or room < _WORTH_CUTTING_CHARACTERS:
            return False
        return self._insert(start, min(end, place_to_stop(self.text, start, room)))

    def joined(self) -> str:
        pieces: list[str] = []
        before = 0
        for start, end in zip(self.starts, self.ends, strict=True):
            pieces += (self.seam(self.text, before, start), self.text[start:end])
            before = end
        pieces.append(self.seam(self.text, before, len(self.text)))
        return "".join(pieces)

    def _close(self, start: int, closing: tuple[int, int]) -> bool:
        """Or takes back what begins at `start` and would stay open."""
        if self._insert(*closing):
            return True
        place = self.starts.index(start)
        end = self.ends[place]
        del self.starts[place], self.ends[place]
        left, right = self._neighbours(place)
        self.used -= self._growth(left, start, end, right)
        return False

    def _insert(self, start: int, end: int) -> bool:
        if end <= start or not (may_cut(self.text, start) and may_cut(self.text, end)):
            return False
        place = bisect(self.starts, start)
        left, right = self._neighbours(place)
        if start < left or end > right:
            return False
        used = self.used + self._growth(left, start, end, right)
        if used > self.characters_max:
            return False
        self.starts.insert(place, start)
        self.ends.insert(place, end)
        self.used = used
        return True

    def _room_for_beginning(self, start: int) -> int:
        left, right = self._neighbours(bisect(self.starts, start))
        seams = self._growth(left, start, start + 1, right) - 1
        return self.characters_max - self.used - seams - _SEAMS_DIFFER_BY

    def _neighbours(self, place: int) -> tuple[int, int]:
        left = self.ends[place - 1] if place else 0
        return left, self.starts[place] if place < len(self.starts) else len(self.text)

    def _growth(self, left: int, start: int, end: int, right: int) -> int:
        seams = len(self.seam(self.text, left, start)) + len(self.seam(self.text, end, right))
        return end - start + seams - len(self.seam(self.text, left, right))


def summary_seam(text: str, start: int, end: int) -> str:
    """Says what is missing, and keeps lines apart that were apart."""
    length = end - start
    gap = text[start:end] if length <= _BLANK_GAP_CHARACTERS else ""
    if length <= _BLANK_GAP_CHARACTERS and not gap.strip():
        return "" if start == 0 or end == len(text) else _blank_between(gap)
    is_long = length >= LONG_GAP_CHARACTERS
    mark = f"[… {length:,} characters left out …]" if is_long else "[…]"
    before = "" if start == 0 else "\n" if is_long and text[start] == "\n" else " "
    after = "" if end == len(text) else "\n" if text[end - 1] == "\n" else " "
    mark = f"{before}{mark}{after}"
    return gap if gap and length <= len(mark) else mark


def gist_seam(text: str, start: int, end: int) -> str:
    """Short, and silent where the text begins or a sentence was said to its end."""
    if start == 0:
        return ""
    gap = text[start : min(end, start + _BLANK_GAP_CHARACTERS)]
    if end < len(text):
        blank = end - start <= len(gap) and not gap.strip()
        return gap[:1] if blank else f" {MARK_OF_A_CUT} "
    ended = not gap.strip() or gap[0] == "\n" or text[start - 1] in _ENDS_OF_SENTENCES
    return "" if ended else MARK_OF_A_CUT


def _blank_between(gap: str) -> str:
    return "\n\n" if gap.count("\n") > 1 else "\n" if "\n" in gap else gap[:1]
