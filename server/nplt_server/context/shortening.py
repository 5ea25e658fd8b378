"""Making a text, or the arguments of a call, short enough.

A text loses its middle: how something begins and how it ends says most, and a
mark says how much is missing. Arguments stay a JSON object with the same names,
because providers accept nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeAlias

import orjson

from nplt_server.detail.cut import cut, place_to_resume, place_to_stop
from nplt_storage.facts.json_values import JsonValue
from nplt_storage.facts.tool_calls import ToolCallRequest

Mark: TypeAlias = Callable[[int], str]
"""Says that so many characters are left out."""

_CHARACTERS_PER_TOKEN_MAX: Final = 8
"""Where to begin looking: text that takes fewer tokens is not worth finding."""
_CHARACTERS_MIN: Final = 16
"""With fewer on both sides of the mark, the mark alone says more."""


def left_out(characters: int) -> str:
    return f"[… {characters:,} characters left out …]"


def cut_middle(
    text: str, tokens_max: int, *, count: Callable[[str], int], mark: Mark = left_out
) -> str:
    """Beginning, mark and end of a text that is too long; empty if not even the mark fits."""
    kept = min(len(text), tokens_max * _CHARACTERS_PER_TOKEN_MAX)
    while kept >= _CHARACTERS_MIN:
        shown = _without_middle(text, kept, mark)
        tokens = count(shown)
        if tokens <= tokens_max:
            return shown
        kept = min(kept * 15 // 16, kept * tokens_max // tokens)
    alone = mark(len(text))
    return alone if count(alone) <= tokens_max else ""


def _without_middle(text: str, kept: int, mark: Mark) -> str:
    stop = place_to_stop(text, 0, kept * 2 // 3)
    resume = place_to_resume(text, max(stop, len(text) - kept // 3), len(text))
    if resume <= stop:
        return text
    return f"{text[:stop]}\n{mark(resume - stop)}\n{text[resume:]}"


def shorten_call(call: ToolCallRequest, characters_max: int) -> ToolCallRequest:
    if len(call.raw_arguments) <= characters_max:
        return call
    if call.arguments is None:
        return replace(call, raw_arguments=cut(call.raw_arguments, characters_max))
    each = max(_CHARACTERS_MIN, characters_max // max(1, len(call.arguments)))
    arguments = {name: _shorten(value, each) for name, value in call.arguments.items()}
    raw = orjson.dumps(arguments)
    if len(raw) > 4 * characters_max:
        # So many names that they are too long themselves.
        arguments = {"arguments": left_out(len(call.raw_arguments))}
        raw = orjson.dumps(arguments)
    return replace(call, raw_arguments=raw.decode(), arguments=arguments)


def _shorten(value: JsonValue, characters_max: int) -> JsonValue:
    text = value if isinstance(value, str) else orjson.dumps(value).decode()
    return value if len(text) <= characters_max else cut(text, characters_max)
