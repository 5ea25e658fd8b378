"""Cuts, cleans and samples text, and fits the best passages of it into a size.

A text is never cut inside a grapheme. Only the beginning and the end of a very long text are
read. All shortening in the server goes through here.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Final

from msgspec import Struct, field

MARK_OF_A_CUT: Final = "…"

_JOINER: Final = "\u200d"
_COMBINING_CATEGORIES: Final = ("Mn", "Me", "Mc")
_COMBINING_RANGES: Final = (
    ("\u200c", "\u200d"),  # joiners
    ("\u1160", "\u11ff"),  # vowels and endings of Hangul
    ("\ud7b0", "\ud7ff"),
    ("\U0001f3fb", "\U0001f3ff"),  # skin tones
    ("\U000e0020", "\U000e007f"),  # tags, in flags of regions
)
_FLAG_LETTERS: Final = "".join(map(chr, range(0x1F1E6, 0x1F200)))
_FLAG_LETTERS_MAX: Final = 512
"""How far back the start of a row of flags is searched. Deep inside a longer row it is unknown
which two letters form a flag, so nothing is cut there."""
_SOUGHT_CHARACTERS_MAX: Final = 1_024
_VIRAMA: Final = 9
"""The combining class of signs that join the next consonant to this one."""


def cut(text: str, characters_max: int) -> str:
    """Shortens a text to its beginning and a mark, if it is too long."""
    if len(text) <= characters_max:
        return text
    if characters_max < 1:
        return ""
    return text[: place_to_stop(text, 0, characters_max - 1)] + MARK_OF_A_CUT


def size_of(text: str) -> int:
    """Returns the size in bytes of UTF-8, of which about four make a token in every script."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def characters_within(text: str, start: int, size_max: int) -> int:
    """Returns how many characters from `start` on fit into that size."""
    beginning = text[start : start + max(0, size_max)]
    if beginning.isascii():
        return len(beginning)
    encoded = beginning.encode("utf-8", "surrogatepass")[: max(0, size_max)]
    return len(encoded.decode("utf-8", "ignore"))


def cut_to_size(text: str, size_max: int) -> str:
    """Shortens a text like `cut`, to a limit in bytes of UTF-8."""
    if size_of(text) <= size_max:
        return text
    room = characters_within(text, 0, size_max - size_of(MARK_OF_A_CUT))
    return cut(text, room + 1) if size_max >= size_of(MARK_OF_A_CUT) else ""


