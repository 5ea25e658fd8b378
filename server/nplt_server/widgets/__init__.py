"""The widget port: live state that is always shown to the model, and tools to change it.

A widget holds nothing itself. Its state is in the conversation's entries and is changed
through the tool's host alone, so it is rebuilt by replay, goes back with a rollback and is
copied by a fork. What it shows depends on that state only: no clock and no counter, or
every prompt would differ from the last.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Protocol

from nplt_protocol.json_text import JsonObject
from nplt_server.tools import Tool, ToolFailed, ToolHost


class WidgetView(Protocol):
    """What a widget may look at when it is drawn."""

    @property
    def notebook(self) -> str: ...

    def widget_state(self, name: str) -> JsonObject:
        """Empty if the widget has none yet."""
        ...


class Widget(Protocol):
    """Subclass it to get `execute_tool`."""

    name: str
    description: str
    tools: tuple[Tool, ...]

    def render_live_screen(self, view: WidgetView) -> str | None:
        """Markdown under a heading of its own; `None`: there is nothing to show."""
        ...

    async def execute_tool(self, tool_name: str, arguments: JsonObject, host: ToolHost) -> str:
        """What the model is told of it. `ToolFailed` if it could not be done, and then
        nothing is changed."""
        for tool in self.tools:
            if tool.description.name == tool_name:
                return await tool.run(arguments, host)
        raise ToolFailed(f"there is no tool {tool_name!r} here")


def widget_tools(widgets: Iterable[Widget]) -> tuple[Tool, ...]:
    """The tools of all widgets; each runs by its widget's `execute_tool`."""
    return tuple(
        Tool(
            description=tool.description,
            run=partial(widget.execute_tool, tool.description.name),
        )
        for widget in widgets
        for tool in widget.tools
    )
