"""Tools of MCP servers: keeps the servers connected and lists their tools.

`connection` is one connection, `child` a server that is a process of ours, `results` cleans
and bounds what comes back. The SDK takes a
second to import: it is imported in a worker thread, and only when a server is configured. It
is an extra, `nplt[mcp]`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, cast
from urllib.parse import parse_qsl

import anyio
import anyio.to_thread
from msgspec import Struct

from nplt_protocol import JsonObject
from nplt_server.tools import (
    ResultWithPictures,
    Tool,
    ToolDescription,
    ToolFailed,
    ToolHost,
    did_you_mean,
    fitting_name,
    name_fits,
)
from nplt_server.tools.mcp.connection import (
    CLOSED,
    TOOLS_MAX,
    ConnectionEnded,
    McpConnection,
    McpListing,
    McpServerConfig,
)
from nplt_server.tools.mcp.results import (
    McpFile,
    file_of_prompt,
    file_of_resource,
    one_line,
    pictures_in,
    result_text,
)

if TYPE_CHECKING:
    import mcp_types


# ------------------------------------------------------------------------------
# Names: `{server}__{tool}`
#
# Providers take letters, digits, `_` and `-`, at most 64. A name that does not fit is made to
# (`fitting_name`): it depends only on the server's and the tool's name.
#
# A server's name has no `__` and does not end in `_`, so tools of different servers never
# clash. Within one server the tool whose name fits wins, then the first by original name; the
# other is left out.

NAME_CHARACTERS_MAX: Final = 64


def full_name(server: str, tool: str) -> str:
    return f"{server}__{fitting_name(tool, NAME_CHARACTERS_MAX - len(server) - 2)}"


def full_names(server: str, tools: Iterable[str]) -> dict[str, str]:
    """By true name, in order of true names, without those that would clash."""
    names = sorted(set(tools))
    room = NAME_CHARACTERS_MAX - len(server) - 2
    owners: dict[str, str] = {}
    for tool in sorted(names, key=lambda tool: not name_fits(tool, room)):
        owners.setdefault(full_name(server, tool), tool)
    return {tool: name for tool in names if owners[name := full_name(server, tool)] == tool}


# ------------------------------------------------------------------------------
# One server: connected, and reconnected
#
# Its tools stay listed while it is away, or every restart of it would change the tool list
# twice and begin two epochs. A call meanwhile fails at once.

log = logging.getLogger(__name__)

SOURCES_MAX: Final = 200
_REFERENCE_CHARACTERS_MAX: Final = 500

McpServerState: TypeAlias = Literal["connecting", "connected", "waiting", "stopped"]
"""`waiting`: until it is tried again; `stopped`: it will not be."""


class RetryPauses(Struct, frozen=True, kw_only=True):
    """Between two attempts: twice as long each time, until it has stayed for a while."""

    seconds_min: float = 1.0
    seconds_max: float = 60.0


class McpSource(Struct, frozen=True, kw_only=True):
    """Something a person can attach to a prompt."""

    reference: str
    """`mcp:SERVER/URI` of a resource, `mcp:SERVER/NAME?ARGUMENT=VALUE` of a prompt; the parts
    in braces are to be filled in."""
    kind: Literal["resource", "template", "prompt"]
    description: str


class McpServer:
    def __init__(self, config: McpServerConfig, *, pauses: RetryPauses) -> None:
        self.state: McpServerState = "connecting"
        self.error: str | None = None
        """Why the server is not connected, in words; nothing if it is."""
        self.note: str | None = None
        """What else is worth knowing."""
        self.tools: tuple[Tool, ...] = ()
        """The same objects as long as the server lists the same tools."""
        self.sources: tuple[McpSource, ...] = ()
        self._config = config
        self._pauses = pauses
        self._connection: McpConnection | None = None
        self._prompts: set[str] = set()
        self._connected_at = math.inf

    def stop(self, error: str | None = None) -> None:
        self.state = "stopped"
        self.error = error

    async def run(self) -> None:
        pause = self._pauses.seconds_min
        while True:
            self.state = "connecting"
            self._connected_at = math.inf
            self.error = await self._live_once()
            if anyio.current_time() - self._connected_at > self._pauses.seconds_max:
                pause = self._pauses.seconds_min
            self.state = "waiting"
            log.warning("mcp %s: %s; again in %g s", self._config.name, self.error, pause)
            await anyio.sleep(pause)
            pause = min(pause * 2, self._pauses.seconds_max)

    async def _live_once(self) -> str:
        """Why it ended. Whatever it is, it is the trouble of this server alone."""
        connection = McpConnection(self._config, listed=self._on_list, lost=self._on_loss)
        self._connection = connection
        try:
            await connection.live()
        except Exception as error:
            while isinstance(error, ExceptionGroup):  # task groups wrap it, several deep
                error = error.exceptions[0]
            log.debug("mcp %s: the connection ended", self._config.name, exc_info=error)
            fault = connection.ended
            return fault if fault not in (None, CLOSED) else _reason(error, self._config)
        finally:
            self._connection = None
        return "the connection ended"

    @property
    def described(self) -> JsonObject:
        said: JsonObject = {"state": self.state, "tools": len(self.tools)}
        return said | {key: word for key in ("error", "note") if (word := getattr(self, key))}

    async def read(self, wanted: str) -> McpFile:
        """The resource of that URI, or the prompt of that name with its arguments."""
        connection = self._connected()
        name, _, query = wanted.partition("?")
        if name in self._prompts:
            said = await connection.get_prompt(name, dict(parse_qsl(query)))
            return file_of_prompt(name, said)
        return file_of_resource(wanted, await connection.read_resource(wanted))

    def _on_list(self, listing: McpListing) -> None:
        tools, name = listing.tools, self._config.name
        self.note = f"only its first {TOOLS_MAX} tools are used" if listing.is_cut else None
        self.sources = tuple(_sources(name, listing))[:SOURCES_MAX]
        self._prompts = {prompt.name for prompt in listing.prompts}
        if self.state != "connected":
            log.info("mcp %s: connected, %d tools", self._config.name, len(tools))
            self._connected_at = anyio.current_time()
        self.state = "connected"
        self.error = None
        by_name = {tool.name: tool for tool in reversed(tools)}
        names = full_names(self._config.name, by_name)
        for name in sorted(by_name.keys() - names.keys()):
            log.warning("mcp %s: %s clashes and is left out", self._config.name, one_line(name))
        listed = tuple(self._tool(name, by_name[true]) for true, name in names.items())
        if [tool.description for tool in listed] != [tool.description for tool in self.tools]:
            self.tools = listed

    def _on_loss(self) -> None:
        if self.state == "connected":
            self.state = "waiting"
            self.error = self._connection.ended if self._connection else None

    def _tool(self, name: str, tool: mcp_types.Tool) -> Tool:
        description = ToolDescription(
            name=name,
            description=tool.description or "",
            parameters=cast("JsonObject", tool.input_schema),
            # Whatever it says of itself: we can't know what it does.
            tool_class="network",
        )
        run = partial(self._call, tool.name)
        return Tool(description=description, run=run, keeps_time=True)

    async def _call(self, tool: str, arguments: JsonObject, host: ToolHost) -> str:
        result = await self._connected().call(tool, arguments)
        text = ResultWithPictures(result_text(result))
        try:
            text.attachments = tuple(
                [
                    await host.keep_file(one.filename, one.content_type, one.data)
                    for one in pictures_in(result)
                ]
            )
        except ToolFailed as error:  # the text says that there was one
            log.warning("mcp %s: a picture is not kept: %s", self._config.name, error)
        return text

    def _connected(self) -> McpConnection:
        if self._connection is None or self.state != "connected":
            reason = self.error or "it is being connected to"
            raise ToolFailed(f"{self._config.name} is not connected; {reason}")
        return self._connection


def _sources(server: str, listing: McpListing) -> Iterator[McpSource]:
    for resource in listing.resources:
        said = one_line(resource.description or resource.title or resource.name)
        uri = one_line(resource.uri, characters_max=_REFERENCE_CHARACTERS_MAX)
        yield McpSource(reference=f"mcp:{server}/{uri}", kind="resource", description=said)
    for template in listing.templates:
        said = one_line(template.description or template.title or template.name)
        uri = one_line(template.uri_template, characters_max=_REFERENCE_CHARACTERS_MAX)
        yield McpSource(reference=f"mcp:{server}/{uri}", kind="template", description=said)
    for prompt in listing.prompts:
        names = [one_line(argument.name) for argument in prompt.arguments or ()]
        query = "&".join(f"{name}={{{name}}}" for name in names)
        reference = f"mcp:{server}/{one_line(prompt.name)}{'?' if query else ''}{query}"
        said = one_line(prompt.description or prompt.title or "")
        yield McpSource(reference=reference, kind="prompt", description=said)


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
            return CLOSED
        case MCPError():
            return f"it refuses: {one_line(error.message)}"
        case _:
            return f"it can't be understood ({type(error).__name__})"


# ------------------------------------------------------------------------------
# All servers
#
# `run` never fails and ends when it is cancelled: connections are closed and started processes
# have ended (end of input, SIGTERM after two seconds, then SIGKILL).

_FOREIGN_LOGS: Final = ("mcp", "client", "httpx2", "httpcore2")
"""They log whole messages, and addresses, which may hold keys. We say ourselves what matters."""


class McpServers:
    def __init__(
        self, configs: Iterable[McpServerConfig], *, pauses: RetryPauses | None = None
    ) -> None:
        self.by_name: dict[str, McpServer] = {}
        for config in sorted(configs, key=lambda config: config.name):
            if config.name in self.by_name:
                raise ValueError(f"there are two MCP servers named {config.name}")
            self.by_name[config.name] = McpServer(config, pauses=pauses or RetryPauses())

    @property
    def tools(self) -> tuple[Tool, ...]:
        """By the name of the server, then by the name the tool has there."""
        return tuple(tool for server in self.by_name.values() for tool in server.tools)

    @property
    def described(self) -> JsonObject | None:
        """By name how each one is; `None` where none is configured."""
        return {name: one.described for name, one in self.by_name.items()} or None

    async def read(self, reference: str) -> McpFile:
        """What `mcp:SERVER/…` stands for. Raises `ToolFailed`."""
        name, _, wanted = reference.removeprefix("mcp:").partition("/")
        server = self.by_name.get(name)
        if server is None:
            raise ToolFailed(f"there is no MCP server {name!r}{did_you_mean(name, self.by_name)}")
        return await server.read(wanted)

    async def run(self) -> None:
        if not self.by_name:
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
                for server in self.by_name.values():
                    side_by_side.start_soon(server.run)
        finally:
            self._stop(None)

    def _stop(self, error: str | None) -> None:
        for server in self.by_name.values():
            server.stop(error)


def _import_sdk() -> None:
    import mcp.client.stdio
    import mcp.client.streamable_http
    import mcp.client.subscriptions  # noqa: F401

    for name in _FOREIGN_LOGS:
        logging.getLogger(name).setLevel(logging.CRITICAL)
