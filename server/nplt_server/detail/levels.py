"""Summary and gist of a text, made when it is written.

A text of at most `GIST_CHARACTERS_MAX` characters has no levels: it is all there
is. A longer one has a gist of one line, and if it is longer than
`SUMMARY_CHARACTERS_MAX` a summary too. The same text has the same levels, always:
no model is asked, nor the clock.
"""

from __future__ import annotations

from typing import Final

from nplt_server.detail.cut import cut, one_line
from nplt_server.detail.outlines import outline_of
from nplt_storage.facts.sections import LevelOfDetailSections
from nplt_storage.facts.tool_calls import ToolStatus

SUMMARY_CHARACTERS_MAX: Final = 1_200
GIST_CHARACTERS_MAX: Final = 200

_TOOL_NAME_CHARACTERS_MAX: Final = 60


def levels_of(text: str, *, live_name: str = "") -> LevelOfDetailSections | None:
    """Of a prompt or an answer; None where it is short: the text is all there is."""
    if len(text) <= GIST_CHARACTERS_MAX:
        return None
    return _levels(text, live_name=live_name, label="")


def levels_of_result(
    tool_name: str, status: ToolStatus, text: str, *, size: int | None = None
) -> LevelOfDetailSections | None:
    """Of a tool's result; `size` is the bytes of the whole where `text` is only
    its beginning."""
    if len(text) <= GIST_CHARACTERS_MAX:
        return None
    of_whole = "" if size is None else f", the beginning of {size:,} bytes"
    label = f"{one_line(cut(tool_name, _TOOL_NAME_CHARACTERS_MAX))} {status}{of_whole}:"
    return _levels(text, live_name="", label=label)


def _levels(text: str, *, live_name: str, label: str) -> LevelOfDetailSections:
    outline = outline_of(text)
    room_taken = len(label) + 1 if label else 0
    gist = one_line(f"{label} {outline.gist(GIST_CHARACTERS_MAX - room_taken)}")
    summary = ""
    if len(text) > SUMMARY_CHARACTERS_MAX:
        said = outline.summary(SUMMARY_CHARACTERS_MAX - room_taken)
        summary = f"{label}\n{said}" if label else said
    return LevelOfDetailSections(
        live=((live_name, text),),
        summary=(("", summary),) if summary else (),
        # A summary that is this short already is asked for both.
        gist=() if summary and len(gist) >= len(summary) else (("", gist),),
    )
