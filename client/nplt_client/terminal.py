"""What may be written where: colours, safe text, and answers.

Every stream is judged by itself: a terminal gets sanitized text (and colours,
unless `NO_COLOR`, `TERM=dumb` or their like say no), a file or a pipe gets the
answer exactly as it is. The only escape bytes that ever reach a terminal are
the ones made in this module.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from io import TextIOWrapper
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from nplt_client.errors import NpltError
    from nplt_client.sanitize import Sanitizer


def is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except ValueError:  # closed
        return False


def has_screen(environ: Mapping[str, str] = os.environ) -> bool:
    """A terminal that can be drawn on, with a person in front of it."""
    able = environ.get("TERM") not in (None, "", "dumb", "unknown")
    return able and is_terminal(sys.stdin) and is_terminal(sys.stdout)


def colour_wanted(stream: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    if environ.get("NO_COLOR"):
        return False
    if forced := environ.get("FORCE_COLOR"):
        return forced not in ("0", "false")
    return is_terminal(stream) and environ.get("TERM") != "dumb"


def prepare_standard_streams() -> None:
    """Files and pipes get UTF-8 whatever the locale; a terminal gets what it can show.

    A stream that was closed (`>&-`) is replaced by nothing at all, before a
    socket takes its number.
    """
    for name, mode, flags in (
        ("stdin", "r", os.O_RDONLY),
        ("stdout", "w", os.O_WRONLY),
        ("stderr", "w", os.O_WRONLY),
    ):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, flags)
            setattr(sys, name, os.fdopen(nowhere, mode, encoding="utf-8"))
    for stream in (sys.stdout, sys.stderr):
        if not isinstance(stream, TextIOWrapper):
            continue
        if is_terminal(stream):
            stream.reconfigure(errors="replace")
        else:
            stream.reconfigure(encoding="utf-8", errors="replace", newline="\n")


class Paint:
    """Dim and bold, or nothing at all."""

    __slots__ = ("enabled",)

    def __init__(self, *, enabled: bool) -> None:
        self.enabled = enabled

    def dim(self, text: str) -> str:
        return f"\x1b[2m{text}\x1b[0m" if self.enabled and text else text

    def bold(self, text: str) -> str:
        return f"\x1b[1m{text}\x1b[0m" if self.enabled and text else text


def say(message: str, *, dimmed: bool = False) -> None:
    """A remark for the person, on stderr; it never mixes with an answer on stdout."""
    from nplt_client.sanitize import sanitize

    text = sanitize(message)
    if dimmed:
        text = Paint(enabled=colour_wanted(sys.stderr)).dim(text)
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def complain(error: NpltError) -> None:
    """What went wrong, in a sentence; and the conversations a name could have meant."""
    say(f"nplt: {error.message}")
    candidates = error.details.get("candidates")
    for one in candidates if isinstance(candidates, list) else ():
        if isinstance(one, dict):
            say(f"    {one.get('session_id')}  {one.get('name')}")


class AnswerWriter:
    """The answer on stdout, as it comes. If it ends without a line end, it gets one."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._sanitizer: Sanitizer | None = None
        self._ends_line = True
        if is_terminal(stream):
            from nplt_client.sanitize import Sanitizer

            self._sanitizer = Sanitizer()

    def write(self, piece: str) -> None:
        shown = self._sanitizer.feed(piece) if self._sanitizer else piece
        if shown:
            self._stream.write(shown)
            self._stream.flush()
            self._ends_line = shown.endswith("\n")

    def end_line(self) -> None:
        if not self._ends_line:
            self._stream.write("\n")
            self._stream.flush()
            self._ends_line = True
