"""The text of a prompt while it is typed: long pastes, and files that it names.

A paste of many lines is shown as a chip. A file named as `@path` is attached to the prompt, but
only if a person typed its name: a pasted text, which may come from anywhere, attaches nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from nplt_client.errors import RequestRefused
from nplt_client.render.text import safe_line

PASTED_LINES_MAX = 20
"""A longer paste is shown as a chip."""
_CHIPS_KEPT = 100
_CHIP = re.compile(r"\[paste (\d+): [^][\n]*\]?")


class PastedTexts:
    """Long pastes, which the input shows as chips (`[paste 1: 45 lines]`), and other texts that
    nobody typed: files that are named in any of them are not attached."""

    def __init__(self) -> None:
        self._chips: dict[int, str] = {}
        self._count = 0
        self._not_typed: list[str] = []

    def take(self, text: str) -> str:
        """Returns what the input shows of a paste."""
        lines = text.count("\n") + 1
        if lines <= PASTED_LINES_MAX:
            self.note(text)
            return text
        self._count += 1
        self._chips[self._count] = text
        self._chips.pop(self._count - _CHIPS_KEPT, None)
        return f"[paste {self._count}: {lines:,} lines]"

    def note(self, text: str) -> None:
        """Notes a text in the input that was not typed now."""
        self._not_typed.append(text)

    def take_noted(self) -> tuple[str, ...]:
        """Returns the texts that were noted for the prompt that is sent now."""
        noted, self._not_typed = tuple(self._not_typed), []
        return noted

    def take_prompt(self, typed: str) -> str:
        """Returns the prompt to send, and notes the pastes in it."""
        chips = (int(found[1]) for found in _CHIP.finditer(typed))
        self._not_typed += (self._chips[number] for number in chips if number in self._chips)
        return self.expand(typed)

    def expand(self, typed: str) -> str:
        """Replaces the chips by their texts, also chips that were edited."""
        return _CHIP.sub(lambda chip: self._chips.get(int(chip[1]), chip[0]), typed)

    def chip_before(self, typed: str) -> str:
        """The chip at the end of what is typed; empty if there is none."""
        found = list(_CHIP.finditer(typed))
        is_chip = bool(found) and found[-1].end() == len(typed) and int(found[-1][1]) in self._chips
        return found[-1][0] if is_chip else ""


MENTION_AT_END = re.compile(r"""(?<!\S)@(?P<path>"[^"\n]*|[^\s"@]*)$""")
_MENTION = re.compile(r"""(?<!\S)@(?:"(?P<quoted>[^"\n]+)"|(?P<plain>[^\s"]+))""")
_PUNCTUATION = ".,;:!?)]}'"


def mentioned_files(text: str, *, not_typed: Iterable[str] = ()) -> list[Path]:
    """Finds the files that a prompt names as `@path` or `@"path"`. Any other word after an `@` is
    text. A directory is refused, with a file to name instead."""
    excluded = {name for other in not_typed for names in _mentions(other) for name in names}
    files: dict[Path, None] = {}
    for names in _mentions(text):
        for name in names if excluded.isdisjoint(names) else ():
            path = Path(name).expanduser()
            if path.is_dir() and name.strip("./"):
                raise _directory_refused(name, path)
            if path.is_file():
                files[path] = None
                break
    return list(files)


def _mentions(text: str) -> Iterator[list[str]]:
    """Yields the names that each mention may mean: the word, and the word without the punctuation
    after it."""
    for found in _MENTION.finditer(text):
        name = found["quoted"] or found["plain"]
        yield list(dict.fromkeys((name, name.rstrip(_PUNCTUATION))))


def _directory_refused(name: str, path: Path) -> RequestRefused:
    inside: list[str] = []
    with suppress(OSError):
        inside = sorted(one.name for one in path.iterdir() if one.is_file())
    named = [one for one in inside if not one.startswith(".")][:1]
    hint = "".join(f", such as {as_mention(str(Path(name, one)))}" for one in named)
    return RequestRefused(
        safe_line(f"@{name} is a directory; name a file in it{hint}"), code="malformed"
    )


def as_mention(path: str) -> str:
    return f'@"{path}"' if " " in path else f"@{path}"
