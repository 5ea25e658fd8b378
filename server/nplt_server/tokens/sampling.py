"""Counting a text of any length in bounded time.

Counting holds the interpreter, in a thread as well, so the length of what is
counted is the length of a stall for everyone. Up to `WHOLE_CHARACTERS_MAX` a
text is counted as it is; of a longer one as many characters are looked at, in
pieces spread evenly over it, and the rest is taken to be like them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

WHOLE_CHARACTERS_MAX: Final = 64 * 1024
SAMPLE_CHARACTERS: Final = 1024
_SAMPLES: Final = WHOLE_CHARACTERS_MAX // SAMPLE_CHARACTERS


def counted_in_samples(text: str, count: Callable[[str], int]) -> int:
    """By `count` for a text that is not too long, else by its rate over the samples."""
    if len(text) <= WHOLE_CHARACTERS_MAX:
        return count(text)
    last = len(text) - SAMPLE_CHARACTERS
    starts = (last * place // (_SAMPLES - 1) for place in range(_SAMPLES))
    sampled = sum(count(text[start : start + SAMPLE_CHARACTERS]) for start in starts)
    return math.ceil(sampled * len(text) / WHOLE_CHARACTERS_MAX)
