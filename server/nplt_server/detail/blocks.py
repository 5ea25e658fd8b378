"""The blocks a Markdown or plain text is made of, in order."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from nplt_server.detail.glance import Line, lines_of

BlockKind: TypeAlias = Literal["heading", "item", "fence", "table", "paragraph"]

_HEADING: Final = re.compile(r"#{1,6}[ \t]|\*\*[^*]{1,100}\*\*:?$")
_ITEM: Final = re.compile(r"[ \t]{0,40}(?:[-*+•·]|\d{1,3}[.)]|[a-z]\))[ \t]")
_FENCES: Final = ("```", "~~~")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    kind: BlockKind
    lines: list[Line]

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
    return "item" if _ITEM.match(line) else "paragraph"


def _goes_on(text: str, block: Block, line: Line, kind: BlockKind) -> bool:
    """A line below a paragraph or an item belongs to it, a row to the rows above."""
    above = ("table",) if kind == "table" else ("paragraph", "item")
    if kind not in ("table", "paragraph") or block.kind not in above:
        return False
    return text.count("\n", block.end, line.start) == 1


def _fenced(opening: Line, lines: Iterator[Line]) -> list[Line]:
    """From the opening fence to the closing one, or to the end of what there is."""
    fence = opening.text.lstrip()[:3]
    block = [opening]
    for line in lines:
        block.append(line)
        if line.text.strip().startswith(fence) and not line.text.strip().strip(fence[0]):
            break
    return block
