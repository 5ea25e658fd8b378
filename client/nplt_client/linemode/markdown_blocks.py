"""Markdown that is still being written, cut into blocks that no longer change. Pure.

What is printed into a scrollback can't be taken back. So a block is given away
only when the next one has begun (or its fence is closed), and the parser itself
says where that is: rules of our own would differ from it some day. It is asked
only where a block can begin, so that a long answer costs no more than its length.

Nothing a model wrote is hidden: HTML, images and the definitions of links are
shown as they are written; then a block also means the same wherever it stands.
"""

from __future__ import annotations

import re
from functools import cache

from markdown_it import MarkdownIt
from markdown_it.token import Token

_FENCE = re.compile(r" {0,3}(?:```|~~~)")
_BEGINS_BY_ITSELF = re.compile(r"```|~~~|#{1,6}[ \t\n]")
"""These need no empty line before them."""
_IS_TEXT = re.compile(r"[^\W\d_]|\*\*\w|[\"'(“‘]")
"""A line that begins so is no mark of a list or the like, however it goes on."""


@cache
def markdown_parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False})
    return parser.enable(["table", "strikethrough"]).disable(["reference", "image"])


class BlockCutter:
    """One answer. What `feed` and `end` give, joined, is what was fed."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        """Of the block that is not finished, each with its end."""
        self._begun = ""
        """The line that is not finished."""
        self._closing: re.Pattern[str] | None = None
        """Inside a fence: the only line that matters."""

    @property
    def unfinished(self) -> str:
        return "".join(self._lines) + self._begun

    def feed(self, piece: str) -> list[str]:
        *whole, self._begun = (self._begun + piece).split("\n")
        blocks: list[str] = []
        for line in whole:
            blocks.extend(self._add(f"{line}\n"))
        return [*blocks, *self._look_ahead()]

    def end(self) -> list[str]:
        left, self._lines, self._begun, self._closing = self.unfinished, [], "", None
        return [left] if left else []

    def _add(self, line: str) -> list[str]:
        self._lines.append(line)
        if self._closing is not None:
            if not self._closing.fullmatch(line):
                return []
            self._closing = None
            return self._all_lines()
        return self._cut_before_last() if self._may_begin_block(line) else []

    def _look_ahead(self) -> list[str]:
        """A paragraph is one long line, mostly: its first word is enough to end the one before."""
        after_empty = bool(self._lines) and not self._lines[-1].strip()
        if self._closing is not None or not after_empty or not _IS_TEXT.match(self._begun):
            return []
        self._lines.append(self._begun)
        blocks = self._cut_before_last()
        self._lines.pop()
        return blocks

    def _all_lines(self) -> list[str]:
        block, self._lines = "".join(self._lines), []
        return [block]

    def _may_begin_block(self, line: str) -> bool:
        if line[0].isspace():
            return False
        after_empty = len(self._lines) > 1 and not self._lines[-2].strip()
        return after_empty or _BEGINS_BY_ITSELF.match(line) is not None

    def _cut_before_last(self) -> list[str]:
        last = _last_block(self._lines)
        if last is None or last.map is None:
            return []
        start = last.map[0]
        before, self._lines = self._lines[:start], self._lines[start:]
        if last.type == "fence" and _FENCE.match(self._lines[0]):
            mark = re.escape(last.markup[0])
            self._closing = re.compile(rf" {{0,3}}{mark}{{{len(last.markup)},}}[ \t]*\n")
        return ["".join(before)] if before else []


def _last_block(lines: list[str]) -> Token | None:
    tokens = markdown_parser().parse("".join(lines))
    outermost = [token for token in tokens if token.level == 0 and token.map is not None]
    return outermost[-1] if outermost else None
