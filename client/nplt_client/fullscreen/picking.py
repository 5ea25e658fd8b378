"""Finding one of many by a few letters. Pure.

Words typed in order and whole count more than letters strewn about; among
equals the order given (newest first) stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from rapidfuzz import fuzz, utils

_SCORE_MIN = 70.0
_LOOKED_AT_CHARACTERS = 500


def ranked(wanted: str, texts: Mapping[str, str]) -> list[str]:
    """The keys of the texts that fit, best first."""
    typed = utils.default_process(wanted) or wanted.strip().lower()
    if not typed:
        return list(texts)
    scores = {key: score(typed, text) for key, text in texts.items()}
    fitting = [key for key, points in scores.items() if points >= _SCORE_MIN]
    return sorted(fitting, key=lambda key: -scores[key])


def score(typed: str, text: str) -> float:
    """0 to 100; what holds the very words is above all that only resembles them."""
    said = text[:_LOOKED_AT_CHARACTERS].lower()
    if typed in said:
        return 100.0
    words = typed.split()
    if all(word in said for word in words):
        return 95.0
    if len(typed) < 3:
        return 0.0
    return 0.9 * fuzz.partial_ratio(typed, said)


def age(then: str, now: datetime) -> str:
    """How long ago, in one unit: `3 min`, `2 d`."""
    try:
        seconds = (now - datetime.fromisoformat(then)).total_seconds()
    except (ValueError, TypeError):
        return ""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{int(seconds // length)} {unit}"
    return "now"
