"""What a half-typed command could become. Pure.

Names of commands while the name is typed, then what their argument may be: a
model, a theme, a file. Only the line as a whole is ever replaced.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from nplt_client.chat_vocabulary import VOCABULARY
from nplt_client.sanitize import sanitize

SUGGESTIONS_MAX = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    line: str
    """What the input holds when this one is taken."""
    shown: str
    help: str = ""


def suggestions(
    typed: str, known: Collection[str], arguments: Mapping[str, Collection[str]]
) -> list[Suggestion]:
    if not typed.startswith("/") or typed.startswith("//") or "\n" in typed:
        return []
    name, space, argument = typed[1:].partition(" ")
    if not space:
        return _names(name.lower(), known)
    if name == "attach":
        return _files(argument)[:SUGGESTIONS_MAX]
    choices = arguments.get(name, ())
    if argument in choices:
        return []
    fitting = [one for one in choices if argument.lower() in one.lower()]
    return [Suggestion(line=f"/{name} {one}", shown=one) for one in fitting[:SUGGESTIONS_MAX]]


def _names(begun: str, known: Collection[str]) -> list[Suggestion]:
    """Those that begin so, then those that have it inside; none for a name that is whole."""
    if begun in known:
        return []
    beginning = [name for name in VOCABULARY if name in known and name.startswith(begun)]
    inside = [name for name in VOCABULARY if name in known and begun in name[1:]]
    found = dict.fromkeys((*beginning, *inside) if begun else beginning)
    return [
        Suggestion(
            line=f"/{name}" + (" " if VOCABULARY[name].argument else ""),
            shown=f"/{name} {VOCABULARY[name].argument}".rstrip(),
            help=VOCABULARY[name].help,
        )
        for name in found
    ]


def _files(begun: str) -> list[Suggestion]:
    folder = Path(begun).expanduser() if begun.endswith("/") else Path(begun).expanduser().parent
    start = "" if begun.endswith("/") else Path(begun).name
    kept = begun[: len(begun) - len(start)]
    try:
        found = sorted(path for path in folder.iterdir() if path.name.startswith(start))
    except OSError:
        return []
    visible = [path for path in found if _is_offered(path.name, start)]
    return [
        Suggestion(line=f"/attach {shown}", shown=shown)
        for path in visible[: SUGGESTIONS_MAX + 1]
        if (shown := f"{kept}{path.name}{'/' if path.is_dir() else ''}") != begun
    ]


def _is_offered(name: str, start: str) -> bool:
    """A name with control characters could not be written into the input as it is."""
    is_writable = sanitize(name) == name and len(name.splitlines()) == 1 and "\t" not in name
    return is_writable and (start.startswith(".") or not name.startswith("."))
