"""Text from outside as this screen may show it.

On top of what every terminal needs (`sanitize`): the two characters that
Python counts as line ends and Markdown does not would make the streamed and
the stored form of an answer differ, so they become line ends for both.
"""

from __future__ import annotations

import json

from nplt_client.sanitize import Sanitizer, sanitize, sanitize_line
from nplt_client.tables import shorten
from nplt_protocol.json_values import JsonValue

_LINE_ENDS = str.maketrans({"\u2028": "\n", "\u2029": "\n"})


class SafeStream:
    """Pieces of one text, however they are cut."""

    __slots__ = ("_sanitizer",)

    def __init__(self) -> None:
        self._sanitizer = Sanitizer()

    def feed(self, piece: str) -> str:
        return self._sanitizer.feed(piece).translate(_LINE_ENDS)


def safe(text: object) -> str:
    return sanitize(str(text)).translate(_LINE_ENDS)


def safe_line(text: object, width: int | None = None) -> str:
    line = sanitize_line(str(text))
    return line if width is None else shorten(line, width)


def safe_json(value: JsonValue, *, indent: int | None = None) -> str:
    """Exactly what is in there, with every odd character spelled out."""
    spelled = json.dumps(value, ensure_ascii=False, indent=indent)
    return "".join(_spelled(character) for character in spelled)


def _spelled(character: str) -> str:
    if character == "\n" or (character.isprintable() and sanitize(character) == character):
        return character
    return json.dumps(character)[1:-1]
