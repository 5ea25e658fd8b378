"""MCP servers at work, for tests: run, waited for, called by name, and gone in the end."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.tool_hosts import NoConversationHost

from nplt_protocol import JsonObject, JsonValue
from nplt_server.masking import NO_SECRETS, SecretMask
from nplt_server.tools import Tool, ToolFailed
from nplt_server.tools.mcp import McpServer, McpServerConfig, McpServers, RetryPauses

SUPPORT = Path(__file__).parents[2] / "support"
SOON = RetryPauses(seconds_min=0.01, seconds_max=0.1)
NEVER = RetryPauses(seconds_min=3_600, seconds_max=3_600)


class McpHouse:
    def __init__(self, servers: McpServers) -> None:
        self.servers = servers

    @property
    def names(self) -> list[str]:
        return [tool.description.name for tool in self.servers.tools]

    def tool(self, name: str) -> Tool:
        return next(tool for tool in self.servers.tools if tool.description.name == name)

    def server(self, name: str) -> McpServer:
        return self.servers.by_name[name]

    async def call(self, name: str, /, **arguments: JsonValue) -> str:
        return await self.tool(name).run(dict(arguments), NoConversationHost())

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await asyncio.sleep(0.005)

    async def until_answered(self, name: str, /) -> str:
        while True:
            try:
                return await self.call(name)
            except ToolFailed:
                await asyncio.sleep(0.005)

    async def until_connected(self, *names: str) -> None:
        await self.until(lambda: all(self.server(name).state == "connected" for name in names))


@asynccontextmanager
async def mcp_house(
    *configs: McpServerConfig,
    connected: bool = True,
    again: RetryPauses = SOON,
    secrets: SecretMask = NO_SECRETS,
) -> AsyncIterator[McpHouse]:
    """Running, with all servers connected unless told otherwise."""
    house = McpHouse(McpServers(configs, pauses=again, secrets=secrets))
    running = asyncio.create_task(house.servers.run())
    try:
        if connected:
            await house.until_connected(*(config.name for config in configs))
        yield house
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def real_server(name: str, port_file: Path) -> McpServerConfig:
    command = (sys.executable, str(SUPPORT / "mcp_server.py"), str(port_file))
    return McpServerConfig(
        name=name, command=command, env={"OF_ITS_OWN": "1"}, connect_seconds_max=60
    )


def odd_server(name: str, *lists: list[list[JsonValue]]) -> McpServerConfig:
    """Each list in pages."""
    arguments = [json.dumps(pages) for pages in lists]
    script = str(SUPPORT / "odd_mcp_server.py")
    return McpServerConfig(
        name=name, command=(sys.executable, "-I", "-S", script, *arguments), connect_seconds_max=60
    )


def plain(*names: str) -> list[JsonValue]:
    """A page of tools that take nothing."""
    return [described(name) for name in names]


def described(name: str, **more: JsonValue) -> JsonObject:
    return {"name": name, "inputSchema": {"type": "object"}, **more}
