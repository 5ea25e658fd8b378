"""What a model calls the tool of an MCP server: `{server}__{tool}`.

Providers take letters, digits, `_` and `-`, at most 64 of them. A tool whose
name fits keeps it. One that doesn't fit gets `_` for each character that is not
allowed, is cut, and ends in `-` and eight digits made from its true name: so the
name depends on nothing but the server's and the tool's, and stays the same when
other tools come and go.

Tools of different servers never clash: a server's name holds no `__` and doesn't
end in `_`, so the first `__` is where it ends. Tools of one server could, if it
set out to: then the one whose name fits is there, or the first in order of their
true names, and the other is left out.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Final

NAME_CHARACTERS_MAX: Final = 64
_NOT_ALLOWED: Final = re.compile(r"[^A-Za-z0-9_-]")


def full_name(server: str, tool: str) -> str:
    room = NAME_CHARACTERS_MAX - len(server) - 2
    if _fits(tool, room):
        return f"{server}__{tool}"
    mark = hashlib.sha256(tool.encode("utf-8", "replace")).hexdigest()[:8]
    return f"{server}__{_NOT_ALLOWED.sub('_', tool)[: room - 9]}-{mark}"


def full_names(server: str, tools: Iterable[str]) -> dict[str, str]:
    """By true name, in order of true names, without those that would clash."""
    names = sorted(set(tools))
    room = NAME_CHARACTERS_MAX - len(server) - 2
    owners: dict[str, str] = {}
    for tool in sorted(names, key=lambda tool: not _fits(tool, room)):
        owners.setdefault(full_name(server, tool), tool)
    return {tool: name for tool in names if owners[name := full_name(server, tool)] == tool}


def _fits(tool: str, room: int) -> bool:
    return 0 < len(tool) <= room and _NOT_ALLOWED.search(tool) is None
