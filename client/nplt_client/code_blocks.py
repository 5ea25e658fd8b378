"""The code in an answer: what `nplt ask -x` prints. Pure.

Blocks between fences (``` or ~~~), as Markdown has them, also inside lists. Of
several, those in the language of the first belong together: a program told in
pieces, a blank line apart. The others (mostly how to call it) are left out, and
said to be.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_FENCE = re.compile(r"^([ ]*)(`{3,}|~{3,})[ \t]*([^\n]*)$")
_QUOTE = re.compile(r"^(?:[ ]{0,3}>[ ]?)+")
_APART = "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeBlock:
    language: str
    code: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Extract:
    code: str
    left_out: tuple[str, ...]
    """The languages of the blocks that are not in it."""


def extract(text: str) -> Extract | None:
    """None: there is no code in it."""
    blocks = list(code_blocks(text))
    if not blocks:
        return None
    wanted = blocks[0].language
    return Extract(
        code=_APART.join(block.code for block in blocks if block.language == wanted),
        left_out=tuple(block.language for block in blocks if block.language != wanted),
    )


def code_blocks(text: str) -> Iterator[CodeBlock]:
    lines = iter(text.replace("\r\n", "\n").removesuffix("\n").split("\n"))
    for line in lines:
        quote = _QUOTE.match(line)
        opening = _FENCE.match(line[quote.end() :] if quote else line)
        # What follows a fence of backticks holds none: ```x``` is code within a line.
        if opening and not (opening[2][0] == "`" and "`" in opening[3]):
            yield CodeBlock(
                language=_language(opening[3]),
                code=_until_closed(lines, opening, quoted=quote is not None),
            )


def _language(said: str) -> str:
    """The first word after the fence; `python title="x"` is python."""
    words = said.split()
    return words[0].lower() if words else ""


def _until_closed(lines: Iterator[str], opening: re.Match[str], *, quoted: bool) -> str:
    """One that is never closed goes on to the end."""
    indent, fence = len(opening[1]), opening[2]
    closing = re.compile(rf"^[ ]*{re.escape(fence[0])}{{{len(fence)},}}[ \t]*$")
    kept: list[str] = []
    for line in lines:
        if quoted:
            line = _QUOTE.sub("", line, count=1)
        if closing.match(line):
            return "".join(kept)
        spaces = len(line) - len(line.lstrip(" "))
        kept.append(line[min(indent, spaces) :] + "\n")
    return "".join(kept)
