"""What a word is, for searching: a run of letters and digits, seen plainly.

Case, width, accents and the like are taken away, so that "Käse", "kase" and
"ＫÄＳＥ" are one word. Scripts that are written without blanks between words give
a word for each character; whoever looks for several of them looks for them side
by side. A change here that makes other words of the same text raises
`WORDS_VERSION`: an index made with the old ones is made anew.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

WORDS_VERSION: Final = 1

WORD_CHARACTERS_MAX: Final = 64
"""A longer word is taken for its beginning: nobody types the rest of a key."""

UNSPACED: Final = (
    "\u0e00-\u0eff"  # Thai, Lao
    "\u0f00-\u0fff"  # Tibetan
    "\u1000-\u109f"  # Burmese
    "\u1100-\u11ff"  # Hangul, in pieces
    "\u1780-\u17ff"  # Khmer
    "\u2e80-\u2fdf"  # radicals
    "\u3005-\u3007"  # 々 〆 〇
    "\u3031-\u3035\u3038-\u303c"
    "\u3041-\u30fa\u30fc-\u31ff"  # Kana, Bopomofo, Hangul letters
    "\u3400-\u4dbf\u4e00-\u9fff"  # Chinese characters
    "\ua960-\ua97f\uac00-\ud7ff"  # Hangul
    "\uf900-\ufaff\U00020000-\U0003ffff"  # more Chinese characters
)
"""Characters of scripts without blanks between words, as ranges for a pattern."""

_ASCII_WORDS = re.compile("[0-9a-z]+")
# Indian scripts write vowels as marks, which are no letters but part of the word.
_SPACED = rf"(?:[^\W_{UNSPACED}]+|[\u0900-\u0963\u0966-\u0dff]+)+"
_UNSPACED = re.compile(f"[{UNSPACED}]")
_WORDS = re.compile(f"[{UNSPACED}]|{_SPACED}")
_WANTED = re.compile(f"[{UNSPACED}]+|{_SPACED}")
_UNSEEN = re.compile(
    "["
    "\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f"  # accents
    "\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7"  # Hebrew points
    "\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06dc\u06df-\u06e4"  # Arabic vowels
    "\u00ad\u200b-\u200f\u2060\ufe00-\ufe0f\ufeff"  # what only layout cares for
    "]"
)


def words(text: str) -> list[str]:
    """In the order of the text."""
    if text.isascii():
        found: list[str] = _ASCII_WORDS.findall(text.lower())
    else:
        found = _WORDS.findall(_plain(text))
    if max(map(len, found), default=0) > WORD_CHARACTERS_MAX:
        found = [word[:WORD_CHARACTERS_MAX] for word in found]
    return found


def _plain(text: str) -> str:
    """Composed again at the end: what is left apart was an accent."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    bare = _UNSEEN.sub("", unicodedata.normalize("NFKD", folded))
    return unicodedata.normalize("NFC", bare)


def wanted_words(query: str) -> list[str]:
    """As `words`, but a run of characters of a script without blanks is one: its
    words with blanks between them."""
    found = (run[:WORD_CHARACTERS_MAX] for run in _WANTED.findall(_plain(query)))
    return [" ".join(run) if _UNSPACED.match(run) else run for run in found]
