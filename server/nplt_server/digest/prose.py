"""Digests running text and Markdown: blocks, sentences, and which of them say most."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final, Literal, TypeAlias

from msgspec import Struct, structs

from nplt_server.digest.code import is_definition
from nplt_server.digest.text import (
    Passage,
    PassageOutline,
    TextLine,
    lines_of,
    place_to_resume,
    place_to_stop,
    sampled_ranges,
)

# ------------------------------------------------------------------------------
# Sentences
#
# A full stop ends a sentence if white space follows and the next word does not begin in lower
# case; 。！？ always do.

_STOPS: Final = re.compile(r"[.!?…]+|[。！？؟।॥]+")
_ALWAYS_END: Final = "。！？؟।॥"
_CLOSERS: Final = "\"'”’»)]）」』】*_`"
_CLOSERS_MAX: Final = 4
_ABBREVIATIONS: Final = frozenset(
    {"e.g", "i.e", "etc", "vs", "cf", "approx", "dr", "mr", "mrs", "ms", "prof", "nr", "fig"}
    | {"ca", "bzw", "z.b", "u.a", "d.h"}
)

_FILLER_PATTERN: Final = re.compile(
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
_ASCII_DIGIT: Final = re.compile("[0-9]")
_ASCII_CAPITAL_WORD: Final = re.compile(r"\s[A-Z]")
_CONCLUSION: Final = re.compile(
    r"\b(?:in short|in summary|therefore|conclusion|overall|tl;dr|decided|the result|the cause"
    r"|root cause|must|need(?:s|ed)? to|please|want|expected|instead)\b",
    re.IGNORECASE,
)
_CONCLUSION_STEMS: Final = (
    *("in short", "in summary", "therefore", "conclusion", "overall", "tl;dr", "decided"),
    *("the result", "the cause", "root cause", "must", "need", "please", "want", "expected"),
    "instead",
)
"""One of them is in whatever `_CONCLUSION` matches."""


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
    if _FILLER_PATTERN.match(sentence.lstrip("*_> \t\n")) is None:
        return False
    return informative(sentence) <= _FILLER_WORTH_MAX


def is_question(sentence: str) -> bool:
    return sentence.rstrip(_CLOSERS).endswith(("?", "？", "؟"))


def informative(sentence: str) -> int:
    """0 to 20: names, numbers, paths and decisions rather than filler."""
    worth = 0
    worth += 5 * _has_digit(sentence)
    worth += 5 * ("/" in sentence or "\\" in sentence or "_" in sentence)
    worth += 4 * ("`" in sentence or '"' in sentence or "“" in sentence)
    worth += 2 * _has_capital_inside(sentence)
    worth += 4 * _has_conclusion(sentence)
    return worth


def _has_digit(sentence: str) -> bool:
    if sentence.isascii():
        return _ASCII_DIGIT.search(sentence) is not None
    return any(character.isdigit() for character in sentence)


def _has_capital_inside(sentence: str) -> bool:
    """Whether a word after the first begins with a capital."""
    if sentence.isascii():
        return _ASCII_CAPITAL_WORD.search(sentence.lstrip()) is not None
    return any(word[:1].isupper() for word in sentence.split()[1:])


def _has_conclusion(sentence: str) -> bool:
    if sentence.isascii():
        lowered = sentence.lower()
        if not any(stem in lowered for stem in _CONCLUSION_STEMS):
            return False  # nearly always, and ten times as quick to find out
    return _CONCLUSION.search(sentence) is not None


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


BlockKind: TypeAlias = Literal["heading", "item", "fence", "table", "paragraph"]

_HEADING: Final = re.compile(r"#{1,6}[ \t]|\*\*[^*]{1,100}\*\*:?$")
_ITEM_PATTERN: Final = re.compile(r"[ \t]{0,40}(?:[-*+•·]|\d{1,3}[.)]|[a-z]\))[ \t]")
_FENCES: Final = ("```", "~~~")


class Block(Struct, frozen=True, kw_only=True):
    kind: BlockKind
    lines: list[TextLine]

    @property
    def start(self) -> int:
        return self.lines[0].start

    @property
    def end(self) -> int:
        return self.lines[-1].end


def blocks_of(text: str, start: int, end: int) -> list[Block]:
    blocks: list[Block] = []
    lines = iter(lines_of(text, start, end))
    for line in lines:
        kind = kind_of_line(line.text)
        if kind == "fence":
            blocks.append(Block(kind=kind, lines=_fenced(line, lines)))
        elif blocks and _goes_on(text, blocks[-1], line, kind):
            blocks[-1].lines.append(line)
        else:
            blocks.append(Block(kind=kind, lines=[line]))
    return blocks


def kind_of_line(line: str) -> BlockKind:
    bare = line.lstrip()
    if bare.startswith(_FENCES):
        return "fence"
    if bare.startswith("|"):
        return "table"
    if _HEADING.match(bare):
        return "heading"
    return "item" if _ITEM_PATTERN.match(line) else "paragraph"


def _goes_on(text: str, block: Block, line: TextLine, kind: BlockKind) -> bool:
    """A line below a paragraph or an item belongs to it, a row to the rows above."""
    above = ("table",) if kind == "table" else ("paragraph", "item")
    if kind not in ("table", "paragraph") or block.kind not in above:
        return False
    return text.count("\n", block.end, line.start) == 1


def _fenced(opening: TextLine, lines: Iterator[TextLine]) -> list[TextLine]:
    """From the opening fence to the closing one, or to the end of what there is."""
    fence = opening.text.lstrip()[:3]
    block = [opening]
    for line in lines:
        block.append(line)
        if line.text.strip().startswith(fence) and not line.text.strip().strip(fence[0]):
            break
    return block


# ------------------------------------------------------------------------------
# Prose
#
# Beginning and end, questions, headings and first list items, then the first sentence of each
# paragraph; names and numbers before filler. A greeting is not a beginning, an offer of more
# help not an end.

_BEGINNING: Final = 100
_END: Final = 96
_TITLE: Final = 92
_CHAPTER: Final = 84
_QUESTION: Final = 80
_NEAR_THE_ENDS: Final = 70
_PARAGRAPH: Final = 60
_ITEM_WORTH: Final = 58
_SNIPPET: Final = 48
_REST: Final = 10
_FILLER_WORTH: Final = 1

_PIECE_CHARACTERS_MAX: Final = 240
_PIECES_MAX: Final = 8
_SNIPPET_CHARACTERS_MAX: Final = 200
_SENTENCES_MAX: Final = 400
"""Of one paragraph; whoever writes more in one has said it by then."""


def outline_of_prose(text: str) -> PassageOutline:
    blocks = [b for start, end in sampled_ranges(text) for b in blocks_of(text, start, end)]
    running: list[Passage] = []
    others: list[Passage] = []
    for index, block in enumerate(blocks):
        found = running if block.kind in ("item", "paragraph") else others
        # Bits in reverse: taken in this order, few of many lie evenly between the first and
        # the last.
        order = int(f"{index:020b}"[::-1], 2)
        found += _PASSAGES[block.kind](text, block, order)
    return PassageOutline(text=text, passages=others + _with_both_ends(running))


def _heading(text: str, block: Block, order: int) -> Iterator[Passage]:
    line = block.lines[0].text.lstrip()
    depth = len(line) - len(line.lstrip("#"))
    weight = _TITLE if depth == 1 else _CHAPTER - 4 * depth
    for piece in _pieces(text, block.start, block.end, weight=weight, order=order):
        yield structs.replace(piece, is_heading=depth != 1)


def _running(text: str, block: Block, order: int) -> Iterator[Passage]:
    weight = _ITEM_WORTH if block.kind == "item" else _PARAGRAPH
    for start, end in sentences_of(text, block.start, block.end)[:_SENTENCES_MAX]:
        sentence = text[start:end]
        if is_filler(sentence):
            worth = _FILLER_WORTH
        else:
            worth = _QUESTION if is_question(sentence) else weight + informative(sentence) // 4
            weight = _REST
        yield from _pieces(text, start, end, weight=worth, order=order)


def _fence(text: str, block: Block, order: int) -> Iterator[Passage]:
    """A short one whole; of a long one how it begins and what it defines."""
    if block.end - block.start <= _SNIPPET_CHARACTERS_MAX or len(block.lines) < 4:
        yield Passage(start=block.start, end=block.end, weight=_SNIPPET, order=order)
        return
    opening, first, *inner, last = block.lines
    yield Passage(
        start=opening.start,
        end=min(first.end, place_to_stop(text, first.start, _PIECE_CHARACTERS_MAX)),
        weight=_SNIPPET,
        order=order,
        closing=(last.start, last.end),
    )
    for index, line in enumerate(inner):
        weight = _SNIPPET - 2 if is_definition(line.text) else _REST + 2 if index < 2 else _REST - 2
        yield from _pieces(text, line.start, line.end, weight=weight, order=order)


def _table(text: str, block: Block, order: int) -> Iterator[Passage]:
    for index, line in enumerate(block.lines):
        weight = _SNIPPET if index < 2 else _PARAGRAPH // 2 if index == 2 else _REST
        yield from _pieces(text, line.start, line.end, weight=weight, order=order)


def _pieces(text: str, start: int, end: int, *, weight: int, order: int) -> Iterator[Passage]:
    """A giant sentence in pieces: its beginning is worth most, its last words a little."""
    for _ in range(_PIECES_MAX):
        stop = min(end, place_to_stop(text, start, _PIECE_CHARACTERS_MAX))
        if stop <= start:
            return
        yield Passage(start=start, end=stop, weight=weight, order=order)
        weight = min(weight, _REST)
        start = stop
        while start < end and text[start].isspace():
            start += 1
        if start >= end:
            return
    resumed = place_to_resume(text, max(start, end - _PIECE_CHARACTERS_MAX), end)
    if resumed < end:
        yield Passage(start=resumed, end=end, weight=weight, order=order)


def _with_both_ends(running: list[Passage]) -> list[Passage]:
    """The first and the last that say something, and their neighbours, are worth most."""
    said = [index for index, passage in enumerate(running) if passage.weight > _FILLER_WORTH]
    raised = list(running)
    for indices, weight in (
        (said[1:2] + said[-2:-1], _NEAR_THE_ENDS),
        (said[-1:], _END),
        (said[:1], _BEGINNING),
    ):
        for index in indices:
            raised[index] = structs.replace(
                running[index], weight=max(weight, running[index].weight)
            )
    return raised


_PASSAGES: Final[Mapping[BlockKind, Callable[[str, Block, int], Iterator[Passage]]]] = {
    "heading": _heading,
    "item": _running,
    "paragraph": _running,
    "fence": _fence,
    "table": _table,
}
