"""Counts tokens: exactly where a vocabulary is installed, else by estimate.

`best_counter` picks the o200k vocabulary (the `tokens` extra) or the estimate from kinds
of characters. Long texts are counted in samples, in bounded time. `Correction` adjusts
counts to the tokens that a model's provider charged. Conversations use `TokenCounting`, which
loads the counter in a thread on first use and holds the correction.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Final, Protocol

from msgspec import Struct, field

from nplt_server.digest.text import clean_text

WHOLE_CHARACTERS_MAX: Final = 64 * 1024
SAMPLE_CHARACTERS: Final = 1024
_SAMPLES: Final = WHOLE_CHARACTERS_MAX // SAMPLE_CHARACTERS


def counted_in_samples(text: str, count: Callable[[str], int]) -> int:
    """Counts a short text with `count`, and extrapolates a long one from evenly spread samples,
    because counting blocks the interpreter even in a thread."""
    if len(text) <= WHOLE_CHARACTERS_MAX:
        return count(text)
    last = len(text) - SAMPLE_CHARACTERS
    starts = (last * place // (_SAMPLES - 1) for place in range(_SAMPLES))
    sampled = sum(count(text[start : start + SAMPLE_CHARACTERS]) for start in starts)
    return math.ceil(sampled * len(text) / WHOLE_CHARACTERS_MAX)


# The estimate by kinds of characters: every character is translated to the letter of its kind (one
# table, in C); then words, groups of digits, marks and ideographs are counted at their average
# cost in o200k. The weights were fitted to texts in thirty languages and a dozen notations. They
# are slightly high on purpose: an overestimated context is trimmed early, an underestimated one is
# refused.

OTHER: Final = "o"
BEYOND: Final = "?"
"""The kind of characters beyond the first plane, mostly emoji. They are not in the table, so they
stay untranslated, and encoding replaces them by this character."""

_KINDS: Final = (
    # first, last, kind; a later row wins
    (0x0000, 0x007F, "."),  # marks of ASCII
    (0x0020, 0x0020, " "),
    (0x0009, 0x0009, "T"),
    (0x000A, 0x000A, "n"),
    (0x000D, 0x000D, "n"),
    (0x0030, 0x0039, "0"),
    (0x0041, 0x005A, "A"),
    (0x0061, 0x007A, "a"),
    (0x00A0, 0x00BF, "s"),
    (0x00C0, 0x024F, "e"),  # Latin letters with accents
    (0x0100, 0x017F, "x"),  # those of Eastern Europe, which cost more
    (0x0300, 0x036F, "e"),  # combining accents
    (0x0370, 0x03FF, "g"),  # Greek
    (0x0400, 0x052F, "c"),  # Cyrillic
    (0x0530, 0x058F, "m"),  # Armenian
    (0x0590, 0x05FF, "w"),  # Hebrew
    (0x0600, 0x077F, "r"),  # Arabic
    (0x0900, 0x097F, "d"),  # Devanagari
    (0x0980, 0x0DFF, "i"),  # the other scripts of India
    (0x0E00, 0x0E7F, "t"),  # Thai
    (0x10A0, 0x10FF, "m"),  # Georgian
    (0x1100, 0x11FF, "k"),  # Hangul
    (0x1E00, 0x1EFF, "e"),  # Vietnamese
    (0x1F00, 0x1FFF, "g"),
    (0x2000, 0x206F, "p"),  # dashes, typographic quotes
    (0x2070, 0x2BFF, "s"),  # arrows, mathematics, drawing
    (0x3000, 0x303F, "q"),  # marks of East Asia
    (0x3040, 0x30FF, "j"),  # kana
    (0x3130, 0x318F, "k"),
    (0x3400, 0x9FFF, "h"),  # ideographs
    (0xAC00, 0xD7AF, "k"),
    (0xF900, 0xFAFF, "h"),
    (0xFE00, 0xFE0F, "s"),
    (0xFF00, 0xFFEF, "q"),
)

_FREQUENT_IDEOGRAPHS: Final = (
    # Simplified characters, which most Chinese text uses. These are so frequent that they are often
    # one token together with their neighbours. Others are one token each, rare ones several.
    "的一是不了在人有我他这个们中来上大为和国地到以说时要就出会可也你对生能而子那得于着下自之年过发后作里"
    "用道行所然家种事成方多经么去法学如都同现当没动面起看定天分还进好小部其些主样理心她本前开但因只从想实日"
    "军者意无力它与长把机十民第公此已工使情明性知全三又关点正业外将两高间由问很最重并物手应战向头文体政美相"
    "见被利什二等产或新己制身果加西斯月话合回特代内信表化老给世位次度门任常先海通教儿原东声提立及比员解水名"
    "真论处走义各入几口认条平系气题活尔更别打女变四神总何电数安少报才结反受目太量再感建务做接必场件计管期市"
    "直德资命山金指克许统区保至队形社便空决治展马科司五基眼书非则听白却界达光放强即像难且权思王象完设式色路"
    "记南品住告类求据程北边死张该交规万取拉格望觉术领共确传师观清今切院让识候带导争运"
)

_PER_CHARACTER: Final = (
    (b"e", 0.55),  # in addition to the word that contains it
    (b"x", 1.1),
    (b"g", 0.51),
    (b"c", 0.37),
    (b"m", 0.43),
    (b"w", 0.57),
    (b"r", 0.415),
    (b"d", 0.44),
    (b"i", 0.52),
    (b"t", 0.48),
    (b"k", 0.91),
    (b"j", 0.7),
    (b"z", 0.53),
    (b"h", 1.27),
    (b"q", 1.3),
    (b"p", 1.5),
    (b"s", 1.4),
    (OTHER.encode(), 1.0),
    (BEYOND.encode(), 2.0),
)

_PER_PATTERN: Final = (
    (b"aA", 0.65),  # camelCase is two words
    (b"AA", 0.8),  # capitals are split into short tokens
    (b"..", 0.2),
    (b" 0", 1.0),  # the space before a number is a token of its own, unlike before a word
    (b"n", 0.1),
    (b"T", 0.6),
)


def _only(kinds: bytes, mark: bytes) -> bytes:
    """Returns a translation table that maps these kinds to `mark` and all others to a space."""
    return bytes(mark[0] if kind in kinds else 0x20 for kind in range(256))


_LETTERS: Final = _only(b"aAex", b"a")
_DIGITS: Final = _only(b"0", b"0")
_MARKS: Final = _only(b".", b".")
_SPACES: Final = _only(b" ", b"_")


@dataclass(frozen=True)
class FunctionCounter:
    """A token counter that is a function."""

    name: str
    count: Callable[[str], int]


class CharacterCounter:
    name = "characters"

    def count(self, text: str) -> int:
        return counted_in_samples(text, _estimated)


def _estimated(text: str) -> int:
    kinds = text.translate(_table()).encode("latin-1", "replace")
    letters = kinds.translate(_LETTERS)
    tokens = 1.07 * _runs(letters, b"a")
    # Most words of nine letters or more are several tokens; sixteen letters in a row are rarely a
    # word at all.
    tokens += 2.4 * letters.count(b"a" * 9) + 1.9 * letters.count(b"a" * 16)
    tokens += 1.25 * _runs(kinds.translate(_DIGITS).replace(b"000", b"0 "), b"0")
    tokens += 0.79 * _runs(kinds.translate(_MARKS), b".")
    # One space belongs to the word after it; several are a token of their own.
    tokens += 0.74 * _runs(kinds.translate(_SPACES).replace(b"__", b"+").replace(b"_", b" "), b"+")
    for pattern, weight in _PER_PATTERN:
        tokens += weight * kinds.count(pattern)
    if not text.isascii():
        for kind, weight in _PER_CHARACTER:
            tokens += weight * kinds.count(kind)
    return max(math.ceil(tokens), min(len(text), 1))


def _runs(marked: bytes, mark: bytes) -> int:
    return marked.count(b" " + mark) + marked.startswith(mark)


@cache
def _table() -> str:
    """Returns the kind of every character of the first plane, by code point."""
    kinds = [OTHER] * 0x10000
    for first, last, kind in _KINDS:
        kinds[first : last + 1] = kind * (last + 1 - first)
    for character in _FREQUENT_IDEOGRAPHS:
        kinds[ord(character)] = "z"
    return "".join(kinds)


def load_o200k() -> FunctionCounter | None:
    """Loads the exact counter, or returns None if rs-bpe (the extra `tokens`) is not installed. The
    package contains the vocabulary; nothing is downloaded. Takes a tenth of a second and 70 MB."""
    try:
        tokenizer = import_module("rs_bpe.bpe").openai.o200k_base()
    except ImportError:
        return None

    def count(text: str) -> int:
        try:
            return int(tokenizer.count(text))
        except UnicodeEncodeError:
            # A lone surrogate can't be sent either: the cleaned text is what is sent.
            return int(tokenizer.count(clean_text(text)))

    counter = FunctionCounter("o200k", lambda text: counted_in_samples(text, count))
    counter.count("the vocabulary is built at the first count")
    return counter


class TokenCounter(Protocol):
    """Counts the tokens of a text: exactly for models whose vocabulary it has, approximately for
    others, which `Correction` compensates. Special tokens spelled out in a text count as plain
    text."""

    @property
    def name(self) -> str:
        """Names the counter in every figure that it produced."""
        ...

    def count(self, text: str, /) -> int: ...


def best_counter() -> TokenCounter:
    """Returns the exact counter if its package is installed, else the estimate.

    Loading the vocabulary takes a tenth of a second or two: call it in a thread.
    """
    return load_o200k() or CharacterCounter()


EVEN: Final = 1000
RATIO_MIN: Final = 500
RATIO_MAX: Final = 2000
"""Ratios beyond these are cut: they are no difference of vocabularies but a mistake."""

COUNTED_MIN: Final = 200
"""A smaller context is mostly the provider's fixed overhead, so no ratio is learned from it."""

