"""Support for typing a prompt: completion, files named in it, long pastes, external editor,
type-ahead."""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import subprocess
import sys
import tempfile
import termios
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from nplt_client.chat.commands import COMMANDS
from nplt_client.chat.display import THEMES
from nplt_client.chat.prompt_text import MENTION_AT_END, PastedTexts, as_mention
from nplt_client.errors import ConfigurationError
from nplt_client.render.text import sanitize, size_words
from nplt_protocol.messages import EFFORTS

SUGGESTIONS_MAX = 8


class Suggestion(Struct, frozen=True, kw_only=True):
    line: str
    """The content of the input after this suggestion is accepted."""
    shown: str
    help: str = ""
    is_by_tab: bool = False
    """Whether only Tab accepts it; other keys act as without it."""


COMMANDS_WITH_NAMES = ("/switch ", "/delete ")


def suggestions(
    typed: str,
    models: Collection[str],
    names: Collection[str] = (),
    pasted: PastedTexts | None = None,
) -> list[Suggestion]:
    """Completes a command: its name, and then its argument, such as a model, a conversation, a
    theme or a file. In a prompt it completes a file after `@`, and opens a long paste."""
    if not typed.startswith("/") or typed.startswith("//") or "\n" in typed:
        return _in_a_prompt(typed, pasted)
    name, space, argument = typed[1:].partition(" ")
    if not space:
        return _names(name.lower())
    if name == "attach":
        return [
            Suggestion(line=f"/attach {shown}", shown=shown, help=about_file(path))
            for shown, path in _paths(argument)
        ]
    arguments: dict[str, Collection[str]] = {
        "model": models,
        "effort": (*EFFORTS, "default"),
        "switch": names,
        "delete": names,
        "theme": THEMES,
        "allow": ("always",),
        "deny": ("always",),
    }
    choices = arguments.get(name, ())
    if argument in choices:
        return []
    fitting = [one for one in choices if argument.lower() in one.lower()]
    return [Suggestion(line=f"/{name} {one}", shown=one) for one in fitting[:SUGGESTIONS_MAX]]


def _names(typed: str) -> list[Suggestion]:
    """Suggests commands that begin with this text, then those that contain it, and none for a
    complete name."""
    if typed in COMMANDS:
        return []
    beginning = [name for name in COMMANDS if name.startswith(typed)]
    inside = [name for name in COMMANDS if typed in name[1:]]
    suggested = dict.fromkeys((*beginning, *inside) if typed else beginning)
    return [
        Suggestion(
            line=f"/{name}" + (" " if COMMANDS[name].argument else ""),
            shown=f"/{name} {COMMANDS[name].argument}".rstrip(),
            help=COMMANDS[name].help,
        )
        for name in suggested
    ]


def _in_a_prompt(typed: str, pasted: PastedTexts | None) -> list[Suggestion]:
    if pasted is not None and (chip := pasted.chip_before(typed)):
        opened = typed.removesuffix(chip) + pasted.expand(chip)
        return [Suggestion(line=opened, shown="Tab", help="opens the paste", is_by_tab=True)]
    found = MENTION_AT_END.search(typed)
    if found is None:
        return []
    before = typed[: found.start()]
    return [
        Suggestion(
            line=before + (f"@{shown}" if path.is_dir() else f"{as_mention(shown)} "),
            shown=shown,
            help=about_file(path),
        )
        for shown, path in _paths(found["path"].removeprefix('"'))
    ]


def about_file(path: Path) -> str:
    try:
        return "directory" if path.is_dir() else size_words(path.stat().st_size)
    except OSError:
        return ""


def _paths(typed: str) -> list[tuple[str, Path]]:
    """The files and directories whose paths begin so, as they would be typed."""
    folder = Path(typed).expanduser() if typed.endswith("/") else Path(typed).expanduser().parent
    start = "" if typed.endswith("/") else Path(typed).name
    folder_part = typed[: len(typed) - len(start)]
    try:
        paths = sorted(path for path in folder.iterdir() if path.name.startswith(start))
    except OSError:
        return []
    visible = [path for path in paths if _is_offered(path.name, start)]
    offered = [
        (shown, path)
        for path in visible[: SUGGESTIONS_MAX + 1]
        if (shown := f"{folder_part}{path.name}{'/' if path.is_dir() else ''}") != typed
    ]
    return offered[:SUGGESTIONS_MAX]


def _is_offered(name: str, start: str) -> bool:
    """Excludes names with control characters, which the input can't hold."""
    is_writable = sanitize(name) == name and len(name.splitlines()) == 1 and "\t" not in name
    return is_writable and (start.startswith(".") or not name.startswith("."))


def editor_command(environ: Mapping[str, str] = os.environ) -> list[str]:
    return shlex.split(environ.get("VISUAL") or environ.get("EDITOR") or "vi")


def edit_in_editor(draft: str) -> str:
    """Edits the draft in an external editor, and blocks until that is closed. The terminal must
    be free."""
    command = editor_command()
    # A private directory: an editor that replaces the file would lose the file's mode.
    with tempfile.TemporaryDirectory(prefix="nplt-") as folder:
        path = Path(folder, "prompt.md")
        path.touch(mode=0o600)
        path.write_text(draft, encoding="utf-8")
        try:
            done = subprocess.run([*command, str(path)], check=False)
        except OSError as error:
            raise ConfigurationError(f"can't start {command[0]}: {error.strerror}") from None
        if done.returncode:
            raise ConfigurationError(f"{command[0]} ended with code {done.returncode}")
        return path.read_text(encoding="utf-8", errors="replace").rstrip("\n")


class TypedAhead(Struct, frozen=True, kw_only=True):
    """Input that was typed before the chat took over the terminal."""

    lines: tuple[str, ...] = ()
    rest: str = ""
    """The text after the last Enter."""
    terminal_modes: list[object] | None = None
    """The terminal's original modes."""


@contextlib.contextmanager
def typed_ahead() -> Iterator[TypedAhead]:
    """Reads the type-ahead, and sets a terminal mode in which Enter is Enter.

    Until a toolkit reads keys, the terminal turns Enter into a newline, which does not send the
    prompt in a multi-line input. So earlier typing is read here as lines.
    """
    descriptor = sys.stdin.fileno()
    try:
        modes = termios.tcgetattr(descriptor)
    except termios.error:  # stdin is not a terminal
        yield TypedAhead()
        return
    reading = [*modes[:6], list(modes[6])]
    reading[0] &= ~termios.ICRNL
    reading[3] &= ~(termios.ICANON | termios.ECHO)
    reading[6][termios.VMIN], reading[6][termios.VTIME] = 1, 0
    termios.tcsetattr(descriptor, termios.TCSANOW, reading)
    try:
        typed = b""
        while select.select([descriptor], [], [], 0)[0]:
            read = os.read(descriptor, 65_536)
            if not read:
                break
            typed += read
        text = sanitize(typed.decode(errors="replace").replace("\r", "\n"))
        *lines, rest = text.split("\n")
        yield TypedAhead(
            lines=tuple(filter(str.strip, lines)), rest=rest, terminal_modes=list(modes)
        )
    finally:
        with contextlib.suppress(termios.error):
            termios.tcsetattr(descriptor, termios.TCSANOW, modes)
