"""One MCP server, kept alive: connected, and connected again when it has gone.

Its tools stay listed while it is away. Else each time it fell over and stood up
again the list of tools would change twice, and with it the beginning of every
context; a call meanwhile is told at once that the server is not there.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

import anyio

from nplt_protocol.json_values import JsonObject
from nplt_server.tools.base import Tool, ToolDescription, ToolFailed, ToolHost
from nplt_server.tools.mcp.config import McpServerConfig
from nplt_server.tools.mcp.connection import Connection, ConnectionEnded
from nplt_server.tools.mcp.foreign_text import one_line
from nplt_server.tools.mcp.names import full_names

if TYPE_CHECKING:
    import mcp_types

log = logging.getLogger(__name__)

McpServerState: TypeAlias = Literal["connecting", "connected", "waiting", "stopped"]
"""`waiting`: until it is tried again; `stopped`: it will not be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServerStatus:
    name: str
    state: McpServerState
    tools: int
    error: str | None
    """Why it is not connected, in words; nothing if it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPauses:
    """Between two attempts: twice as long each time, until it has stayed for a while."""

    seconds_min: float = 1.0
    seconds_max: float = 60.0


class McpServer:
    def __init__(
        self, config: McpServerConfig, *, pauses: RetryPauses, changed: Callable[[], None]
    ) -> None:
        self._config = config
        self._pauses = pauses
        self._changed = changed
        self._connection: Connection | None = None
        self._state: McpServerState = "connecting"
        self._error: str | None = None
        self._connected_at = math.inf
        self._tools: tuple[Tool, ...] = ()

    @property
    def tools(self) -> tuple[Tool, ...]:
        return self._tools

    @property
    def status(self) -> McpServerStatus:
        return McpServerStatus(
            name=self._config.name, state=self._state, tools=len(self._tools), error=self._error
        )

    def stop(self, error: str | None = None) -> None:
        self._state = "stopped"
        self._error = error

    async def run(self) -> None:
        pause = self._pauses.seconds_min
        while True:
            self._state = "connecting"
            self._connected_at = math.inf
            self._error = await self._live_once()
            if anyio.current_time() - self._connected_at > self._pauses.seconds_max:
                pause = self._pauses.seconds_min
            self._state = "waiting"
            log.warning("mcp %s: %s; again in %g s", self._config.name, self._error, pause)
            await anyio.sleep(pause)
            pause = min(pause * 2, self._pauses.seconds_max)

    async def _live_once(self) -> str:
        """Why it ended. Whatever it is, it is the trouble of this server alone."""
        self._connection = Connection(self._config, listed=self._on_list, lost=self._on_loss)
        try:
            await self._connection.live()
        except Exception as several:
            error = _first(several)
            log.debug("mcp %s: the connection ended", self._config.name, exc_info=error)
            return _reason(error, self._config)
        finally:
            self._connection = None
        return "the connection ended"

    def _on_list(self, tools: list[mcp_types.Tool]) -> None:
        if self._state != "connected":
            log.info("mcp %s: connected, %d tools", self._config.name, len(tools))
            self._connected_at = anyio.current_time()
        self._state = "connected"
        self._error = None
        by_name = {tool.name: tool for tool in reversed(tools)}
        names = full_names(self._config.name, by_name)
        for name in sorted(by_name.keys() - names.keys()):
            log.warning("mcp %s: %s clashes and is left out", self._config.name, one_line(name))
        listed = tuple(self._tool(name, by_name[true]) for true, name in names.items())
        before = [tool.description for tool in self._tools]
        if [tool.description for tool in listed] != before:
            self._tools = listed
            self._changed()

    def _on_loss(self) -> None:
        if self._state == "connected":
            self._state = "waiting"
            self._error = "it has closed the connection"

    def _tool(self, name: str, tool: mcp_types.Tool) -> Tool:
        description = ToolDescription(
            name=name,
            description=tool.description or "",
            parameters=cast("JsonObject", tool.input_schema),
            # Whatever it says of itself: we can't know what it does.
            tool_class="network",
        )
        return Tool(description=description, run=partial(self._call, tool.name))

    async def _call(self, tool: str, arguments: JsonObject, host: ToolHost) -> str:
        if self._connection is None or self._state != "connected":
            reason = self._error or "it is being connected to"
            raise ToolFailed(f"{self._config.name} is not connected; {reason}")
        return await self._connection.call(tool, arguments)


def _first(error: Exception) -> Exception:
    """Task groups wrap what went wrong, several deep."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


def _reason(error: Exception, config: McpServerConfig) -> str:
    import httpx2
    from mcp import MCPError
    from mcp_types import CONNECTION_CLOSED

    match error:
        case ConnectionEnded():
            return str(error)
        case TimeoutError():
            return f"it did not answer within {config.connect_seconds_max:g} s"
        case OSError():
            return f"it could not be started: {error.strerror}"
        case httpx2.HTTPError():
            return f"it could not be reached ({type(error).__name__})"
        case MCPError() if error.code == CONNECTION_CLOSED:
            return "it has closed the connection"
        case MCPError():
            return f"it refuses: {one_line(error.message)}"
        case _:
            return f"it can't be understood ({type(error).__name__})"
