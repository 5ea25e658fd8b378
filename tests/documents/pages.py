"""The documents for readers, and what they show: links, blocks, commands."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "SECURITY.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]

_FENCED = re.compile(r"^```(\S*)\n(.*?)^```", re.S | re.M)
_PROGRAMS = re.compile(r"(?:\.venv/bin/)?(nplt|nplt-server|python)")


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(name: str, language: str) -> list[str]:
    return [body for kind, body in _FENCED.findall(text_of(name)) if kind == language]


def links(name: str) -> Iterator[tuple[Path, str]]:
    """The file and the anchor of each link that stays in the repository."""
    for target in re.findall(r"\]\(([^)\s]+)\)", _FENCED.sub("", text_of(name))):
        if "://" not in target:
            path, _, anchor = target.partition("#")
            page = ROOT / name
            yield ((page.parent / path).resolve() if path else page), anchor


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.+)$", _FENCED.sub("", page.read_text(encoding="utf-8")), re.M)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in plain}


def lines(name: str) -> list[str]:
    """The indented lines: what a reader would type."""
    return re.findall(r"^    (\S.*)$", _FENCED.sub("", text_of(name)), re.M)


def commands(name: str) -> Iterator[list[str]]:
    """The words of every call of one of our programs, in lines and in the running text."""
    shown = [*lines(name), *re.findall(r"`([^`\n]+)`", _FENCED.sub("", text_of(name)))]
    for line in shown:
        for part in re.split(r"[|>()<]+(?= |\w|$)|\bsource\b", _quoted_bars(line)):
            try:
                words = shlex.split(part.replace("\0", "|"), comments=True)
            except ValueError:  # an apostrophe in a sentence
                continue
            while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
                words = words[1:]
            if words and (program := _PROGRAMS.fullmatch(words[0])):
                yield [program[1], *words[1:]]


def _quoted_bars(line: str) -> str:
    """`ID|NAME` is one word."""
    return re.sub(r"(?<=\w)\|(?=\w)", "\0", line)
