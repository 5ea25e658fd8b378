"""A model and a tool that count their calls, for the servers of a cluster.

Both append a line, in one write, to the file that FAULTS_CALLS names, so that many processes can
share it and a process that is killed afterwards has been counted. A prompt that begins with `tool`
makes the model call the tool, with the prompt as its argument; one that begins with `fast` is
answered without pauses.

If FAULTS_WINDOW names a number, a server keeps only about so many entries of a conversation in
memory. Conversations are then soon longer than what is in memory, as they otherwise are only after
5,000 entries.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import anyio

from nplt_server.context.messages import ModelInputMessage
from nplt_server.providers import LlmRequest, Stopped, TextPiece, ToolCallPiece
from nplt_server.providers.offline import Piece
from nplt_storage import pages

CALLS_FILE = "FAULTS_CALLS"
WINDOW = "FAULTS_WINDOW"
_WORD_SECONDS = 0.01

if entries := os.environ.get(WINDOW):
    pages.WindowSize = partial(pages.WindowSize, entries=int(entries))  # type: ignore[misc, assignment]


async def answer(request: LlmRequest) -> AsyncIterator[Piece]:
    """Repeats the prompt, word by word."""
    last = request.context[-1]
    prompt = "counted"
    if isinstance(last, ModelInputMessage):
        prompt = last.content
        _note("model", prompt)
        if prompt.startswith("tool "):
            yield ToolCallPiece(
                index=0, tool_name="count_once", arguments=f'{{"what": "{prompt}"}}'
            )
            yield Stopped(reason="tool_calls")
            return
    pause = 0.0 if prompt.startswith("fast ") else _WORD_SECONDS
    for word in prompt.split():
        yield TextPiece(text=f"{word} ")
        await anyio.sleep(pause)
    yield Stopped(reason="end")


def count_once(what: str) -> str:
    """Counts how often it is called."""
    _note("tool", what)
    return "counted"


def _note(who: str, what: str) -> None:
    file = os.open(os.environ[CALLS_FILE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, f"{who} {what}\n".encode())
    finally:
        os.close(file)


def calls_in(path: Path) -> Counter[str]:
    """The number of calls of each: `model TEXT`, `tool TEXT`."""
    return Counter(path.read_text().splitlines()) if path.exists() else Counter()
