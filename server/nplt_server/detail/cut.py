"""Where a text may be cut.

Never inside what is seen as one character: a letter and its accents, an emoji
and its skin or its family, the two halves of a flag, a syllable of Hangul. At
the end of a word where the script has spaces. All of the house's shortening
goes through here.
"""

from __future__ import annotations

import unicodedata
from typing import Final

MARK_OF_A_CUT: Final = "…"

_JOINER: Final = "\u200d"
_CLINGING_CATEGORIES: Final = ("Mn", "Me", "Mc")
_CLINGING_RANGES: Final = (
    ("\u200c", "\u200d"),  # joiners
    ("\u1160", "\u11ff"),  # vowels and endings of Hangul
    ("\ud7b0", "\ud7ff"),
    ("\U0001f3fb", "\U0001f3ff"),  # tones of skin
    ("\U000e0020", "\U000e007f"),  # tags: the flags of regions
)
_FLAG_LETTERS: Final = "".join(map(chr, range(0x1F1E6, 0x1F200)))
_FLAG_LETTERS_MAX: Final = 512
"""How far one looks back for where a row of flags begins; deep inside a longer one,
where nobody knows which two belong together, nothing is cut."""
_SOUGHT_CHARACTERS_MAX: Final = 1_024
_VIRAMA: Final = 9
"""The combining class of signs that melt the next consonant into this one."""


def cut(text: str, characters_max: int) -> str:
    """The text, or as much of its beginning as fits with a mark that there was more."""
    if len(text) <= characters_max:
        return text
    if characters_max < 1:
        return ""
    return text[: place_to_stop(text, 0, characters_max - 1)] + MARK_OF_A_CUT


def place_to_stop(text: str, start: int, characters_max: int) -> int:
    """The best place to end what begins at `start`; `start` itself where a single
    character, with all that clings to it, is already too long."""
    limit = start + characters_max
    if limit >= len(text):
        return len(text)
    if not text[limit].isspace():
        word_end = _last_space(text, start + characters_max // 2, limit)
        limit = word_end if word_end is not None else limit
    while limit > start and (text[limit - 1].isspace() or not may_cut(text, limit)):
        limit -= 1
    return limit


def place_to_resume(text: str, start: int, end: int) -> int:
    """The first good place from `start` on to begin a passage; `end` if there is none."""
    middle = start + (end - start) // 2
    if start > 0 and not text[start - 1].isspace():
        middle = min(middle, start + _SOUGHT_CHARACTERS_MAX)
        start = next((i for i in range(start, middle) if text[i].isspace()), start)
    for place in range(start, min(end, start + _SOUGHT_CHARACTERS_MAX)):
        if not text[place].isspace() and may_cut(text, place):
            return place
    return end


def may_cut(text: str, place: int) -> bool:
    """Whether nothing is torn between the characters before and after `place`."""
    if place <= 0 or place >= len(text):
        return True
    before, after = text[place - 1], text[place]
    if before < "\u0300" and after < "\u0300":
        return not (before == "\r" and after == "\n")
    if _clings(after) or before == _JOINER:
        return False
    if unicodedata.combining(before) == _VIRAMA:
        return unicodedata.category(after) != "Lo"
    if before in _FLAG_LETTERS and after in _FLAG_LETTERS:
        near = text[max(0, place - _FLAG_LETTERS_MAX) : place]
        letters = len(near) - len(near.rstrip(_FLAG_LETTERS))
        return letters % 2 == 0 and (letters < len(near) or letters == place)
    return True


def one_line(text: str) -> str:
    """Every run of white space, line ends above all, as one space."""
    return " ".join(text.split())


def _clings(character: str) -> bool:
    if unicodedata.category(character) in _CLINGING_CATEGORIES:
        return True
    return any(first <= character <= last for first, last in _CLINGING_RANGES)


def _last_space(text: str, start: int, end: int) -> int | None:
    return next((i for i in range(end - 1, start, -1) if text[i].isspace()), None)