def place_to_stop(text: str, start: int, characters_max: int) -> int:
    """Returns the best place to end a passage that begins at `start`; `start` itself if even the
    first grapheme is too long."""
    limit = start + characters_max
    if limit >= len(text):
        return len(text)
    if not text[limit].isspace():
        places = range(limit - 1, start + characters_max // 2, -1)
        limit = next((place for place in places if text[place].isspace()), limit)
    while limit > start and (text[limit - 1].isspace() or not may_cut(text, limit)):
        limit -= 1
    return limit


def place_to_resume(text: str, start: int, end: int) -> int:
    """Returns the first good place from `start` on to begin a passage; `end` if there is none."""
    middle = start + (end - start) // 2
    if start > 0 and not text[start - 1].isspace():
        middle = min(middle, start + _SOUGHT_CHARACTERS_MAX)
        start = next((i for i in range(start, middle) if text[i].isspace()), start)
    for place in range(start, min(end, start + _SOUGHT_CHARACTERS_MAX)):
        if not text[place].isspace() and may_cut(text, place):
            return place
    return end


def may_cut(text: str, place: int) -> bool:
    """Whether a cut at `place` splits no grapheme."""
    if place <= 0 or place >= len(text):
        return True
    before, after = text[place - 1], text[place]
    if before < "\u0300" and after < "\u0300":
        return not (before == "\r" and after == "\n")
    if before == _JOINER or unicodedata.category(after) in _COMBINING_CATEGORIES:
        return False
    if any(first <= after <= last for first, last in _COMBINING_RANGES):
        return False
    if unicodedata.combining(before) == _VIRAMA:
        return unicodedata.category(after) != "Lo"
    if before in _FLAG_LETTERS and after in _FLAG_LETTERS:
        near = text[max(0, place - _FLAG_LETTERS_MAX) : place]
        letters = len(near) - len(near.rstrip(_FLAG_LETTERS))
        return letters % 2 == 0 and (letters < len(near) or letters == place)
    return True


def one_line(text: str) -> str:
    """Replaces every run of white space, line ends included, by one space."""
    return " ".join(text.split())


# Reading is bounded: a long text is sampled at its beginning and its end, so ten megabytes cost as
# much as a tenth of one. Only `str.find` and `str.count` scan the whole text.

HEAD_CHARACTERS: Final = 96 * 1024
TAIL_CHARACTERS: Final = 32 * 1024
HEAD_LINES: Final = 1_500
TAIL_LINES: Final = 500

LINE_END: Final = "\n"

_TO_A_GOOD_PLACE: Final = 512


class TextLine(Struct, frozen=True, kw_only=True):
    """A line that is not blank, with its indentation and without its line end."""

    start: int
    end: int
    text: str


def sampled_ranges(text: str) -> list[tuple[int, int]]:
    length, head_end = len(text), len(text)
    if text.count(LINE_END, 0, HEAD_CHARACTERS + TAIL_CHARACTERS) > HEAD_LINES + TAIL_LINES:
        head_end = -1
        for _ in range(HEAD_LINES):
            head_end = text.find(LINE_END, head_end + 1)
    if length <= HEAD_CHARACTERS + TAIL_CHARACTERS and head_end == length:
        return [(0, length)]
    if head_end > HEAD_CHARACTERS:
        head_end = place_to_stop(text, HEAD_CHARACTERS - _TO_A_GOOD_PLACE, _TO_A_GOOD_PLACE)
    tail_begin = max(head_end, length - TAIL_CHARACTERS)
    tail_start = length
    for _ in range(TAIL_LINES):
        tail_start = text.rfind(LINE_END, tail_begin, tail_start)
        if tail_start < 0:
            tail_start = tail_begin - 1
            break
    return [(0, head_end), (place_to_resume(text, tail_start + 1, length), length)]


def lines_of(text: str, start: int, end: int) -> list[TextLine]:
    lines: list[TextLine] = []
    for line in text[start:end].split("\n"):
        if line and not line.isspace():
            bare = line.rstrip()
            lines.append(TextLine(start=start, end=start + len(bare), text=bare))
        start += len(line) + 1
    return lines


def sampled_lines(text: str) -> list[TextLine]:
    return [line for start, end in sampled_ranges(text) for line in lines_of(text, start, end)]


def counted(number: int, name: str) -> str:
    return f"{number:,} {name}" if number == 1 else f"{number:,} {name}s"


def clean_text(text: str) -> str:
    """Replaces lone surrogates, which UTF-8 can't encode, by U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


# A passage is a range of the text with a weight. The heaviest are selected first and shown in the
# text's order, with a mark where something was left out: a summary contains only the text's own
# words.

LONG_GAP_CHARACTERS: Final = 1_000
"""The mark of a gap of this size or more states how large it is."""
TELLING_WEIGHT: Final = 50
"""Passages of at least this weight say what the text is about; the others fill remaining space."""

REST_WEIGHT: Final = 10
"""The weight of an ordinary line or sentence."""

_BLANK_GAP_CHARACTERS: Final = 64
_WORTH_CUTTING_SIZE: Final = 40
_SEAMS_DIFFER_BY: Final = 2
_MISSES_MAX: Final = 40
"""How many telling passages may fail to fit before the search for shorter ones stops. Passages that
only fill space stop at the first that does not fit."""
_ENDS_OF_SENTENCES: Final = ".!?。！？؟।:;…"


class Passage(Struct, frozen=True, kw_only=True):
    start: int
    end: int
    weight: int
    """How much the passage is worth; 0 if it is shown only when there is nothing else."""
    order: int = 0
    """The rank among passages of the same weight; the lowest is selected first."""
    is_heading: bool = False
    """Whether it names a topic without saying much about it."""
    closing: tuple[int, int] | None = None
    """A second range that must be shown too, like the end of an opened code fence."""


def passage_of(text: str, line: TextLine, weight: int, characters_max: int) -> Passage:
    """Returns the beginning of a line as a passage."""
    end = line.end
    if end - line.start > characters_max:
        end = min(end, place_to_stop(text, line.start, characters_max))
    return Passage(start=line.start, end=end, weight=weight)


def fit_passages(
    text: str, passages: Sequence[Passage], size_max: int, *, seam: Callable[[str, int, int], str]
) -> str:
    """Joins the heaviest passages that fit into `size_max`. `seam` returns the text that replaces
    the gap between two places."""
    selection = _Selection(text=text, seam=seam, room=size_max - size_of(seam(text, 0, len(text))))
    misses = 0
    worthy = [passage for passage in passages if passage.weight] or passages
    for passage in sorted(worthy, key=lambda each: (-each.weight, each.order, each.start)):
        misses_max = _MISSES_MAX if passage.weight >= TELLING_WEIGHT else 0
        if misses > misses_max:
            break
        if not selection.take(passage):
            misses += 1
    pieces: list[str] = []
    before = 0
    for start, end in selection.taken:
        pieces += (seam(text, before, start), text[start:end])
        before = end
    return "".join([*pieces, seam(text, before, len(text))])


class _Selection(Struct, kw_only=True):
    text: str
    seam: Callable[[str, int, int], str]
    room: int
    taken: list[tuple[int, int]] = field(default_factory=list)
    """The selected ranges, in the text's order."""

    def take(self, passage: Passage) -> bool:
        """Adds the passage, or its beginning if there is no room for all of it and the beginning is
        long enough to be useful."""
        start, end, closing = passage.start, passage.end, passage.closing
        before = (self.taken[:], self.room) if closing else None
        if self._insert(start, end) and (closing is None or self._insert(*closing)):
            return True
        if before is not None:
            # An opened fence without its end must not stay.
            self.taken, self.room = before
            return False
        _, left, right = self._gap(start)
        seams = self._growth(left, start, start + 1, right) - size_of(self.text[start : start + 1])
        room = self.room - seams - _SEAMS_DIFFER_BY
        if room < _WORTH_CUTTING_SIZE:
            return False
        characters = characters_within(self.text, start, room)
        return self._insert(start, min(end, place_to_stop(self.text, start, characters)))

    def _insert(self, start: int, end: int) -> bool:
        if end <= start or not (may_cut(self.text, start) and may_cut(self.text, end)):
            return False
        place, left, right = self._gap(start)
        if start < left or end > right:
            return False
        room = self.room - self._growth(left, start, end, right)
        if room < 0:
            return False
        self.taken.insert(place, (start, end))
        self.room = room
        return True

    def _gap(self, start: int) -> tuple[int, int, int]:
        """Returns the index among the selected ranges, the end of the one before and the start of
        the next."""
        place = bisect(self.taken, start, key=itemgetter(0))
        left = self.taken[place - 1][1] if place else 0
        right = self.taken[place][0] if place < len(self.taken) else len(self.text)
        return place, left, right

    def _growth(self, left: int, start: int, end: int, right: int) -> int:
        text, seam = self.text, self.seam
        grown = text[start:end] + seam(text, left, start) + seam(text, end, right)
        return size_of(grown) - size_of(seam(text, left, right))


def summary_separator(text: str, start: int, end: int) -> str:
    """Marks what is left out of a summary, and keeps separate lines separate."""
    length = end - start
    gap = text[start:end] if length <= _BLANK_GAP_CHARACTERS else ""
    if length <= _BLANK_GAP_CHARACTERS and not gap.strip():
        if start == 0 or end == len(text):
            return ""
        return "\n\n" if gap.count("\n") > 1 else "\n" if "\n" in gap else gap[:1]
    is_long = length >= LONG_GAP_CHARACTERS
    mark = f"[… {length:,} characters left out …]" if is_long else "[…]"
    before = "" if start == 0 else "\n" if is_long and text[start] == "\n" else " "
    after = "" if end == len(text) else "\n" if text[end - 1] == "\n" else " "
    mark = f"{before}{mark}{after}"
    return gap if gap and length <= len(mark) else mark


def gist_separator(text: str, start: int, end: int) -> str:
    """Marks what is left out of a gist briefly; not at its start, nor after a complete sentence."""
    if start == 0:
        return ""
    gap = text[start : min(end, start + _BLANK_GAP_CHARACTERS)]
    if end < len(text):
        blank = end - start <= len(gap) and not gap.strip()
        return gap[:1] if blank else f" {MARK_OF_A_CUT} "
    ended = not gap.strip() or gap[0] == "\n" or text[start - 1] in _ENDS_OF_SENTENCES
    return "" if ended else MARK_OF_A_CUT


class PassageOutline(Struct, frozen=True, kw_only=True):
    text: str
    passages: Sequence[Passage]
    of_gist: Sequence[Passage] = ()
    """The passages of the gist; if empty, the telling ones of `passages`."""
    label: str = ""
    """A description of the whole text, in brackets."""

    def summary(self, size_max: int) -> str:
        label = f"{self.label}\n" if self.label else ""
        room = size_max - size_of(label)
        return label + fit_passages(self.text, self.passages, room, seam=summary_separator)

    def gist(self, size_max: int) -> str:
        label = f"{self.label} " if self.label else ""
        telling = self.of_gist or [
            p for p in self.passages if p.weight >= TELLING_WEIGHT and not p.is_heading
        ]
        room = size_max - size_of(label)
        quoted = fit_passages(self.text, telling or self.passages, room, seam=gist_separator)
        # A text that is only white space, or one endless grapheme, has nothing to quote.
        gist = one_line(label + quoted) or summary_separator(self.text, 0, len(self.text))
        return cut_to_size(gist or "[blank]", size_max)
