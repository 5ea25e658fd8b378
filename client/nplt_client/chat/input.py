"""Support for typing a prompt: history, completion, external editor, type-ahead.

The history is a file of JSON strings, one per line, mode 0600, shared by all chats.
Commands are not stored. The file is bounded: it is rewritten atomically when it has twice the
lines that it may have. A chat that can't write it continues without a history.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shlex
import subprocess
import sys
import tempfile
import termios
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from nplt_client.chat.commands import COMMANDS, parse_prompt
from nplt_client.chat.display import THEMES
from nplt_client.errors import ConfigurationError
from nplt_client.render.text import sanitize
from nplt_protocol.messages import EFFORTS

PROMPTS_KEPT = 1_000
_PROMPT_CHARACTERS_MAX = 100_000


class PromptHistory:
    def __init__(self, path: Path, *, kept: int = PROMPTS_KEPT) -> None:
        self._path = path
        self._kept = kept
        self._lines = 0

    def load(self) -> list[str]:
        try:
            lines = self._path.read_bytes().splitlines()
        except OSError:
            return []
        self._lines = len(lines)
        prompts: list[str] = []
        for line in lines:
            with contextlib.suppress(ValueError):
                value = json.loads(line)
                if isinstance(value, str) and parse_prompt(value) is not None:
                    prompts.append(value)
        return prompts[-self._kept :]

    def add(self, prompt: str) -> None:
        if len(prompt) > _PROMPT_CHARACTERS_MAX or parse_prompt(prompt) is None:
            return
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _write(self._path, os.O_APPEND | os.O_CLOEXEC, [prompt])
            self._lines += 1
            if self._lines >= 2 * self._kept:
                prompts = self.load()
                temporary = self._path.with_suffix(f".{os.getpid()}.tmp")
                temporary.unlink(missing_ok=True)
                _write(temporary, os.O_EXCL, prompts)
                temporary.replace(self._path)
                self._lines = len(prompts)


def _write(path: Path, flags: int, prompts: Iterable[str]) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | flags, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.writelines(json.dumps(prompt).encode() + b"\n" for prompt in prompts)


class PromptRecall:
    """Moves through earlier prompts with Up and Down.

    The draft in the input is kept, and comes back after the newest prompt. An earlier prompt
    that was edited becomes the draft.
    """

    def __init__(self, prompts: Iterable[str] = ()) -> None:
        self._prompts = list(prompts)
        self._place = len(self._prompts)
        self._draft = ""

    @property
    def newest_first(self) -> list[str]:
        """The prompts without duplicates and without commands."""
        prompts = [one for one in reversed(self._prompts) if parse_prompt(one) is not None]
        return list(dict.fromkeys(prompts))

    def remember(self, prompt: str) -> bool:
        """Adds a prompt; returns False if it equals the last one."""
        is_new = bool(prompt.strip()) and self._prompts[-1:] != [prompt]
        if is_new:
            self._prompts.append(prompt)
        self._place = len(self._prompts)
        self._draft = ""
        return is_new

    def older(self, typed: str) -> str | None:
        self._keep_draft(typed)
        if self._place == 0:
            return None
        self._place -= 1
        return self._prompts[self._place]

    def newer(self, typed: str) -> str | None:
        self._keep_draft(typed)
        if self._place >= len(self._prompts):
            return None
        self._place += 1
        return self._draft if self._place == len(self._prompts) else self._prompts[self._place]

    def _keep_draft(self, typed: str) -> None:
        at_end = self._place == len(self._prompts)
        if at_end or typed != self._prompts[self._place]:
            self._draft = typed
            self._place = len(self._prompts)


SUGGESTIONS_MAX = 8


class Suggestion(Struct, frozen=True, kw_only=True):
    line: str
    """The content of the input after this suggestion is accepted."""
    shown: str
    help: str = ""


COMMANDS_WITH_NAMES = ("/switch ", "/delete ")


def suggestions(
    typed: str, models: Collection[str], names: Collection[str] = ()
) -> list[Suggestion]:
    """Completes a command: its name, and then its argument, such as a model, a conversation, a
    theme or a file."""
    if not typed.startswith("/") or typed.startswith("//") or "\n" in typed:
        return []
    name, space, argument = typed[1:].partition(" ")
    if not space:
        return _names(name.lower())
    if name == "attach":
        return _files(argument)[:SUGGESTIONS_MAX]
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


def _files(typed: str) -> list[Suggestion]:
    folder = Path(typed).expanduser() if typed.endswith("/") else Path(typed).expanduser().parent
    start = "" if typed.endswith("/") else Path(typed).name
    folder_part = typed[: len(typed) - len(start)]
    try:
        paths = sorted(path for path in folder.iterdir() if path.name.startswith(start))
    except OSError:
        return []
    visible = [path for path in paths if _is_offered(path.name, start)]
    return [
        Suggestion(line=f"/attach {shown}", shown=shown)
        for path in visible[: SUGGESTIONS_MAX + 1]
        if (shown := f"{folder_part}{path.name}{'/' if path.is_dir() else ''}") != typed
    ]


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
