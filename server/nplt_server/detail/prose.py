"""What a running text or a Markdown page is about.

How it begins and how it ends, what it asks, its headings and the heads of its
lists, then the first sentence of every paragraph; names and numbers rather than
filler. A greeting is never the beginning, nor the offer of more help the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final, assert_never

from nplt_server.detail.blocks import Block, blocks_of
from nplt_server.detail.code import is_definition
from nplt_server.detail.cut import place_to_resume, place_to_stop
from nplt_server.detail.glance import ranges_looked_at
from nplt_server.detail.passage_outline import PassageOutline
from nplt_server.detail.passages import Passage
from nplt_server.detail.sentences import is_filler, is_question, sentences_of, telling

_BEGINNING: Final = 100
_END: Final = 96
_TITLE: Final = 92
_CHAPTER: Final = 84
_QUESTION: Final = 80
_NEAR_THE_ENDS: Final = 70
_PARAGRAPH: Final = 60
_ITEM: Final = 58
_SNIPPET: Final = 48
_REST: Final = 10
_FILLER: Final = 1

_PIECE_CHARACTERS_MAX: Final = 240
_PIECES_MAX: Final = 8
_SNIPPET_CHARACTERS_MAX: Final = 200
_SENTENCES_MAX: Final = 400
"""Of one paragraph; whoever writes more in one has said it by then."""


def outline_of_prose(text: str) -> PassageOutline:
    blocks = [b for start, end in ranges_looked_at(text) for b in blocks_of(text, start, end)]
    running: list[Passage] = []
    others: list[Passage] = []
    for index, block in enumerate(blocks):
        found = running if block.kind in ("item", "paragraph") else others
        found += _passages_of_block(text, block, _spread(index))
    return PassageOutline(text=text, passages=others + _with_both_ends(running))


def _passages_of_block(text: str, block: Block, order: int) -> Iterator[Passage]:
    match block.kind:
        case "heading":
            yield from _heading(text, block, order)
        case "item" | "paragraph":
            yield from _running(text, block, order)
        case "fence":
            yield from _fence(text, block, order)
        case "table":
            yield from _table(text, block, order)
        case _:
            assert_never(block.kind)


def _heading(text: str, block: Block, order: int) -> Iterator[Passage]:
    line = block.lines[0].text.lstrip()
    depth = len(line) - len(line.lstrip("#"))
    weight = _TITLE if depth == 1 else _CHAPTER - 4 * depth
    for piece in _pieces(text, block.start, block.end, weight=weight, order=order):
        yield replace(piece, is_heading=depth != 1)


def _running(text: str, block: Block, order: int) -> Iterator[Passage]:
    weight = _ITEM if block.kind == "item" else _PARAGRAPH
    for start, end in sentences_of(text, block.start, block.end)[:_SENTENCES_MAX]:
        sentence = text[start:end]
        if is_filler(sentence):
            worth = _FILLER
        else:
            worth = _QUESTION if is_question(sentence) else weight + telling(sentence) // 4
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
    said = [index for index, passage in enumerate(running) if passage.weight > _FILLER]
    raised = list(running)
    for indices, weight in (
        (said[1:2] + said[-2:-1], _NEAR_THE_ENDS),
        (said[-1:], _END),
        (said[:1], _BEGINNING),
    ):
        for index in indices:
            raised[index] = replace(running[index], weight=max(weight, running[index].weight))
    return raised


def _spread(index: int) -> int:
    """Bits in reverse: taken in this order, few of many lie evenly between the first
    and the last."""
    return int(f"{index:020b}"[::-1], 2)
