"""Decides about colours and encodings, and writes answers and remarks.

In a command, stdout and stderr are `SafeOutput`, which sanitizes everything that any code
prints. Exact bytes go to `exact_stream`: our own escape sequences, and answers and exports
for a file or a pipe. Colours are decided for each stream: a terminal gets them unless
`NO_COLOR`, `TERM=dumb` or the like forbid them. Answers go to stdout, remarks to stderr.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import TextIOBase, TextIOWrapper
from typing import TYPE_CHECKING, TextIO, cast

from nplt_client.errors import NpltError

if TYPE_CHECKING:  # both load msgspec, which is slow
    from nplt_client.render.text import Sanitizer
    from nplt_client.settings import NotifyBy

_SILENCE_SECONDS = 2.0


def is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except ValueError:  # closed
        return False


def has_screen(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether stdin and stdout are a terminal that can be drawn on."""
    able = environ.get("TERM") not in (None, "", "dumb", "unknown")
    return able and is_terminal(sys.stdin) and is_terminal(sys.stdout)


def colour_wanted(stream: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    if environ.get("NO_COLOR"):
        return False
    if forced := environ.get("FORCE_COLOR"):
        return forced not in ("0", "false")
    return is_terminal(stream) and environ.get("TERM") != "dumb"


class SafeOutput(TextIOBase):
    """A stream that removes everything that could control a terminal. Each write is sanitized
    by itself: an unfinished sequence at its end swallows nothing of the next write.
    """

    def __init__(self, exact: TextIO) -> None:
        self.exact = exact

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self.exact.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        return self.exact.errors

    def write(self, text: str) -> int:
        from nplt_client.render.text import sanitize

        self.exact.write(sanitize(text))
        return len(text)

    def flush(self) -> None:
        self.exact.flush()

    def fileno(self) -> int:
        return self.exact.fileno()

    def isatty(self) -> bool:
        return self.exact.isatty()


def exact_stream(stream: TextIO) -> TextIO:
    """Returns the stream without its sanitizer."""
    return stream.exact if isinstance(stream, SafeOutput) else stream


def prepare_standard_streams() -> None:
    """Makes stdout and stderr safe. Files and pipes get UTF-8 whatever the locale is; a
    terminal gets its own encoding.

    A stream that was closed (`>&-`) is replaced by /dev/null, before a socket gets its file
    descriptor.
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
    sys.stdout = cast(TextIO, SafeOutput(sys.stdout))
    sys.stderr = cast(TextIO, SafeOutput(sys.stderr))


def discard_stdout() -> None:
    """Drops buffered output, which Python would fail to write at exit, with a message."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


def dim(text: str, *, enabled: bool) -> str:
    return f"\x1b[2m{text}\x1b[0m" if enabled and text else text


def clipboard_sequence(text: str) -> str:
    """Returns the OSC 52 sequence that copies the text to the terminal's clipboard, also over
    ssh."""
    from base64 import b64encode

    return f"\x1b]52;c;{b64encode(text.encode(errors='replace')).decode()}\x07"


def notification_sequence(words: str, by: NotifyBy) -> str:
    """Returns the sequence for the bell or a desktop notification, which reaches a person who
    looks at another window."""
    if by == "osc9":
        from nplt_client.render.text import safe_line

        return f"\x1b]9;nplt: {safe_line(words, 80)}\x07"
    return "\x07" if by == "bell" else ""


class _Remarks:
    are_printed = True


@contextmanager
def no_remarks() -> Iterator[None]:
    """Prints no remarks while it lasts. Errors are printed after it."""
    _Remarks.are_printed = False
    try:
        yield
    finally:
        _Remarks.are_printed = True


def print_remark(message: str, *, dimmed: bool = False) -> None:
    """Prints one line on stderr, so that it never mixes with an answer on stdout. Newlines are
    removed: a hostile name can't add a line that looks like one of ours."""
    if not _Remarks.are_printed:
        return
    from nplt_client.render.text import sanitize

    text = " ".join(sanitize(message).splitlines())
    if dimmed:
        text = dim(text, enabled=colour_wanted(sys.stderr))
    stream = exact_stream(sys.stderr)
    stream.write(text + "\n")
    stream.flush()


@contextmanager
def remark_if_silent(address: object) -> Iterator[None]:
    """Prints a remark if the `with` block, which waits for a server, takes long: another
    program may listen at that address."""
    message = f"no answer yet from {address}: is it an nplt server? Still waiting …"
    timer = threading.Timer(_SILENCE_SECONDS, print_remark, (message,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def print_error(error: NpltError) -> None:
    for line in error_lines(error):
        print_remark(line)


def error_lines(error: NpltError) -> Iterator[str]:
    """Yields the first line of the message and, indented, its other lines and the conversations
    that an ambiguous name could mean. They are not sanitized."""
    first, *more = error.message.splitlines() or [""]
    unknown = error.code == "not_found" and error.field == "session_id" and ";" not in error.message
    hint = "; nplt sessions lists yours" if unknown else ""
    yield f"nplt: {first}{hint}"
    yield from (f"    {line.strip()}" for line in more)
    candidates = error.details.get("candidates")
    for one in candidates if isinstance(candidates, list) else ():
        if isinstance(one, dict):
            yield f"    {one.get('session_id')}  {one.get('name')}"


class AnswerWriter:
    """Writes the answer piece by piece; adds a newline if it ends without one."""

    def __init__(self, stream: TextIO) -> None:
        """A terminal gets sanitized text, a file or a pipe the exact text."""
        self._stream = exact_stream(stream)
        self._sanitizer: Sanitizer | None = None
        self._ends_line = True
        if is_terminal(stream):
            from nplt_client.render.text import Sanitizer

            self._sanitizer = Sanitizer()

    def write(self, piece: str) -> None:
        shown = self._sanitizer.feed(piece) if self._sanitizer else piece
        if shown:
            self._stream.write(shown)
            self._stream.flush()
            self._ends_line = shown.endswith("\n")

    def end_line(self) -> None:
        if not self._ends_line:
            self.write("\n")
