"""What is to be known of an MCP server before it is met: where it is, and how to greet it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

_NAME: Final = re.compile(r"[A-Za-z0-9-]+(_[A-Za-z0-9-]+)*")
_NAME_CHARACTERS_MAX: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServerConfig:
    name: str
    """Letters, digits, `-`, and `_` between them but never two: what comes before `__` in
    the name of a tool is always the name of its server."""
    command: tuple[str, ...] | None = None
    """A program that is started, and talks over its standard input and output."""
    url: str | None = None
    """One that is reached by streamable HTTP. Either this or a command."""
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """Of the command, beside a few harmless ones (PATH, HOME, …). It inherits nothing else."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """Sent with each request to the url."""
    cwd: str | None = None
    connect_seconds_max: float = 15.0
    """Until it has been started, greeted, and has named its tools."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or len(self.name) > _NAME_CHARACTERS_MAX:
            raise ValueError(
                f"{self.name!r} can't be the name of an MCP server: letters, digits, - and"
                f" single _ between them, at most {_NAME_CHARACTERS_MAX}"
            )
        if (self.command is None) == (self.url is None):
            raise ValueError(f"the MCP server {self.name} needs either a command or a url")
        if self.command is not None and not (self.command and self.command[0]):
            raise ValueError(f"the command of the MCP server {self.name} is empty")
        if self.url is not None and not _is_web_address(self.url):
            raise ValueError(f"the url of the MCP server {self.name} is none of http or https")
        if self.connect_seconds_max <= 0:
            raise ValueError(f"the MCP server {self.name} needs some time to connect")


def _is_web_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        return False
