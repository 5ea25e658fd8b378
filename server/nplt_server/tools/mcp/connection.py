"""One life of the connection to an MCP server: from its greeting to its end.

    greet → name the tools → (call … | name the tools again …) → end

All that is said to the server is said by tasks of this connection. A caller only
waits for its answer: so it can be cancelled in any way and at any moment, the
server is told, and the connection lives on. The SDK's context managers are
entered and left by the one task that runs `live`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

import anyio
import anyio.abc
import orjson

from nplt_protocol.json_values import JsonObject
from nplt_protocol.version import __version__
from nplt_server.tools.base import ToolFailed
from nplt_server.tools.mcp.config import McpServerConfig
from nplt_server.tools.mcp.foreign_text import one_line
from nplt_server.tools.mcp.line import line_to
from nplt_server.tools.mcp.results import told

if TYPE_CHECKING:
    import mcp_types
    from mcp.client import Client, IncomingMessage

log = logging.getLogger(__name__)

TOOLS_MAX: Final = 128
"""Of one server; a model that is shown more can't choose any more."""
PAGES_MAX: Final = 32
_LISTINGS_APART_SECONDS: Final = 0.1
_UNASKED_LISTING_SECONDS: Final = 60.0
"""A server that is reached by HTTP can go, and come back with other tools, unnoticed."""
_LISTEN_AGAIN_SECONDS: Final = 5.0
_PARTING_SECONDS_MAX: Final = 2.0
"""For a last word by HTTP. A process is waited for as long as it takes, a few seconds."""


class ConnectionEnded(Exception):
    """By the server; with words for the operator."""


