"""Makes text from outside safe to show in a terminal.

A model, a file's name or a stranger's prompt may hold escape sequences that
recolour, retitle, report back or rewrite what stands on the screen. Nothing of
the kind gets through: sequences that begin with ESC go as a whole (so that no
`[31m` litters the text), and every control character goes even where no sequence
was recognised: of one begun by a C1 character (U+009B, U+009D) the harmless rest
stays. What stays is text, newlines and tabs.

`Sanitizer` keeps its state between pieces: however a text is cut, the pieces
joined read the same. It does not judge look-alikes or width.
"""

from __future__ import annotations

import re
from enum import Enum

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
    """One per stream of text; `feed` gives what may be shown of each piece."""

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
            elif self._takes(text[at]):
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

    def _takes(self, character: str) -> bool:
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
    """For names and other things that must stay on one line."""
    return " ".join(sanitize(text).split())
