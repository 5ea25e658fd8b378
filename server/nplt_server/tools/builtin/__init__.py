"""The tools that come with the server, each in a file of its own.

The notebook and the todo list are not here: they are widgets, and bring their
own tools.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

from nplt_server.tools.base import Tool
from nplt_server.tools.builtin.allowed_roots import AllowedRoots
from nplt_server.tools.builtin.list_files import list_files_tool
from nplt_server.tools.builtin.now import now_tool
from nplt_server.tools.builtin.read_file import read_file_tool
from nplt_server.tools.builtin.read_result import read_result_tool
from nplt_server.tools.builtin.search_history import search_history_tool
from nplt_server.tools.builtin.sys_monitor import sys_monitor_tool

__all__ = ["builtin_tools", "now_tool"]


def builtin_tools(
    clock: Callable[[], datetime], roots: Sequence[Path], *, never: Sequence[Path] = ()
) -> tuple[Tool, ...]:
    """Always in this order: a provider's cache begins with the tools. Files are read
    under the roots, but not in the places that are never to be read."""
    tools = (now_tool(clock), sys_monitor_tool(), read_result_tool(), search_history_tool())
    if not roots:
        return tools
    allowed = AllowedRoots(roots, never=never)
    return (*tools, read_file_tool(allowed), list_files_tool(allowed))
