"""What a diff changes: which files, and in them the lines that came and went."""

from __future__ import annotations

from typing import Final

from nplt_server.detail.code import is_definition
from nplt_server.detail.cut import place_to_stop
from nplt_server.detail.glance import LINE_END, Line, counted, lines_looked_at
from nplt_server.detail.passage_outline import PassageOutline
from nplt_server.detail.passages import Passage

FILE_OF_DIFF: Final = "diff --git "

_FILE: Final = 80
_MESSAGE: Final = 82
_DEFINED: Final = 60
_CHANGED: Final = 20
_LINE_CHARACTERS_MAX: Final = 160
_ENVELOPE: Final = ("commit ", "Author:", "Date:", "Merge:", "From ")


def outline_of_diff(text: str) -> PassageOutline:
    passages: list[Passage] = []
    is_message = True
    for line in lines_looked_at(text):
        is_message = is_message and not line.text.startswith(FILE_OF_DIFF)
        end = min(line.end, place_to_stop(text, line.start, _LINE_CHARACTERS_MAX))
        weight = _worth_in_message(line) if is_message else _worth(line)
        passages.append(Passage(start=line.start, end=end, weight=weight))
    files = text.count(LINE_END + FILE_OF_DIFF) + text.startswith(FILE_OF_DIFF)
    count = counted(text.count(LINE_END) + 1, "line")
    return PassageOutline(
        text=text, passages=passages, label=f"[diff, {counted(files, 'file')}, {count}]"
    )


def _worth_in_message(line: Line) -> int:
    return _CHANGED if line.text.startswith(_ENVELOPE) else _MESSAGE


def _worth(line: Line) -> int:
    if line.text.startswith(FILE_OF_DIFF):
        return _FILE
    if not line.text.startswith(("+", "-")) or line.text.startswith(("+++", "---")):
        return 0
    if not any(map(str.isalnum, line.text)):
        return 1
    return _DEFINED if is_definition(line.text[1:]) else _CHANGED
