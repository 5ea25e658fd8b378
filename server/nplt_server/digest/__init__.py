"""Makes the summary and the gist of a text, by rule and without a model. Pure.

`levels_of` is the entry point. A text of at most `GIST_SIZE_MAX` has no levels. A longer one has a
gist of one line and, above `SUMMARY_SIZE_MAX`, a summary. The same text always has the same levels.

The kind of text is recognized by its first lines. `code`, `listing`, `prose` and `json` each select
the passages of their kinds that are worth keeping, and `text` fits them into the available size.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, Literal, TypeAlias

from nplt_server.digest.code import (
    FILE_OF_DIFF,
    is_definition,
    is_import,
    outline_of_code,
    outline_of_diff,
)
from nplt_server.digest.json import JsonShape, read_json
from nplt_server.digest.listing import outline_of_listing
from nplt_server.digest.prose import FENCES, kind_of_line, outline_of_prose
from nplt_server.digest.text import (
    PassageOutline,
    TextLine,
    cut_to_size,
    lines_of,
    one_line,
    size_of,
)
from nplt_storage.entries import LevelOfDetailSections, ToolCallResult

SUMMARY_SIZE_MAX: Final = 1_200
GIST_SIZE_MAX: Final = 200
"""The limits are in bytes of UTF-8, about four to a token in any script: 300 tokens and 50."""

_TOOL_NAME_SIZE_MAX: Final = 60


def levels_of(content: str | ToolCallResult) -> LevelOfDetailSections | None:
    """Returns the levels of a prompt, an answer or a tool's result; None if it is too short to have
    any."""
    label = ""
    if isinstance(content, str):
        text = content
    else:
        text = content.result
        name = one_line(cut_to_size(content.tool_name, _TOOL_NAME_SIZE_MAX))
        of_whole = f", the beginning of {content.blob.size:,} bytes" if content.blob else ""
        label = f"{name} {content.status}{of_whole}:"
    if size_of(text) <= GIST_SIZE_MAX:
        return None
    outline = outline_of(text)
    room_taken = size_of(label) + 1 if label else 0
    gist = one_line(f"{label} {outline.gist(GIST_SIZE_MAX - room_taken)}")
    summary = ""
    if size_of(text) > SUMMARY_SIZE_MAX:
        body = outline.summary(SUMMARY_SIZE_MAX - room_taken)
        summary = f"{label}\n{body}" if label else body
    return LevelOfDetailSections(
        live=(("", text),),
        summary=(("", summary),) if summary else (),
        # A summary that is no longer than the gist serves as both.
        gist=() if summary and size_of(gist) >= size_of(summary) else (("", gist),),
    )


TextKind: TypeAlias = Literal["prose", "code", "diff", "table", "listing"]

_LOOKED_AT_CHARACTERS: Final = 16 * 1024
_LINES_MAX: Final = 200
_LINES_MIN: Final = 6
_SENTENCE_ENDS: Final = (".", "!", "?", "。", "！", "？", ":", "：")
_CODE_ENDS: Final = ("{", "}", ";", "):", "(", ");", "},", "=>", "])", "\\")
_CODE_STARTS: Final = ("#", "//", "/*", "+", "-", " ")
_CODE_SIGNS: Final = (" = ", " == ", "->", "=>", "()", " += ", "self.", "return ", "&&", "||")
_LOG: Final = re.compile(
    r"[\[(]?\d{2,4}[-/:.]\d\d[-/:.]\d\d|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d"
    r"|[\[<(]?(?:DEBUG|INFO|WARN|ERROR|FATAL|TRACE|NOTICE|CRITICAL)\b"
)
_SEPARATORS: Final = ("\t", "|", ";", ",")
_PLAIN_SIGNS: Final = frozenset(" ,.'\"?!’“”;:()-\n\t，。！？、")


def kind_of_text(text: str) -> TextKind:
    lines = lines_of(text, 0, min(len(text), _LOOKED_AT_CHARACTERS))[:_LINES_MAX]
    if any(line.text.startswith(FILE_OF_DIFF) for line in lines):
        return "diff"
    if len(lines) < _LINES_MIN or any(line.text.lstrip().startswith(FENCES) for line in lines):
        return "prose"
    if _is_code(lines):
        return "code"
    if _is_table(lines):
        return "table"
    return "listing" if _is_listing(lines) else "prose"


def _is_code(lines: list[TextLine]) -> bool:
    strong = sum(is_definition(line.text) or is_import(line.text) for line in lines)
    if strong < 2:
        return False
    alike = sum(
        line.text.endswith(_CODE_ENDS)
        or line.text.startswith(_CODE_STARTS)
        or line.text[:4].isspace()
        or any(sign in line.text for sign in _CODE_SIGNS)
        for line in lines
    )
    return strong + alike >= len(lines) // 2


def _is_table(lines: list[TextLine]) -> bool:
    """Whether a separator occurs equally often in almost every line."""
    for separator in _SEPARATORS:
        columns = lines[0].text.count(separator)
        if columns < (2 if separator == "," else 1):
            continue
        alike = sum(line.text.count(separator) == columns for line in lines)
        if alike * 10 >= len(lines) * 9:
            return True
    return False


def _is_listing(lines: list[TextLine]) -> bool:
    count = len(lines)
    if sum(_LOG.match(line.text) is not None for line in lines) * 5 >= count * 2:
        return True
    structured = sum(kind_of_line(line.text) in ("heading", "item") for line in lines)
    ended = sum(line.text.endswith(_SENTENCE_ENDS) for line in lines)
    if structured * 3 >= count or ended * 2 >= count:
        return False
    lengths = sorted(len(line.text) for line in lines)
    if lengths[count // 2] < 40 and ended * 5 < count:
        return True
    sample = "".join(line.text for line in lines)[:4_000]
    signs = sum(not (sign.isalpha() or sign in _PLAIN_SIGNS) for sign in sample)
    return signs * 8 >= len(sample)


_OUTLINES: Final[Mapping[TextKind, Callable[[str], PassageOutline]]] = {
    "prose": outline_of_prose,
    "code": outline_of_code,
    "diff": outline_of_diff,
    "table": partial(outline_of_listing, name="table, "),
    "listing": outline_of_listing,
}


def outline_of(text: str) -> PassageOutline | JsonShape:
    return read_json(text) or _OUTLINES[kind_of_text(text)](text)
