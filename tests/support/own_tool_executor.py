"""An executor of tools for servers that are started with it."""

from __future__ import annotations

from nplt_protocol import JsonObject
from nplt_server.extensions import Tool, ToolHost


async def shout(tool: Tool, arguments: JsonObject, host: ToolHost) -> str:
    result = await tool.run(arguments, host)
    return f"{tool.description.name} for {host.user}: {result}"
