"""Makes text safe for a terminal, measures it in cells, and sets it in columns.

Control sequences, bidirectional overrides and other invisible characters never reach the
terminal. `Sanitizer` works on a stream, however it is cut; `table` and `pairs` sanitize
their cells themselves. Widths follow East Asian Width.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Sequence
from enum import Enum

from nplt_protocol.json_text import JsonObject, JsonValue

_SPECIAL = re.compile(
    "["
    "\x00-\x08\x0b-\x1f"  # C0, except tab and newline
    "\x7f-\x9f"  # DEL and C1
    "\u202a-\u202e\u2066-\u2069"  # bidirectional embeddings, overrides, isolates
    "\ud800-\udfff"  # lone surrogates: no encoder takes them
    "]"
)

_CONTROL_STRING_INTRODUCERS = "]PX^_"  # OSC, DCS, SOS, PM, APC

_SEQUENCE_CHARACTERS_MAX = 64
_STRING_CHARACTERS_MAX = 4096
"""A sequence that never ends must not swallow the rest of an answer."""


class _State(Enum):
    TEXT = 0
    ESCAPE = 1
    INTERMEDIATE = 2
    CSI = 3
    STRING = 4
    STRING_ESCAPE = 5


class Sanitizer:
    """One per stream of text; `feed` gives what may be shown of each piece.

    Text from outside may hold escape sequences that recolour, retitle, report back or
    overwrite the screen. A sequence that begins with ESC is dropped as a whole, and every
    control character is dropped even where no sequence was recognized. Text, newlines and
    tabs stay. However a text is cut, the pieces joined read the same.
    """

    __slots__ = ("_after_return", "_inside", "_state")

    def __init__(self) -> None:
        self._state = _State.TEXT
        self._inside = 0
        self._after_return = False

    def feed(self, text: str) -> str:
        if self._state is _State.TEXT and not self._after_return and not _SPECIAL.search(text):
            return text
        shown: list[str] = []
        at = 0
        while at < len(text):
            if self._state is _State.TEXT:
                at = self._pass_text(text, at, shown)
            elif self._consume(text[at]):
                at += 1
        return "".join(shown)

    def _pass_text(self, text: str, at: int, shown: list[str]) -> int:
        """Shows text up to the next special character and deals with that one."""
        if self._after_return:
            self._after_return = False
            if text[at] == "\n":  # the second half of a CR LF that was shown already
                return at + 1
        found = _SPECIAL.search(text, at)
        if found is None:
            shown.append(text[at:])
            return len(text)
        shown.append(text[at : found.start()])
        match found.group():
            case "\x1b":
                self._enter(_State.ESCAPE)
            case "\r":
                # A lone CR would let later text overwrite what was read already.
                shown.append("\n")
                self._after_return = True
            case surrogate if "\ud800" <= surrogate <= "\udfff":
                shown.append("\ufffd")
            case _:
                # Of C1 only the character goes, not what follows: in text that was
                # decoded wrongly, 0x9D is a closing quotation mark, not an OSC.
                pass
        return found.end()

    def _enter(self, state: _State) -> None:
        self._state = state
        self._inside = 0

    def _consume(self, character: str) -> bool:
        """One character inside a sequence; False: it ends there and belongs to what follows."""
        self._inside += 1
        match self._state:
            case _State.ESCAPE:
                return self._after_escape(character)
            case _State.INTERMEDIATE:
                return self._in_sequence(character, more="\x20\x2f", final="\x30\x7e")
            case _State.CSI:
                return self._in_sequence(character, more="\x20\x3f", final="\x40\x7e")
            case _State.STRING:
                return self._in_string(character)
            case _:
                return self._after_escape_in_string(character)

    def _after_escape(self, character: str) -> bool:
        if character == "[":
            self._enter(_State.CSI)
        elif character in _CONTROL_STRING_INTRODUCERS:
            self._enter(_State.STRING)
        elif "\x20" <= character <= "\x2f":
            self._enter(_State.INTERMEDIATE)
        else:
            self._state = _State.TEXT
            return "\x30" <= character <= "\x7e"
        return True

    def _in_sequence(self, character: str, *, more: str, final: str) -> bool:
        if more[0] <= character <= more[1] and self._inside <= _SEQUENCE_CHARACTERS_MAX:
            return True
        self._state = _State.TEXT
        return final[0] <= character <= final[1]

    def _in_string(self, character: str) -> bool:
        if character == "\x1b":
            self._state = _State.STRING_ESCAPE
            return True
        if character in "\x07\x18\x1a\x9c":  # BEL, CAN, SUB, ST
            self._state = _State.TEXT
            return True
        if character in "\n\r" or self._inside > _STRING_CHARACTERS_MAX:
            self._state = _State.TEXT
            return False
        return True

    def _after_escape_in_string(self, character: str) -> bool:
        if character == "\\":
            self._state = _State.TEXT
            return True
        self._enter(_State.ESCAPE)  # as terminals do: the string is over, a sequence begins
        return False


def sanitize(text: str) -> str:
    return Sanitizer().feed(text)


def sanitize_line(text: str) -> str:
    """Safe, and on one line."""
    return " ".join(sanitize(text).split())


def width_of(text: str) -> int:
    if text.isascii():
        return len(text)
    return sum(_cells(character) for character in text)


def _cells(character: str) -> int:
    import unicodedata  # not needed for ASCII

    if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def shorten(text: str, width: int) -> str:
    """At most `width` cells, with an ellipsis where something is missing."""
    if width_of(text) <= width:
        return text
    kept: list[str] = []
    used = 1
    for character in text:
        used += _cells(character)
        if used > width:
            break
        kept.append(character)
    return "".join(kept).rstrip() + "…"


def pad(text: str, width: int, *, to_the_right: bool = False) -> str:
    room = " " * max(0, width - width_of(text))
    return room + text if to_the_right else text + room


def table(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    cell_width_max: int = 40,
    numbers: Container[str] = (),
) -> str:
    """The line's end is trimmed; columns of `numbers` are set to the right."""
    lines = [list(header)]
    lines += [[shorten(sanitize_line(cell), cell_width_max) for cell in row] for row in rows]
    widths = [max(width_of(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(
        "  ".join(
            pad(cell, width, to_the_right=name in numbers)
            for cell, width, name in zip(line, widths, header, strict=True)
        ).rstrip()
        for line in lines
    )


def pairs(values: Iterable[tuple[str, str]]) -> str:
    """`name  value` lines, for a status."""
    safe = [(name, sanitize_line(value)) for name, value in values]
    width = max((width_of(name) for name, _ in safe), default=0)
    return "\n".join(f"{pad(name, width)}  {value}".rstrip() for name, value in safe)


LINE_ENDS = str.maketrans({"\u2028": "\n", "\u2029": "\n"})
"""Python takes them for line ends and Markdown does not, so streamed and stored text would
differ."""


def safe(text: object) -> str:
    return sanitize(str(text)).translate(LINE_ENDS)


def safe_line(text: object, width: int | None = None) -> str:
    line = sanitize_line(str(text))
    return line if width is None else shorten(line, width)


def safe_json(value: JsonValue, *, indent: int | None = None) -> str:
    """The exact value, with every unprintable character escaped."""
    import json  # an answer in plain text does without

    spelled = json.dumps(value, ensure_ascii=False, indent=indent)
    return "".join(_spelled(character) for character in spelled)


def _spelled(character: str) -> str:
    if character == "\n" or (character.isprintable() and sanitize(character) == character):
        return character
    import json

    return json.dumps(character)[1:-1]


def word_in(row: JsonObject, name: str) -> str:
    """That field if it is a text; a newer server may send something else."""
    value = row.get(name)
    return value if isinstance(value, str) else ""


def number_in(row: JsonObject, name: str) -> int:
    value = row.get(name)
    return value if isinstance(value, int) else 0


def objects_in(value: JsonValue) -> list[JsonObject]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


# orjson escapes C0 by itself; these are as bad for a terminal.
_UNSAFE_IN_JSON = re.compile("[\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def attachment_words(attached: JsonObject) -> str:
    """A file that came with a prompt, in one line: its name, size and kind."""
    name = safe_line(attached.get("filename") or attached.get("file_id"))
    details = [size_words(size)] if isinstance(size := attached.get("size"), int) else []
    if kind := word_in(attached, "content_type"):
        details.append(safe_line(kind))
    return f"file {name}" + (f" ({', '.join(details)})" if details else "")


def size_words(size: int) -> str:
    """1234567 → 1.2 MB."""
    for unit, letters in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= unit:
            return f"{size / unit:.3g} {letters}"
    return f"{size} bytes" if size != 1 else "1 byte"


def dump_json(value: object, *, pretty: bool = False) -> str:
    import orjson  # an answer in plain text does without

    text = orjson.dumps(value, option=orjson.OPT_INDENT_2 if pretty else None).decode()
    return _UNSAFE_IN_JSON.sub(lambda found: f"\\u{ord(found.group()):04x}", text)
