"""Sentences of a running text, and which of them are telling.

Rules that hold for most scripts: a full stop ends a sentence when white space
follows and the next word does not go on in small letters; 。！？ end one always.
"""

from __future__ import annotations

import re
from typing import Final

_STOPS: Final = re.compile(r"[.!?…]+|[。！？؟।॥]+")
_ALWAYS_END: Final = "。！？؟।॥"
_CLOSERS: Final = "\"'”’»)]）」』】*_`"
_CLOSERS_MAX: Final = 4
_ABBREVIATIONS: Final = frozenset(
    {"e.g", "i.e", "etc", "vs", "cf", "approx", "dr", "mr", "mrs", "ms", "prof", "nr", "fig"}
    | {"ca", "bzw", "z.b", "u.a", "d.h"}
)

_FILLER: Final = re.compile(
    r"(?:sure|certainly|of course|absolutely|great|good question|ok|okay|alright|no problem|cheers"
    r"|gerne|natürlich|bien sûr|claro)[,.!:]"
    r"|(?:hi|hello|hey|thanks|thank you|i hope|let me know|please let me know|feel free|happy to"
    r"|glad to|you're welcome|best regards|kind regards|if you have any|good morning|good evening"
    r"|here is|here are|here's|hallo|danke|bonjour|merci|hola|gracias)\b"
    r"|好的|当然|你好|谢谢|はい|もちろん|こんにちは|네|안녕",
    re.IGNORECASE,
)
_FILLER_CHARACTERS_MAX: Final = 120
_FILLER_WORTH_MAX: Final = 3
_CONCLUSION: Final = re.compile(
    r"\b(?:in short|in summary|therefore|conclusion|overall|tl;dr|decided|the result|the cause"
    r"|root cause|must|need(?:s|ed)? to|please|want|expected|instead)\b",
    re.IGNORECASE,
)


def sentences_of(text: str, start: int, end: int) -> list[tuple[int, int]]:
    """The places of the sentences between `start` and `end`, white space apart."""
    found: list[tuple[int, int]] = []
    begin = start
    for stop in _STOPS.finditer(text, start, end):
        after = _skip_closers(text, stop.end(), end)
        if stop.start() < begin or not _ends_sentence(text, begin, stop.start(), after, end):
            continue
        found.append((begin, after))
        begin = after
        while begin < end and text[begin].isspace():
            begin += 1
    last = end
    while last > begin and text[last - 1].isspace():
        last -= 1
    if last > begin:
        found.append((begin, last))
    return found


def is_filler(sentence: str) -> bool:
    """Says hello, thanks or yes, and nothing of the matter."""
    if len(sentence) > _FILLER_CHARACTERS_MAX or is_question(sentence):
        return False
    if _FILLER.match(sentence.lstrip("*_> \t\n")) is None:
        return False
    return telling(sentence) <= _FILLER_WORTH_MAX


def is_question(sentence: str) -> bool:
    return sentence.rstrip(_CLOSERS).endswith(("?", "？", "؟"))


def telling(sentence: str) -> int:
    """0 to 20: names, numbers, paths and decisions rather than filler."""
    worth = 0
    worth += 5 * any(character.isdigit() for character in sentence)
    worth += 5 * ("/" in sentence or "\\" in sentence or "_" in sentence)
    worth += 4 * ("`" in sentence or '"' in sentence or "“" in sentence)
    worth += 2 * any(word[:1].isupper() for word in sentence.split()[1:])
    worth += 4 * (_CONCLUSION.search(sentence) is not None)
    return worth


def _skip_closers(text: str, place: int, end: int) -> int:
    limit = min(end, place + _CLOSERS_MAX)
    while place < limit and text[place] in _CLOSERS:
        place += 1
    return place


def _ends_sentence(text: str, begin: int, stop: int, after: int, end: int) -> bool:
    if text[stop] in _ALWAYS_END or after >= end:
        return True
    if not text[after].isspace():
        return False
    following = text[after : after + 8].lstrip()
    if following[:1].islower():
        return False
    if text[stop] != ".":
        return True
    words = text[max(begin, stop - 12) : stop].split()
    word = words[-1].lstrip("(\"'").lower() if words else ""
    is_number_of_list = stop - begin <= 3 and word.isdigit()
    is_initial = len(word) == 1 and word.isalpha()
    return word not in _ABBREVIATIONS and not is_number_of_list and not is_initial