class Connection:
    def __init__(
        self,
        config: McpServerConfig,
        *,
        listed: Callable[[list[mcp_types.Tool]], None],
        lost: Callable[[], None],
    ) -> None:
        """`listed` hears all tools, each time the server has named them; `lost` that it is
        gone, while what there is to put away is still being put away."""
        self._config = config
        self._listed = listed
        self._lost = lost
        self._client: Client | None = None
        self._tasks: anyio.abc.TaskGroup | None = None
        self._calls = 0
        self._ended = False
        self._look = anyio.Event()

    async def live(self) -> None:
        """Raises what ended it. `TimeoutError`: the server did not answer in time."""
        from mcp import Client
        from mcp_types import Implementation

        seconds = self._config.connect_seconds_max
        with anyio.CancelScope(deadline=anyio.current_time() + seconds) as greeting:
            async with AsyncExitStack() as during:
                line = await line_to(self._config, ended=self._on_end, during=during)
                client = await during.enter_async_context(
                    Client(
                        line,
                        message_handler=self._on_message,
                        client_info=Implementation(name="nplt", version=__version__),
                        cache=None,
                    )
                )
                self._client = client
                await self._list(client)
                greeting.deadline = math.inf
                try:
                    await self._serve(client)
                finally:
                    self._lost()
                    greeting.deadline = anyio.current_time() + _PARTING_SECONDS_MAX
        if greeting.cancelled_caught:
            raise TimeoutError

    async def call(self, tool: str, arguments: JsonObject) -> str:
        if self._tasks is None or self._client is None or self._ended:
            raise ToolFailed(f"{self._config.name} is not connected; it has just gone")
        try:
            orjson.dumps(arguments)
        except orjson.JSONEncodeError:
            # The SDK would give up the whole connection over it.
            raise ToolFailed("the arguments can't be written as JSON") from None
        call = _Call(self._client, tool, arguments)
        self._calls += 1
        self._tasks.start_soon(call.run)
        try:
            return told(await call.answer())
        except ToolFailed:
            raise
        except Exception as error:
            self.look_again()
            raise ToolFailed(self._what_went_wrong(error, tool)) from error
        finally:
            self._calls -= 1

    def look_again(self) -> None:
        """At what tools there are; which also shows whether the server is still there."""
        self._look.set()

    async def _serve(self, client: Client) -> None:
        try:
            async with anyio.create_task_group() as self._tasks:
                self._tasks.start_soon(self._follow_changes, client)
                await self._keep_looking(client)
                self._tasks.cancel_scope.cancel()
        finally:
            self._tasks = None
        raise ConnectionEnded("it has closed the connection")

    async def _keep_looking(self, client: Client) -> None:
        unasked = math.inf if self._config.url is None else _UNASKED_LISTING_SECONDS
        while not self._ended:
            with anyio.move_on_after(unasked):
                await self._look.wait()
            await anyio.sleep(_LISTINGS_APART_SECONDS)
            self._look = anyio.Event()
            with anyio.move_on_after(self._config.connect_seconds_max) as looking:
                if not self._ended:
                    await self._list(client)
            # One that is at work on a call may be too busy to answer.
            if looking.cancelled_caught and not self._calls:
                raise TimeoutError

    async def _list(self, client: Client) -> None:
        tools: list[mcp_types.Tool] = []
        cursor: str | None = None
        for _ in range(PAGES_MAX if client.server_capabilities.tools is not None else 0):
            page = await client.list_tools(cursor=cursor)
            tools += page.tools
            cursor = page.next_cursor
            if cursor is None or len(tools) > TOOLS_MAX:
                break
        if len(tools) > TOOLS_MAX or cursor is not None:
            log.warning("mcp %s: only the first %d tools are used", self._config.name, TOOLS_MAX)
        self._listed(tools[:TOOLS_MAX])

    async def _follow_changes(self, client: Client) -> None:
        """Newer servers tell of changes to those who ask for it; older ones just tell."""
        from mcp import MCPError
        from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost

        offered = client.server_capabilities.tools
        while offered is not None and offered.list_changed:
            try:
                async with client.listen(tools_list_changed=True) as changes:
                    self.look_again()  # it may have changed before we listened
                    async for _ in changes:
                        self.look_again()
            except (ListenNotSupportedError, MCPError):
                return
            except SubscriptionLost:
                self.look_again()
            await anyio.sleep(_LISTEN_AGAIN_SECONDS)

    async def _on_message(self, message: IncomingMessage) -> None:
        if not isinstance(message, Exception):
            if message.method == "notifications/tools/list_changed":
                self.look_again()
        else:
            log.debug("mcp %s: not understood: %s", self._config.name, type(message).__name__)

    def _on_end(self) -> None:
        self._ended = True
        self._lost()
        self.look_again()

    def _what_went_wrong(self, error: Exception, tool: str) -> str:
        from mcp import MCPError
        from mcp_types import CONNECTION_CLOSED

        name = self._config.name
        if isinstance(error, ConnectionEnded):
            return f"{name} is not connected; it went away during the call"
        if isinstance(error, MCPError) and error.code == CONNECTION_CLOSED:
            return f"{name} is not connected; it went away during the call"
        if isinstance(error, MCPError):
            return f"{name} refused: {one_line(error.message, characters_max=1_000)}"
        log.warning("mcp %s: %s: %s", name, one_line(tool), type(error).__name__)
        return f"{name} gave an answer that can't be read"


class _Call:
    """One call, made by a task of the connection, for somebody who waits elsewhere."""

    def __init__(self, client: Client, tool: str, arguments: JsonObject) -> None:
        self._client = client
        self._tool = tool
        self._arguments = arguments
        self._scope = anyio.CancelScope()
        self._done = anyio.Event()
        self._outcome: mcp_types.CallToolResult | Exception = ConnectionEnded()

    async def run(self) -> None:
        try:
            with self._scope:
                self._outcome = await self._client.call_tool(self._tool, self._arguments)
        except Exception as error:
            self._outcome = error
        finally:
            self._done.set()

    async def answer(self) -> mcp_types.CallToolResult:
        try:
            await self._done.wait()
        finally:
            self._scope.cancel()
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome
