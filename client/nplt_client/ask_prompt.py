"""What `nplt ask` asks: the argument, stdin, or the argument with stdin as context.

Read in bounded pieces and within the command's deadline; a pipe that never
ends is a limit exceeded, not a process that grows.
"""

from __future__ import annotations

import os
import select
import sys

import click

from nplt_client.errors import LimitExceeded
from nplt_client.link import Deadline
from nplt_client.terminal import is_terminal, say

STDIN_BYTES_MAX = 64 * 1024 * 1024
REMARK_AFTER_SECONDS = 3.0
_PIECE_BYTES = 64 * 1024


def assemble_prompt(argument: str | None, deadline: Deadline) -> str:
    if argument == "-" or (argument is None and not is_terminal(sys.stdin)):
        text = _read_stdin(deadline)
    elif argument is None:
        raise click.UsageError("Say what to ask: nplt ask PROMPT, or nplt ask - to read stdin.")
    else:
        text = _clean(argument)
        context = "" if is_terminal(sys.stdin) else _read_stdin(deadline)
        if context.strip():
            text = f"{text}\n\n{context}"
    if not text.strip():
        raise click.UsageError("The prompt is blank.")
    return text


def _read_stdin(deadline: Deadline) -> str:
    source = sys.stdin.fileno()
    pieces: list[bytes] = []
    size = 0
    patience = deadline.within(REMARK_AFTER_SECONDS)
    if not select.select([source], [], [], patience.left())[0]:
        say("waiting for stdin to end (</dev/null asks without it)", dimmed=True)
    while True:
        if not select.select([source], [], [], deadline.left())[0]:
            continue  # the deadline speaks up on the next round
        piece = os.read(source, _PIECE_BYTES)
        if not piece:
            break
        pieces.append(piece)
        size += len(piece)
        if size > STDIN_BYTES_MAX:
            raise LimitExceeded(f"stdin holds more than {STDIN_BYTES_MAX:,} bytes")
    return b"".join(pieces).decode(errors="replace")


def _clean(argument: str) -> str:
    """Bytes of the command line that are no UTF-8 arrive as lone surrogates."""
    return argument.encode(errors="surrogateescape").decode(errors="replace")
