"""`read_file`: lines of a text file under an allowed directory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated, Final

from pydantic import Field

from nplt_server.tools.base import Tool, ToolFailed
from nplt_server.tools.builtin.allowed_roots import AllowedRoots, OpenPath, naming_roots
from nplt_server.tools.typed import typed_tool

FILE_BYTES_MAX: Final = 16 * 1024 * 1024
SHOWN_BYTES_MAX: Final = 24_000
"""Less than what is shown of a result at once."""

_LINES_MAX: Final = 2_000
_READ_BYTES: Final = 1024 * 1024
_LOOKED_AT_BYTES: Final = 8_192
"""For a NUL, which no text has."""


def read_file_tool(allowed: AllowedRoots) -> Tool:
    def read_file(
        path: Annotated[str, Field(description="absolute, or relative to an allowed directory")],
        offset: Annotated[int, Field(ge=1, description="first line; 1 is the file's first")] = 1,
        limit: Annotated[int, Field(ge=1, le=_LINES_MAX, description="how many lines")] = 500,
    ) -> str:
        """Lines of a text file on the server."""
        with allowed.open(path) as opened:
            if opened.is_directory:
                raise ToolFailed(f"{opened.path} is a directory: list_files shows it")
            lines = _read_lines(opened)
        return _shown(opened, lines, offset, limit)

    return naming_roots(typed_tool(read_file), allowed)


def _read_lines(opened: OpenPath) -> list[str]:
    data = bytearray()
    while piece := os.read(opened.descriptor, _READ_BYTES):
        data += piece
        if b"\0" in data[:_LOOKED_AT_BYTES]:
            raise ToolFailed(f"{opened.path} is a binary file of {opened.size:,} bytes")
        if len(data) > FILE_BYTES_MAX:
            raise ToolFailed(
                f"{opened.path} is too large: files of up to {FILE_BYTES_MAX:,} bytes are read"
            )
    # Not splitlines, which knows line ends that no editor counts.
    lines = data.decode("utf-8-sig", errors="replace").split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def _shown(opened: OpenPath, lines: Sequence[str], offset: int, limit: int) -> str:
    if not lines:
        return f"[{opened.path} is empty]"
    if offset > len(lines):
        raise ToolFailed(f"{opened.path} has only {len(lines)} lines")
    taken = _as_many_as_fit(lines[offset - 1 : offset - 1 + limit])
    last = offset + len(taken) - 1
    what_next = "the end" if last == len(lines) else f"next offset {last + 1}"
    place = f"[{opened.path}, lines {offset} to {last} of {len(lines)}; {what_next}]"
    return "\n".join([place, *taken])


def _as_many_as_fit(lines: Sequence[str]) -> list[str]:
    """At least one, if need be only its beginning."""
    taken: list[str] = []
    room = SHOWN_BYTES_MAX
    for line in lines:
        line = line.removesuffix("\r")
        room -= len(line.encode()) + 1
        if room < 0 and not taken:
            beginning = line.encode()[:SHOWN_BYTES_MAX].decode(errors="ignore")
            return [f"{beginning} [the line goes on: {len(line):,} characters]"]
        if room < 0:
            break
        taken.append(line)
    return taken
