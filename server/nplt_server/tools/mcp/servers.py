"""All MCP servers: what tools they have now, and how they are.

`run` is one long-lived task. It never fails, and ends when it is cancelled:
then all lines are closed, and the processes that were started have ended (told
by the end of their input, by SIGTERM two seconds later, by SIGKILL in the end).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

import anyio
import anyio.to_thread

from nplt_server.tools.base import Tool
from nplt_server.tools.mcp.config import McpServerConfig
from nplt_server.tools.mcp.server import McpServer, McpServerStatus, RetryPauses

log = logging.getLogger(__name__)

_FOREIGN_LOGS: Final = ("mcp", "client", "httpx2", "httpcore2")
"""They log whole messages, and addresses, which may hold keys. We say ourselves what matters."""


class McpServers:
    def __init__(
        self, configs: Iterable[McpServerConfig], *, pauses: RetryPauses | None = None
    ) -> None:
        self._version = 0
        self._servers: dict[str, McpServer] = {}
        for config in sorted(configs, key=lambda config: config.name):
            if config.name in self._servers:
                raise ValueError(f"there are two MCP servers named {config.name}")
            self._servers[config.name] = McpServer(
                config, pauses=pauses or RetryPauses(), changed=self._on_change
            )

    @property
    def version(self) -> int:
        """Another number whenever `tools` has become another list."""
        return self._version

    @property
    def tools(self) -> tuple[Tool, ...]:
        """By the name of the server, then by the name the tool has there."""
        return tuple(tool for server in self._servers.values() for tool in server.tools)

    @property
    def status(self) -> tuple[McpServerStatus, ...]:
        return tuple(server.status for server in self._servers.values())

    async def run(self) -> None:
        if not self._servers:
            return
        try:
            # Off the loop: it takes a second, and conversations go on.
            await anyio.to_thread.run_sync(_import_sdk, abandon_on_cancel=True)
        except ImportError:
            log.error("MCP servers are configured, but the extra nplt[mcp] is not installed")
            self._stop("the extra nplt[mcp] is not installed")
            return
        try:
            async with anyio.create_task_group() as side_by_side:
                for server in self._servers.values():
                    side_by_side.start_soon(server.run)
        finally:
            self._stop(None)

    def _stop(self, error: str | None) -> None:
        for server in self._servers.values():
            server.stop(error)

    def _on_change(self) -> None:
        self._version += 1


def _import_sdk() -> None:
    import mcp.client.stdio
    import mcp.client.streamable_http
    import mcp.client.subscriptions  # noqa: F401

    for name in _FOREIGN_LOGS:
        logging.getLogger(name).setLevel(logging.CRITICAL)
