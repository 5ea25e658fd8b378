"""Counts docstrings and notes that are fragments, and modules with banners.

    python -m tests.documents.fragments [--list]

A docstring, or the note below an attribute, should be a sentence in plain English, or a noun
phrase that names the thing ("The tools this model accepts."). It counts as a fragment if its
first sentence begins with a word that needs something before it (`Of these parts.`, `Those the
model takes.`, `For who waits.`, `One that …`, `Whoever …`) and no main clause follows after a
comma. Words of doubtful use are not counted. A banner is a comment line of dashes; a module with
four or more of them still shows the borders of the files it was merged from.

`make check` runs this and fails above the limits below.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("markdown", "protocol", "storage", "server", "gateway", "client")
FRAGMENTS_MAX = 5
BANNERS_MAX = 5
BANNERS_PER_MODULE_MAX = 3


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


NEVER = _words(
    "of those whose who whoever whichever whatever ones nothing nobody anew again beside "
    "also only not than so such else otherwise what"
)
"""Words that begin a fragment whatever follows."""
UNLESS_CLAUSE = _words(
    "for as by with without in on at from until till after before once where when while if "
    "unless because to into up out over under between among per instead that"
)
"""Words that begin a fragment unless a clause follows after a comma."""
_FIRST_WORD = re.compile(r"[`\"'(]*([A-Za-z]+)")
_SENTENCE_END = re.compile(r"(?<=[.:;])\s")
_ONE_THAT = re.compile(r"One (that|who|whose|which|is|by|after|at|of)\b")
_CLAUSE = re.compile(r", (?!(and|or|also|if|within|by|which|where|in)\b)")
"""A comma, and what may be a main clause: a heuristic."""
_BANNER = re.compile(r"^\s*# -{10,}$", re.M)


def notes_of(source: str) -> Iterator[tuple[int, str]]:
    """Docstrings, and texts below assignments, with their lines."""
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        for place, statement in enumerate(body):
            match statement:
                case ast.Expr(value=ast.Constant(value=str(note))):
                    if place == 0 or isinstance(body[place - 1], ast.Assign | ast.AnnAssign):
                        yield statement.lineno, note
                case _:
                    pass


def is_fragment(note: str) -> bool:
    first = _SENTENCE_END.split(note.strip(), maxsplit=1)[0]
    found = _FIRST_WORD.match(first)
    word = found.group(1).lower() if found else ""
    if word in NEVER or _ONE_THAT.match(first):
        return True
    return word in UNLESS_CLAUSE and _CLAUSE.search(first) is None


def fragments(root: Path) -> list[str]:
    return [
        f"{path.relative_to(root)}:{line}: {note.strip().splitlines()[0]}"
        for package in PACKAGES
        for path in sorted((root / package).rglob("*.py"))
        for line, note in notes_of(path.read_text())
        if is_fragment(note)
    ]


def bannered_modules(root: Path) -> list[str]:
    return [
        str(path.relative_to(root))
        for package in PACKAGES
        for path in sorted((root / package).rglob("*.py"))
        if len(_BANNER.findall(path.read_text())) > BANNERS_PER_MODULE_MAX
    ]


def main() -> int:
    root = next((Path(each) for each in sys.argv[1:] if not each.startswith("-")), ROOT)
    found, bannered = fragments(root), bannered_modules(root)
    if "--list" in sys.argv:
        print(*found, *bannered, sep="\n")
    print(f"fragments: {len(found)}, modules with four or more banners: {len(bannered)}")
    return int(len(found) > FRAGMENTS_MAX or len(bannered) > BANNERS_MAX)


if __name__ == "__main__":
    sys.exit(main())
