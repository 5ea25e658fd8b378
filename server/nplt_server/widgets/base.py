"""What a widget is: a piece of live state that is shown to models, and its tools.

A widget holds nothing itself. Its state is in the conversation's entries and is
changed through the tool's host alone; so it is rebuilt by replay, goes back with
a rollback and is copied by a fork. What it shows follows from that state and from
nothing else: no clock, no counter, or every prompt would differ from the last.
"""

from __future__ import annotations

from typing import Protocol

from nplt_protocol.json_values import JsonObject
from nplt_server.tools.base import Tool, ToolFailed, ToolHost


class WidgetView(Protocol):
    """What a widget may look at when it is drawn."""

    @property
    def notebook(self) -> str: ...

    def widget_state(self, name: str) -> JsonObject:
        """Empty if the widget has none yet."""
        ...


class Widget(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def description(self) -> str: ...

    @property
    def tools(self) -> tuple[Tool, ...]: ...

    def render_live_screen(self, view: WidgetView) -> str | None:
        """Markdown under a heading of its own; `None`: there is nothing to show."""
        ...

    async def execute_tool(self, tool_name: str, arguments: JsonObject, host: ToolHost) -> str:
        """What the model is told of it. `ToolFailed` if it could not be done, and then
        nothing is changed."""
        ...


async def execute_one_of(
    tools: tuple[Tool, ...], tool_name: str, arguments: JsonObject, host: ToolHost
) -> str:
    for tool in tools:
        if tool.description.name == tool_name:
            return await tool.run(arguments, host)
    raise ToolFailed(f"there is no tool {tool_name!r} here")
