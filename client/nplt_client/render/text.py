"""Makes text safe for a terminal, measures it in cells, and formats it in columns.

Control sequences, bidirectional overrides and other invisible characters never reach the
terminal. `Sanitizer` works on a stream, however it is split; `table` and `pairs` sanitize
their cells themselves. Widths follow East Asian Width.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Sequence

from nplt_protocol.json_text import JsonObject, JsonValue

_SEQUENCE_CHARACTERS_MAX = 64
_STRING_CHARACTERS_MAX = 4096
"""Limits, so that a sequence that never ends does not swallow the rest of an answer."""
_INTERMEDIATE = f"[\x20-\x2f]{{1,{_SEQUENCE_CHARACTERS_MAX + 1}}}"
_CSI = f"\\[[\x20-\x3f]{{0,{_SEQUENCE_CHARACTERS_MAX}}}"
_STRING = (  # OSC, DCS, SOS, PM, APC, up to BEL, CAN, SUB, ST, a line end or the next ESC
    f"[\\]PX^_][^\x07\x18\x1a\x1b\x9c\n\r]{{0,{_STRING_CHARACTERS_MAX}}}"
)
_UNFINISHED = re.compile(f"\x1b(?:{_INTERMEDIATE}|{_CSI}|{_STRING})?")
_SPECIAL = re.compile(
    f"\x1b(?:{_CSI}[\x40-\x7e]?|{_STRING}[\x07\x18\x1a\x9c]?|(?:{_INTERMEDIATE})?[\x30-\x7e]?)"
    "|\r\n?"
    "|[\x00-\x08\x0b-\x1f"  # C0, except tab and newline
    "\x7f-\x9f"  # DEL and C1
    "\u202a-\u202e\u2066-\u2069"  # bidirectional embeddings, overrides, isolates
    "\ud800-\udfff]"  # lone surrogates, which can't be encoded
)


class Sanitizer:
    """Sanitizes one stream of text; `feed` returns what may be shown of each piece.

    Untrusted text may hold escape sequences that change colours or the title, send a report
    to the program, or overwrite the screen. A sequence that begins with ESC is dropped as a
    whole, and every other control character is dropped too. Text, newlines and tabs stay. The
    result does not depend on how the text is split into pieces.
    """

    __slots__ = ("_after_return", "_unfinished")

    def __init__(self) -> None:
        self._unfinished = ""
        """A sequence whose end has not been received."""
        self._after_return = False

    def feed(self, text: str) -> str:
        if not self._unfinished and not self._after_return and not _SPECIAL.search(text):
            return text
        if not text:
            return ""
        if self._after_return:  # the second half of a CR LF that was shown already
            text = text.removeprefix("\n")
        text = self._unfinished + text
        last = text.rfind("\x1b")
        end = last if last >= 0 and _UNFINISHED.fullmatch(text, last) else len(text)
        text, self._unfinished = text[:end], text[end:]
        self._after_return = text.endswith("\r") and not self._unfinished
        return _SPECIAL.sub(_shown_for, text)


def _shown_for(special: re.Match[str]) -> str:
    """Replaces a control character or sequence. C1 characters start no sequence here: in text
    that was decoded wrongly, 0x9D is a closing quotation mark, not an OSC."""
    if special[0][0] == "\r":  # a lone CR would let later text overwrite the line
        return "\n"
    return "\ufffd" if "\ud800" <= special[0] <= "\udfff" else ""


def sanitize(text: str) -> str:
    return Sanitizer().feed(text)


def sanitize_line(text: str) -> str:
    """Sanitizes a text and puts it on one line."""
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
    """Cuts a text to `width` cells, with an ellipsis at the cut."""
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
    """Formats a table; the columns in `numbers` are aligned to the right."""
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
    """Formats `name  value` lines, for a status."""
    safe = [(name, sanitize_line(value)) for name, value in values]
    width = max((width_of(name) for name, _ in safe), default=0)
    return "\n".join(f"{pad(name, width)}  {value}".rstrip() for name, value in safe)


LINE_ENDS = str.maketrans({"\u2028": "\n", "\u2029": "\n"})
"""Python treats these as line ends and Markdown does not, so streamed and stored text would
differ."""


def safe(text: object) -> str:
    return sanitize(str(text)).translate(LINE_ENDS)


def safe_line(text: object, width: int | None = None) -> str:
    line = sanitize_line(str(text))
    return line if width is None else shorten(line, width)


def safe_json(value: JsonValue, *, indent: int | None = None) -> str:
    """Encodes the exact value, with every unprintable character escaped."""
    import json  # not needed for an answer in plain text

    return "".join(
        character
        if character == "\n" or (character.isprintable() and sanitize(character) == character)
        else json.dumps(character)[1:-1]
        for character in json.dumps(value, ensure_ascii=False, indent=indent)
    )


def word_in(row: JsonObject, name: str) -> str:
    """Returns the field if it is a string, else `""`: a newer server may send another type."""
    value = row.get(name)
    return value if isinstance(value, str) else ""


def number_in(row: JsonObject, name: str) -> int:
    value = row.get(name)
    return value if isinstance(value, int) else 0


def objects_in(value: JsonValue) -> list[JsonObject]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


# orjson escapes C0 by itself; a terminal would obey these too.
_UNSAFE_IN_JSON = re.compile("[\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def attachment_words(attached: JsonObject) -> str:
    """Describes an attachment in one line: its name, size and type."""
    name = safe_line(attached.get("filename") or attached.get("file_id"))
    details = [size_words(size)] if isinstance(size := attached.get("size"), int) else []
    if kind := word_in(attached, "content_type"):
        details.append(safe_line(kind))
    return f"file {name}" + (f" ({', '.join(details)})" if details else "")


def size_words(size: int) -> str:
    """Formats a size: 1234567 → 1.2 MB."""
    for unit, letters in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= unit:
            return f"{size / unit:.3g} {letters}"
    return f"{size} bytes" if size != 1 else "1 byte"


def dump_json(value: object, *, pretty: bool = False) -> str:
    import orjson  # not needed for an answer in plain text

    text = orjson.dumps(value, option=orjson.OPT_INDENT_2 if pretty else None).decode()
    return _UNSAFE_IN_JSON.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


_FENCE = re.compile(r"^([ ]*)(`{3,}|~{3,})[ \t]*([^\n]*)$")
_QUOTE = re.compile(r"^(?:[ ]{0,3}>[ ]?)+")


def code_blocks(markdown: str) -> Iterator[tuple[str, str]]:
    """Yields language and code of each fenced block. A block that is never closed ends with the
    text."""
    lines = iter(markdown.replace("\r\n", "\n").removesuffix("\n").split("\n"))
    for line in lines:
        quote = _QUOTE.match(line)
        opening = _FENCE.match(line[quote.end() :] if quote else line)
        # The info string after backticks has no backticks: ```x``` is inline code.
        if not opening or (opening[2][0] == "`" and "`" in opening[3]):
            continue
        indent, fence = len(opening[1]), opening[2]
        closing = re.compile(rf"^[ ]*{re.escape(fence[0])}{{{len(fence)},}}[ \t]*$")
        kept: list[str] = []
        for inside in lines:
            code = _QUOTE.sub("", inside, count=1) if quote else inside
            if closing.match(code):
                break
            spaces = len(code) - len(code.lstrip(" "))
            kept.append(code[min(indent, spaces) :] + "\n")
        # The first word after the fence: `python title="x"` is python.
        yield (opening[3].split() or [""])[0].lower(), "".join(kept)