MODELS_MAX: Final = 64


class Correction(Struct, frozen=True, kw_only=True):
    """Corrects counts by what a provider charged, because vocabularies differ and providers add
    tokens around messages. After each call the ratio of charged to counted tokens moves halfway to
    the new one. Ratios are whole thousandths, so that figures are the same everywhere and a
    converted budget never grows."""

    ratios: Mapping[str, int] = field(default_factory=dict[str, int])
    """The ratio of charged to counted tokens in thousandths, by model, the last used one last."""

    def observe(self, model: str, counted: int, real: int, *, at_once: bool = False) -> Correction:
        """Takes in what one call was charged. `at_once`: goes all the way to the new ratio."""
        if counted < COUNTED_MIN or real <= 0:
            return self
        seen = min(max(real * EVEN // counted, RATIO_MIN), RATIO_MAX)
        known = self.ratios.get(model)
        if known is not None and not at_once:
            # Halfway, rounded up, or the last thousandth would never be reached.
            half = (abs(seen - known) + 1) // 2
            seen = known + half if seen > known else known - half
        others = {name: ratio for name, ratio in self.ratios.items() if name != model}
        while len(others) >= MODELS_MAX:
            del others[next(iter(others))]
        return Correction(ratios={**others, model: seen})

    def corrected(self, model: str, counted: int) -> int:
        return -(-counted * self.ratios.get(model, EVEN) // EVEN)

    def budget_in_counted(self, model: str, budget: int) -> int:
        """Returns the counted tokens for which the charged tokens stay within the budget."""
        return budget * EVEN // self.ratios.get(model, EVEN)


TOOL_TOKENS: Final = 8
"""Tokens of the format around each tool."""

_COUNTED_CHARACTERS_MAX: Final = 50_000


class TokenCounting:
    """Counts tokens, and learns a correction from the counts that providers report."""

    def __init__(self, own: TokenCounter | None = None) -> None:
        self._loading: asyncio.Future[TokenCounter] | None = None
        self._counter = own
        self._tools: tuple[str, int] = ("", 0)
        self.correction = Correction()

    async def counter(self) -> TokenCounter:
        if self._counter is None:
            if self._loading is None or self._loading.done():
                loop = asyncio.get_running_loop()
                self._loading = loop.run_in_executor(None, best_counter)
            # Shielded, so that a cancelled caller does not cancel the others.
            self._counter = await asyncio.shield(self._loading)
        return self._counter

    @property
    def now(self) -> TokenCounter:
        """The counter, once it is loaded."""
        assert self._counter is not None
        return self._counter

    def learn(self, model: str, *, counted: int, real: int, at_once: bool = False) -> None:
        """Learns from the number of input tokens that a provider reports."""
        self.correction = self.correction.observe(model, counted, real, at_once=at_once)

    def estimate(self, text: str) -> int:
        """Counts a long text by its beginning."""
        counted = text[:_COUNTED_CHARACTERS_MAX]
        return self.now.count(counted) * len(text) // len(counted) if counted else 0

    def tokens_of_tools(self, digest: str, texts: Sequence[str]) -> int:
        """The tokens of a tool offer, counted once for each digest."""
        known, tokens = self._tools
        if known != digest:
            tokens = TOOL_TOKENS * len(texts) + sum(map(self.now.count, texts))
            self._tools = (digest, tokens)
        return tokens
