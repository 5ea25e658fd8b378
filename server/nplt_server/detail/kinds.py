"""What sort of text it is, by the look of its first lines."""

from __future__ import annotations

import re
from typing import Final, Literal, TypeAlias

from nplt_server.detail.blocks import kind_of_line
from nplt_server.detail.code import is_definition, is_import
from nplt_server.detail.diffs import FILE_OF_DIFF
from nplt_server.detail.glance import Line, lines_of

TextKind: TypeAlias = Literal["prose", "code", "diff", "table", "listing"]

_LOOKED_AT_CHARACTERS: Final = 16 * 1024
_LINES_MAX: Final = 200
_LINES_MIN: Final = 6
_SENTENCE_ENDS: Final = (".", "!", "?", "。", "！", "？", ":", "：")
_CODE_ENDS: Final = ("{", "}", ";", "):", "(", ");", "},", "=>", "])", "\\")
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
    if len(lines) < _LINES_MIN or any(kind_of_line(line.text) == "fence" for line in lines):
        return "prose"
    if _is_code(lines):
        return "code"
    if _is_table(lines):
        return "table"
    return "listing" if _is_listing(lines) else "prose"


def _is_code(lines: list[Line]) -> bool:
    strong = sum(is_definition(line.text) or is_import(line.text) for line in lines)
    weak = sum(_looks_like_code(line.text) for line in lines)
    return strong >= 2 and strong + weak >= len(lines) // 2


def _looks_like_code(line: str) -> bool:
    if line.endswith(_CODE_ENDS) or line[:4].isspace():
        return True
    return line.startswith(("#", "//", "/*", "+", "-", " ")) or any(s in line for s in _CODE_SIGNS)


def _is_table(lines: list[Line]) -> bool:
    """The same separator as often in almost every line."""
    for separator in _SEPARATORS:
        columns = lines[0].text.count(separator)
        if columns < (2 if separator == "," else 1):
            continue
        alike = sum(line.text.count(separator) == columns for line in lines)
        if alike * 10 >= len(lines) * 9:
            return True
    return False


def _is_listing(lines: list[Line]) -> bool:
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
