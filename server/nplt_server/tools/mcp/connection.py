"""Runs one connection to an MCP server, from initialize to its end.

    initialize -> list tools -> (call ... | list tools again ...) -> end

Only tasks of the connection talk to the server; a caller waits for its answer and can be
cancelled at any moment. Transports are watched, so that their end is noticed, and lists of
tools are checked before the SDK reads them.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar
from urllib.parse import urlsplit

import anyio
import anyio.abc
import orjson
from anyio import to_thread
from msgspec import Struct

from nplt_protocol import JsonObject
from nplt_protocol.version import __version__
from nplt_server.tools import ToolFailed
from nplt_server.tools.mcp.child import LineTooLong, child_process
from nplt_server.tools.mcp.results import checked_listing, one_line
from nplt_server.tools.runner import RESULT_BYTES_MAX

if TYPE_CHECKING:
    from ssl import SSLContext

    import mcp_types
    from mcp.client import Client, IncomingMessage, Transport
    from mcp.client._transport import ReadStream, TransportStreams
    from mcp.shared.message import SessionMessage

log = logging.getLogger(__name__)


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
    call_seconds_max: float = 30.0
    """For an answer, or for the next sign of progress."""

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
        if self.connect_seconds_max <= 0 or self.call_seconds_max <= 0:
            raise ValueError(f"the MCP server {self.name} needs some time to answer")


def _is_web_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        return False


# ------------------------------------------------------------------------------
# The connection: transports, watched
#
# The SDK would notice a closed connection only at the next call, and one malformed tool makes
# it refuse the whole list: lists are filtered before it reads them.

T = TypeVar("T")
Ended: TypeAlias = Callable[[str], None]
"""Hears why, in words."""

CLOSED: Final = "it has closed the connection"
_REQUEST_SECONDS_MAX: Final = 30.0
_SILENCE_SECONDS_MAX: Final = 300.0
"""Of a stream that stays open; a server is expected to say at least that it lives."""


@asynccontextmanager
async def _watched(
    transport: AbstractAsyncContextManager[TransportStreams], *, name: str, ended: Ended
) -> AsyncIterator[TransportStreams]:
    """The transport; `ended` is called when nothing more will come."""
    async with transport as (read, write):
        yield _WatchedStream(read, name=name, ended=ended), write


class _WatchedStream(anyio.abc.ObjectReceiveStream["SessionMessage | Exception"]):
    """Filters lists of tools, and notices the end of the stream."""

    def __init__(
        self,
        stream: ReadStream[SessionMessage | Exception],
        *,
        name: str,
        ended: Ended,
    ) -> None:
        self._stream = stream
        self._name = name
        self._ended = ended

    async def receive(self) -> SessionMessage | Exception:
        try:
            item = await self._stream.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            self._ended(CLOSED)
            raise
        except LineTooLong as error:
            self._ended(str(error))
            raise anyio.EndOfStream from error
        # Of all answers only a list of tools has a field of this name.
        result = None if isinstance(item, Exception) else getattr(item.message, "result", None)
        if isinstance(result, dict) and isinstance(tools := result.get("tools"), list):
            result["tools"] = checked_listing(tools, left_out=self._left_out)
        return item

    def _left_out(self, tool: str, reason: str) -> None:
        log.warning("mcp %s: the tool %s is left out: %s", self._name, tool, reason)

    async def aclose(self) -> None:
        await self._stream.aclose()


async def open_transport(
    config: McpServerConfig, *, ended: Ended, during: AsyncExitStack
) -> Transport:
    """Not open yet: the SDK opens it. What it needs is put away by `during`, after it."""
    name = config.name
    if config.command is not None:
        child = child_process(name, config.command, env=config.env, cwd=config.cwd)
        return _watched(child, name=name, ended=ended)
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    assert config.url is not None
    http = httpx2.AsyncClient(
        headers=dict(config.headers),
        timeout=httpx2.Timeout(_REQUEST_SECONDS_MAX, read=_SILENCE_SECONDS_MAX),
        verify=await to_thread.run_sync(_certificates),
    )
    await during.enter_async_context(http)
    web = streamable_http_client(config.url, http_client=http, max_sse_event_size=RESULT_BYTES_MAX)
    return _watched(web, name=name, ended=ended)


@cache
def _certificates() -> SSLContext:
    """Those to trust. To read them takes a tenth of a second: once, and off the loop."""
    import httpx2

    return httpx2.create_ssl_context()


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


class McpListing(Struct, frozen=True, kw_only=True):
    """What a server has."""

    tools: list[mcp_types.Tool]
    is_cut: bool
    """There are more tools than are used."""
    resources: list[mcp_types.Resource]
    templates: list[mcp_types.ResourceTemplate]
    prompts: list[mcp_types.Prompt]


class McpConnection:
    def __init__(
        self,
        config: McpServerConfig,
        *,
        listed: Callable[[McpListing], None],
        lost: Callable[[], None],
    ) -> None:
        """`listed` hears what there is, each time the server has named it; `lost` that it is
        gone, while what there is to put away is still being put away."""
        self._config = config
        self._listed = listed
        self._lost = lost
        self._client: Client | None = None
        self._tasks: anyio.abc.TaskGroup | None = None
        self._calls = 0
        self.ended: str | None = None
        """Why nothing more will come."""
        self._look = anyio.Event()

    async def live(self) -> None:
        """Raises what ended it. `TimeoutError`: the server did not answer in time."""
        from mcp import Client
        from mcp_types import Implementation

        seconds = self._config.connect_seconds_max
        with anyio.CancelScope(deadline=anyio.current_time() + seconds) as greeting:
            async with AsyncExitStack() as during:
                line = await open_transport(self._config, ended=self._on_end, during=during)
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

    async def call(self, tool: str, arguments: JsonObject) -> mcp_types.CallToolResult:
        """Each sign of progress gives the server its time anew."""
        try:
            orjson.dumps(arguments)
        except orjson.JSONEncodeError:
            # The SDK would give up the whole connection over it.
            raise ToolFailed("the arguments can't be written as JSON") from None

        async def work(client: Client, limit: anyio.CancelScope) -> mcp_types.CallToolResult:
            async def on_progress(
                progress: float, total: float | None, message: str | None
            ) -> None:
                limit.deadline = anyio.current_time() + self._config.call_seconds_max

            return await client.call_tool(tool, arguments, progress_callback=on_progress)

        return await self._run(work, what=tool)

    async def read_resource(self, uri: str) -> mcp_types.ReadResourceResult:
        return await self._run(lambda client, _: client.read_resource(uri), what=uri)

    async def get_prompt(self, name: str, arguments: dict[str, str]) -> mcp_types.GetPromptResult:
        return await self._run(lambda client, _: client.get_prompt(name, arguments), what=name)

    async def _run(
        self, work: Callable[[Client, anyio.CancelScope], Awaitable[T]], *, what: str
    ) -> T:
        """In a task of the connection, within the server's time. Raises `ToolFailed`."""
        name, seconds = self._config.name, self._config.call_seconds_max
        if self._tasks is None or self._client is None or self.ended:
            raise ToolFailed(f"{name} is not connected; it has just gone")
        client, scope, done = self._client, anyio.CancelScope(), anyio.Event()
        limit = anyio.CancelScope(deadline=anyio.current_time() + seconds)
        outcome: T | Exception = ConnectionEnded()

        async def run() -> None:
            nonlocal outcome
            try:
                with scope:
                    outcome = await work(client, limit)
            except Exception as error:
                outcome = error
            finally:
                done.set()

        self._calls += 1
        self._tasks.start_soon(run)
        try:
            with limit:
                await done.wait()
            if not done.is_set():
                raise ToolFailed(f"{name} did not answer within {seconds:g} s: {one_line(what)}")
            if isinstance(outcome, Exception):
                raise outcome
            return outcome
        except ToolFailed:
            raise
        except Exception as error:
            self.look_again()
            raise ToolFailed(self._what_went_wrong(error, what)) from error
        finally:
            scope.cancel()
            self._calls -= 1

    def look_again(self) -> None:
        """At what tools there are; which also shows whether the server is still there."""
        self._look.set()

    async def _serve(self, client: Client) -> None:
        try:
            async with anyio.create_task_group() as self._tasks:
                self._tasks.start_soon(self._follow_changes, client)
                await self._poll(client)
                self._tasks.cancel_scope.cancel()
        finally:
            self._tasks = None
        raise ConnectionEnded(self.ended or CLOSED)

    async def _poll(self, client: Client) -> None:
        unasked = math.inf if self._config.url is None else _UNASKED_LISTING_SECONDS
        while not self.ended:
            with anyio.move_on_after(unasked):
                await self._look.wait()
            await anyio.sleep(_LISTINGS_APART_SECONDS)
            self._look = anyio.Event()
            with anyio.move_on_after(self._config.connect_seconds_max) as looking:
                if not self.ended:
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
        is_cut = len(tools) > TOOLS_MAX or cursor is not None
        if is_cut:
            log.warning("mcp %s: only the first %d tools are used", self._config.name, TOOLS_MAX)
        # Of these the first page is enough to show what there is.
        offered = client.server_capabilities
        resources = templates = prompts = None
        if offered.resources is not None:
            resources = await self._if_listed(client.list_resources())
            templates = await self._if_listed(client.list_resource_templates())
        if offered.prompts is not None:
            prompts = await self._if_listed(client.list_prompts())
        self._listed(
            McpListing(
                tools=tools[:TOOLS_MAX],
                is_cut=is_cut,
                resources=resources.resources if resources else [],
                templates=templates.resource_templates if templates else [],
                prompts=prompts.prompts if prompts else [],
            )
        )

    async def _if_listed(self, listing: Awaitable[T]) -> T | None:
        """A server may have resources and know no templates, say."""
        try:
            return await listing
        except Exception as error:
            if self.ended:
                raise
            log.debug("mcp %s: no list: %s", self._config.name, type(error).__name__)
            return None

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
            if message.method.endswith("/list_changed"):
                self.look_again()
        else:
            log.debug("mcp %s: not understood: %s", self._config.name, type(message).__name__)

    def _on_end(self, reason: str) -> None:
        self.ended = self.ended or reason
        self._lost()
        self.look_again()

    def _what_went_wrong(self, error: Exception, tool: str) -> str:
        from mcp import MCPError
        from mcp_types import CONNECTION_CLOSED

        name = self._config.name
        is_closed = isinstance(error, MCPError) and error.code == CONNECTION_CLOSED
        if is_closed or isinstance(error, ConnectionEnded):
            reason = "it went away" if self.ended in (None, CLOSED) else self.ended
            return f"{name} is not connected; {reason} during the call"
        if isinstance(error, MCPError):
            return f"{name} refused: {one_line(error.message, characters_max=1_000)}"
        log.warning("mcp %s: %s: %s", name, one_line(tool), type(error).__name__)
        return f"{name} gave an answer that can't be read"
