"""Outlines prose: splits it into blocks and sentences, and weighs them.

Decisions, advice, requests, and errors in quoted text are worth most; then beginning and end,
headings and first list items, and the first sentence of each paragraph. Names and numbers are worth
more than filler. A greeting is not a beginning, an offer of more help not an end.

The words that tell decisions and greetings are English and Chinese, like the texts that measure
them. Without those of decisions a gist keeps half as many facts; the beginning, the end and the
errors alone keep a third, and a summary three quarters.

A full stop ends a sentence if white space follows and the next word does not begin in lower case;
。！？ always do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final, Literal, TypeAlias

from msgspec import Struct, structs

from nplt_server.digest.code import is_definition
from nplt_server.digest.listing import troubles_in
from nplt_server.digest.text import (
    REST_WEIGHT,
    Passage,
    PassageOutline,
    TextLine,
    lines_of,
    place_to_resume,
    place_to_stop,
    sampled_ranges,
)

_STOPS: Final = re.compile(r"[.!?…]+|[。！？؟।॥]+")
_ALWAYS_END: Final = "。！？؟।॥"
_CLOSERS: Final = "\"'”’»)]）」』】*_`"
_CLOSERS_MAX: Final = 4
_ABBREVIATIONS: Final = frozenset(
    {"e.g", "i.e", "etc", "vs", "cf", "approx", "dr", "mr", "mrs", "ms", "prof", "nr", "fig"}
)

_FILLER_PATTERN: Final = re.compile(
    r"(?:sure|certainly|of course|absolutely|great|good question|ok|okay|alright|no problem"
    r"|cheers)[,.!:]"
    r"|(?:hi|hello|hey|thanks|thank you|i hope|let me know|please let me know|feel free|happy to"
    r"|glad to|you're welcome|best regards|kind regards|if you have any|good morning|good evening"
    r"|here is|here are|here's)\b"
    r"|好的|当然|你好|谢谢",
    re.IGNORECASE,
)
_FILLER_CHARACTERS_MAX: Final = 120
_FILLER_WORTH_MAX: Final = 3
_ASCII_DIGIT: Final = re.compile("[0-9]")
_ASCII_CAPITAL_WORD: Final = re.compile(r"\s[A-Z]")
_SIGNALS: Final[Mapping[str, int]] = {
    # Decisions, advice, requests and findings
    **dict.fromkeys(("decid", "decision", "recommend", "suggest", "conclu", "verdict"), 6),
    **dict.fromkeys(("root cause", "the cause", "in short", "in summary", "tl;dr", "please"), 6),
    **dict.fromkeys(("决定", "建议", "结论", "结果表明", "根本原因", "总之", "综上", "请你"), 6),
    # Words that often accompany them
    **dict.fromkeys(("therefore", "overall", "the result", "must", "should", "need", "agreed"), 2),
    **dict.fromkeys(("instead", "expected", "want", "propos", "would choose", "deadline"), 2),
    **dict.fromkeys(("必须", "因此", "所以", "最终", "不要", "停止", "原因", "意见是", "综合"), 2),
}
"""Beginnings of words, with the weight that each adds to its sentence."""
_DECISIVE: Final = 4
_DECISIVE_MAX: Final = 12
_CONDITIONS: Final = ("if ", "whether", "should you", "如果", "是否")


def sentences_of(text: str, start: int, end: int) -> list[tuple[int, int]]:
    """Returns the ranges of the sentences between `start` and `end`, without white space around
    them."""
    found: list[tuple[int, int]] = []
    begin = start
    for stop in _STOPS.finditer(text, start, end):
        after = stop.end()
        closers_end = min(end, after + _CLOSERS_MAX)
        while after < closers_end and text[after] in _CLOSERS:
            after += 1
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
    """Whether a sentence is only a greeting, thanks or assent."""
    if len(sentence) > _FILLER_CHARACTERS_MAX or is_question(sentence):
        return False
    if _FILLER_PATTERN.match(sentence.lstrip("*_> \t\n")) is None:
        return False
    return informative(sentence) <= _FILLER_WORTH_MAX


def is_question(sentence: str) -> bool:
    return sentence[-_CLOSERS_MAX - 1 :].rstrip(_CLOSERS).endswith(("?", "？", "؟"))


def informative(sentence: str) -> int:
    """Rates from 0 to 16 how many names, numbers, paths and quotations a sentence has."""
    if sentence.isascii():
        has_digit = _ASCII_DIGIT.search(sentence) is not None
        has_name = _ASCII_CAPITAL_WORD.search(sentence.lstrip()) is not None
    else:
        has_digit = any(map(str.isdigit, sentence))
        has_name = any(word[:1].isupper() for word in sentence.split()[1:])
    has_path = "/" in sentence or "\\" in sentence or "_" in sentence
    is_quoting = "`" in sentence or '"' in sentence or "“" in sentence
    return 5 * has_digit + 5 * has_path + 4 * is_quoting + 2 * has_name


def decisiveness(sentence: str, signals: Mapping[str, int]) -> int:
    """Rates how much a sentence sounds like a decision, advice, a request or a finding."""
    if not signals:
        return 0
    lowered = sentence.lower()
    points = sum(worth for word, worth in signals.items() if word in lowered)
    return points - 3 if points and lowered.startswith(_CONDITIONS) else points


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
FENCES: Final = ("```", "~~~")


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
        if blocks and _goes_on(text, blocks[-1], line, kind):
            blocks[-1].lines.append(line)
            continue
        blocks.append(Block(kind=kind, lines=[line]))
        if kind == "fence":
            # The block extends to the closing fence, or to the end of the text.
            fence = line.text.lstrip()[:3]
            for inner in lines:
                blocks[-1].lines.append(inner)
                bare = inner.text.strip()
                if bare.startswith(fence) and not bare.strip(fence[0]):
                    break
    return blocks


def kind_of_line(line: str) -> BlockKind:
    bare = line.lstrip()
    if bare.startswith(FENCES):
        return "fence"
    if bare.startswith("|"):
        return "table"
    if _HEADING.match(bare):
        return "heading"
    return "item" if _ITEM_PATTERN.match(line) else "paragraph"


def _goes_on(text: str, block: Block, line: TextLine, kind: BlockKind) -> bool:
    """Whether a line continues the block above: a paragraph or an item, or rows of a table."""
    above = ("table",) if kind == "table" else ("paragraph", "item")
    if kind not in ("table", "paragraph") or block.kind not in above:
        return False
    return text.count("\n", block.end, line.start) == 1


_DECISION: Final = 110
_QUOTED_ERROR: Final = 108
_BEGINNING: Final = 100
_END: Final = 96
_TITLE: Final = 92
_CHAPTER: Final = 84
_QUESTION: Final = 102
_NEAR_THE_ENDS: Final = 70
_PARAGRAPH: Final = 60
_ITEM_WORTH: Final = 58
_SNIPPET: Final = 48
_FILLER_WORTH: Final = 1

_PIECE_CHARACTERS_MAX: Final = 240
_PIECES_MAX: Final = 8
_SNIPPET_CHARACTERS_MAX: Final = 200
_SENTENCES_MAX: Final = 400
"""The number of sentences of one paragraph that are considered."""


def outline_of_prose(text: str) -> PassageOutline:
    ranges = sampled_ranges(text)
    blocks = [block for start, end in ranges for block in blocks_of(text, start, end)]
    # Most signals do not occur in the text; these need not be searched for in each sentence.
    lowered = "\n".join(text[start:end] for start, end in ranges).lower()
    signals = {word: points for word, points in _SIGNALS.items() if word in lowered}
    running: list[Passage] = []
    others: list[Passage] = []
    announced = 0
    for index, block in enumerate(blocks):
        # With reversed bits as their rank, the first few blocks selected are spread evenly over
        # the text.
        order = int(f"{index:020b}"[::-1], 2)
        if block.kind in ("item", "paragraph"):
            running += _running(text, block, order, signals=signals, announced=announced)
            announced = 0
        elif block.kind == "heading":
            line = block.lines[0].text.lstrip()
            depth = len(line) - len(line.lstrip("#"))
            weight = _TITLE if depth == 1 else _CHAPTER - 4 * depth
            pieces = _pieces(text, block.start, block.end, weight=weight, order=order)
            others += [structs.replace(piece, is_heading=depth != 1) for piece in pieces]
            announced = decisiveness(text[block.start : block.end], signals)
        elif block.kind == "fence":
            others += _fence(text, block, order)
        else:
            others += _table(text, block, order)
    return PassageOutline(text=text, passages=others + _with_both_ends(running))


def _running(
    text: str, block: Block, order: int, *, signals: Mapping[str, int], announced: int
) -> Iterator[Passage]:
    """Yields the sentences of a block. `announced` is the decisiveness of the heading above, which
    is added to the first sentence."""
    weight = _ITEM_WORTH if block.kind == "item" else _PARAGRAPH
    for start, end in sentences_of(text, block.start, block.end)[:_SENTENCES_MAX]:
        sentence = text[start:end]
        if is_filler(sentence):
            yield from _pieces(text, start, end, weight=_FILLER_WORTH, order=order)
            continue
        decisive = announced + decisiveness(sentence, signals)
        if is_question(sentence):
            worth = _QUESTION
        elif decisive >= _DECISIVE:
            # Of equally decisive sentences the latest is preferred: it is the outcome.
            worth, order = _DECISION + min(decisive, _DECISIVE_MAX), -start
        else:
            worth = weight + informative(sentence) // 4 + decisive
        yield from _pieces(text, start, end, weight=worth, order=order)
        weight, announced = REST_WEIGHT, 0


def _fence(text: str, block: Block, order: int) -> Iterator[Passage]:
    """Yields a short code block whole, and the beginning and the definitions of a long one."""
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
    has_error = False
    for index, (line, trouble) in enumerate(zip(inner, troubles_in(inner), strict=True)):
        if trouble == "error":
            weight = _PARAGRAPH if has_error else _QUOTED_ERROR
            has_error = True
        elif is_definition(line.text):
            weight = _SNIPPET - 2
        else:
            weight = REST_WEIGHT + 2 if index < 2 else REST_WEIGHT - 2
        yield from _pieces(text, line.start, line.end, weight=weight, order=order)


def _table(text: str, block: Block, order: int) -> Iterator[Passage]:
    for index, line in enumerate(block.lines):
        weight = _SNIPPET if index < 2 else _PARAGRAPH // 2 if index == 2 else REST_WEIGHT
        yield from _pieces(text, line.start, line.end, weight=weight, order=order)


def _pieces(text: str, start: int, end: int, *, weight: int, order: int) -> Iterator[Passage]:
    """Splits a long sentence into pieces: its beginning is worth most, its end a little."""
    for _ in range(_PIECES_MAX):
        stop = end
        if end - start > _PIECE_CHARACTERS_MAX:
            stop = min(end, place_to_stop(text, start, _PIECE_CHARACTERS_MAX))
        if stop <= start:
            return
        yield Passage(start=start, end=stop, weight=weight, order=order)
        weight = min(weight, REST_WEIGHT)
        start = stop
        while start < end and text[start].isspace():
            start += 1
        if start >= end:
            return
    resumed = place_to_resume(text, max(start, end - _PIECE_CHARACTERS_MAX), end)
    if resumed < end:
        yield Passage(start=resumed, end=end, weight=weight, order=order)


def _with_both_ends(running: list[Passage]) -> list[Passage]:
    """Raises the weight of the first and the last sentences that are no filler, and of their
    neighbours."""
    telling = [index for index, passage in enumerate(running) if passage.weight > _FILLER_WORTH]
    raised = list(running)
    near, first, last = telling[1:2] + telling[-2:-1], telling[:1], telling[-1:]
    for indices, weight in ((near, _NEAR_THE_ENDS), (last, _END), (first, _BEGINNING)):
        for index in indices:
            worth = max(weight, running[index].weight)
            raised[index] = structs.replace(running[index], weight=worth)
    return raised
