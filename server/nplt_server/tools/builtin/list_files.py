"""`list_files`: what is in a directory, if it is an allowed one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import islice
from typing import Annotated, Final

from pydantic import Field

from nplt_server.tools.base import Tool, ToolFailed
from nplt_server.tools.builtin.allowed_roots import AllowedRoots, OpenPath, naming_roots
from nplt_server.tools.typed import typed_tool

ENTRIES_MAX: Final = 100_000
"""Of one directory that are looked at."""

_LIMIT_MAX: Final = 1_000


def list_files_tool(allowed: AllowedRoots) -> Tool:
    def list_files(
        path: Annotated[
            str,
            Field(description="absolute, or relative to an allowed directory; empty: those"),
        ] = "",
        offset: Annotated[int, Field(ge=0, description="how many entries to pass over")] = 0,
        limit: Annotated[int, Field(ge=1, le=_LIMIT_MAX, description="how many to show")] = 200,
    ) -> str:
        """The files and directories in a directory on the server, with their sizes."""
        if not path and len(allowed.roots) > 1:
            return "\n".join(f"{root}/" for root in allowed.roots)
        with allowed.open(path) as opened:
            if not opened.is_directory:
                return f"[{opened.path} is a file of {opened.size:,} bytes]"
            entries = _look(opened)
            shown = [_line(entry) for entry in entries[offset : offset + limit]]
        return _listing(opened, entries, shown, offset)

    return naming_roots(typed_tool(list_files), allowed)


def _look(opened: OpenPath) -> list[os.DirEntry[str]]:
    with os.scandir(opened.descriptor) as found:
        entries = list(islice(found, ENTRIES_MAX + 1))
    if len(entries) > ENTRIES_MAX:
        raise ToolFailed(f"{opened.path} has more than {ENTRIES_MAX:,} entries")
    return sorted(entries, key=lambda entry: entry.name)


def _line(entry: os.DirEntry[str]) -> str:
    name = entry.name if entry.name.isprintable() else repr(entry.name)
    if entry.is_symlink():
        return f"{name} (link)"
    if entry.is_dir(follow_symlinks=False):
        return f"{name}/"
    if not entry.is_file(follow_symlinks=False):
        return f"{name} (special)"
    try:
        return f"{name} ({entry.stat(follow_symlinks=False).st_size:,} bytes)"
    except OSError:
        return f"{name} (gone)"


def _listing(opened: OpenPath, entries: Sequence[object], shown: Sequence[str], offset: int) -> str:
    if not entries:
        return f"[{opened.path} is empty]"
    if not shown:
        raise ToolFailed(f"{opened.path} has only {len(entries)} entries")
    last = offset + len(shown)
    what_next = "the end" if last == len(entries) else f"next offset {last}"
    place = f"[{opened.path}, entries {offset + 1} to {last} of {len(entries)}; {what_next}]"
    return "\n".join([place, *shown])
