"""Tools of MCP servers: keeps the servers connected and lists their tools.

`child` is a server that is a process of ours, `results` cleans and bounds what comes back. The
SDK takes a second to import: it is imported in a worker thread, and only when a server is
configured. It is an extra, `nplt[mcp]`.
"""

from __future__ import annotations

import logging
import math
import re
import traceback
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from ssl import SSLContext
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, TypeVar, cast
from urllib.parse import parse_qsl, urlsplit

import anyio
import anyio.abc
import orjson
from anyio import to_thread
from msgspec import Struct, structs

from nplt_protocol import JsonObject, JsonValue
from nplt_protocol.version import __version__
from nplt_server.heap import loading_modules
from nplt_server.masking import NO_SECRETS, SecretMask
from nplt_server.tools import (
    RESULT_BYTES_MAX,
    ResultWithPictures,
    Tool,
    ToolDescription,
    ToolFailed,
    ToolHost,
    did_you_mean,
    fitting_name,
    name_fits,
)
from nplt_server.tools.mcp.child import ChildOutput, LineTooLong, child_process
from nplt_server.tools.mcp.results import (
    McpFile,
    checked_listing,
    file_of_prompt,
    file_of_resource,
    one_line,
    pictures_in,
    result_text,
)

if TYPE_CHECKING:
    import mcp_types
    from mcp.client import Client, IncomingMessage
    from mcp.client._transport import ReadStream, TransportStreams, WriteStream
    from mcp.shared.message import SessionMessage
    from mcp_types import JSONRPCMessage

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
    """The address of a server that is reached by streamable HTTP, instead of a command."""
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """Variables of the command; it inherits only a few harmless ones (PATH, HOME, …)."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """Sent with each request to the url."""
    cwd: str | None = None
    connect_seconds_max: float = 15.0
    """The time to start the server, greet it and list its tools."""
    call_seconds_max: float = 30.0
    """The time to wait for a result, or for the next sign of progress."""

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
    """Maps true names to tools, in order, without those that would clash."""
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

SOURCES_MAX: Final = 200
_REFERENCE_CHARACTERS_MAX: Final = 500

McpServerState: TypeAlias = Literal["connecting", "connected", "waiting", "stopped"]
"""`waiting`: until it is tried again; `stopped`: it will not be."""


class RetryPauses(Struct, frozen=True, kw_only=True):
    """The pauses between two attempts. Each is twice as long as the last, until the server has
    stayed connected for a while."""

    seconds_min: float = 1.0
    seconds_max: float = 60.0


class McpSource(Struct, frozen=True, kw_only=True):
    """Something a person can attach to a prompt."""

    reference: str
    """`mcp:SERVER/URI` of a resource, `mcp:SERVER/NAME?ARGUMENT=VALUE` of a prompt; the parts
    in braces are to be filled in."""
    kind: Literal["resource", "template", "prompt"]
    description: str


_LAST_LINES_MAX: Final = 8


class McpServer:
    def __init__(
        self, config: McpServerConfig, *, pauses: RetryPauses, secrets: SecretMask = NO_SECRETS
    ) -> None:
        self.secrets = secrets
        """Masked in all that the server says."""
        self.state: McpServerState = "connecting"
        self.error: str | None = None
        """Why the server is not connected, in words; nothing if it is."""
        self.note: str | None = None
        """Further information for the operator."""
        self.tools: tuple[Tool, ...] = ()
        """The same objects as long as the server lists the same tools."""
        self.sources: tuple[McpSource, ...] = ()
        self.last_lines = deque[str](maxlen=_LAST_LINES_MAX)
        """The end of what its process wrote to stderr."""
        self.config = config
        self._pauses = pauses
        self._connection: McpConnection | None = None
        self._connected_at = math.inf

    async def run(self) -> None:
        pause = self._pauses.seconds_min
        while True:
            self.state = "connecting"
            self._connected_at = math.inf
            self.last_lines.clear()
            connection = self._connection = McpConnection(self)
            try:
                await connection.live()
            except Exception as error:  # whatever it is, it is the trouble of this server alone
                while isinstance(error, ExceptionGroup):  # task groups wrap it, several deep
                    error = error.exceptions[0]
                # Without its text: that is the server's, and may hold anything.
                where = "".join(traceback.format_tb(error.__traceback__)).rstrip()
                ended = f"{type(error).__name__}\n{where}"
                log.debug("mcp %s: the connection ended: %s", self.config.name, ended)
                self.error = connection.ended
                if self.error in (None, CLOSED):
                    self.error = self.secrets.mask(_reason(error, self.config))
            finally:
                self._connection = None
            if anyio.current_time() - self._connected_at > self._pauses.seconds_max:
                pause = self._pauses.seconds_min
            self.state = "waiting"
            said = "".join(f"\n    {line}" for line in self.last_lines)
            log.warning("mcp %s: %s; again in %g s%s", self.config.name, self.error, pause, said)
            await anyio.sleep(pause)
            pause = min(pause * 2, self._pauses.seconds_max)

    def lose(self, reason: str | None) -> None:
        """The connection has ended; until there is another one, calls fail with the reason."""
        if self.state == "connected":
            self.state, self.error = "waiting", reason

    def stop(self, reason: str | None) -> None:
        """No further connection is made."""
        self.state, self.error = "stopped", reason

    @property
    def described(self) -> JsonObject:
        about: JsonObject = {"state": self.state, "tools": len(self.tools)}
        about |= {key: word for key in ("error", "note") if (word := getattr(self, key))}
        if self.state != "connected" and self.last_lines:
            about["stderr"] = [*self.last_lines]
        return about

    async def read(self, wanted: str) -> McpFile:
        """The resource of that URI, or the prompt of that name with its arguments."""
        connection = self._connected()
        name, _, query = wanted.partition("?")
        if name not in connection.prompts:
            read = await connection.run(lambda client, _: client.read_resource(wanted), what=wanted)
            return self._masked(file_of_resource(wanted, read))
        arguments = dict(parse_qsl(query))
        about = await connection.run(
            lambda client, _: client.get_prompt(name, arguments), what=name
        )
        return self._masked(file_of_prompt(name, about))

    def _masked(self, file: McpFile) -> McpFile:
        return structs.replace(file, data=self.secrets.mask_bytes(file.data))

    def on_list(
        self, tools: list[mcp_types.Tool], sources: list[McpSource], *, is_cut: bool
    ) -> None:
        """Called with the tools and sources each time the server has listed them."""
        own_name = self.config.name
        self.note = f"only its first {TOOLS_MAX} tools are used" if is_cut else None
        self.sources = tuple(sources[:SOURCES_MAX])
        if self.state != "connected":
            log.info("mcp %s: connected, %d tools", own_name, len(tools))
            self._connected_at = anyio.current_time()
        self.state = "connected"
        self.error = None
        by_name = {tool.name: tool for tool in reversed(tools)}
        names = full_names(own_name, by_name)
        for name in sorted(by_name.keys() - names.keys()):
            log.warning("mcp %s: %s clashes and is left out", own_name, one_line(name))
        listed = tuple(self._tool(name, by_name[true]) for true, name in names.items())
        if [tool.description for tool in listed] != [tool.description for tool in self.tools]:
            self.tools = listed

    def _tool(self, name: str, tool: mcp_types.Tool) -> Tool:
        description = ToolDescription(
            name=name,
            description=tool.description or "",
            parameters=cast("JsonObject", tool.input_schema),
            # Whatever it says of itself: we can't know what it does.
            tool_class="network",
        )
        run = partial(self._call, tool.name)
        mistake_in = partial(_missing_in, description.parameters)
        return Tool(description=description, run=run, keeps_time=True, mistake_in=mistake_in)

    async def _call(self, tool: str, arguments: JsonObject, host: ToolHost) -> str:
        result = await self._connected().call(tool, arguments)
        # Off the loop: a result may have megabytes.
        text = ResultWithPictures(await to_thread.run_sync(result_text, result))
        try:
            text.attachments = tuple(
                [
                    await host.keep_file(one.filename, one.content_type, one.data)
                    for one in pictures_in(result)
                ]
            )
        except ToolFailed as error:  # the text says that there was one
            log.warning("mcp %s: a picture is not kept: %s", self.config.name, error)
        return text

    def _connected(self) -> McpConnection:
        if self._connection is None or self.state != "connected":
            reason = self.error or "it is being connected to"
            raise ToolFailed(f"{self.config.name} is not connected; {reason}")
        return self._connection


def _missing_in(parameters: JsonObject, arguments: JsonObject) -> str | None:
    """Names required arguments that are missing. Whether the others fit is for the server to say:
    many schemas are stricter than their server, or wrong."""
    required = parameters.get("required")
    names = required if isinstance(required, list) else ()
    missing = [name for name in names if isinstance(name, str) and name not in arguments]
    return "\n".join(f"{name}: is missing" for name in missing) or None


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
# One connection, from initialize to its end
#
#     initialize -> list tools -> (call ... | list tools again ...) -> end
#
# Only tasks of the connection talk to the server; a caller waits for its answer and can be
# cancelled at any moment. The SDK would notice a closed connection only at the next call, and
# one malformed tool makes it refuse the whole list: so transports are watched, and lists are
# filtered before it reads them.

T = TypeVar("T")

CLOSED: Final = "it has closed the connection"
TOOLS_MAX: Final = 128
"""The tools of one server that are used; a model that is shown more chooses badly."""
PAGES_MAX: Final = 32
MESSAGES_PER_SECOND_MAX: Final = 200
"""The rate of messages that no call waits for: notifications, requests, noise. Each KiB counts as
one more. A server that sends more is read more slowly, its replies too."""
MESSAGES_BURST_MAX: Final = 400
_OPEN_REQUESTS_MAX: Final = 16
"""Requests of a server that we have not answered, because it does not read; others are dropped."""
_REQUEST_SECONDS_MAX: Final = 30.0
_SILENCE_SECONDS_MAX: Final = 300.0
"""The longest silence on an open stream; a server is expected to send at least a sign of life."""
_LISTINGS_APART_SECONDS: Final = 0.1
_UNASKED_LISTING_SECONDS: Final = 60.0
"""A server that is reached by HTTP can go, and come back with other tools, unnoticed."""
_LISTEN_AGAIN_SECONDS: Final = 5.0
_PARTING_SECONDS_MAX: Final = 2.0
"""The time to end a session by HTTP. A process is waited for until it ends, a few seconds."""


class ConnectionEnded(Exception):
    """The server ended the connection; the text is for the operator."""


class _Traffic:
    """The traffic of one connection: the replies that are awaited, and the rate of all else."""

    def __init__(self) -> None:
        self._awaited: set[str] = set()
        self._open_requests = 0
        self._room = float(MESSAGES_BURST_MAX)
        self._at = anyio.current_time()

    def sending(self, message: JSONRPCMessage) -> None:
        from mcp_types import JSONRPCRequest

        if isinstance(message, JSONRPCRequest):
            self._awaited.add(str(message.id))
        elif getattr(message, "method", None) == "notifications/cancelled":
            params = getattr(message, "params", None) or {}
            self._awaited.discard(str(params.get("requestId")))

    def sent(self, message: JSONRPCMessage) -> None:
        from mcp_types import JSONRPCError, JSONRPCResponse

        if isinstance(message, JSONRPCResponse | JSONRPCError):
            self._open_requests -= 1

    def is_awaited(self, item: SessionMessage | Exception) -> bool:
        from mcp_types import JSONRPCError, JSONRPCResponse

        if isinstance(item, Exception):
            return False
        message = item.message
        if not isinstance(message, JSONRPCResponse | JSONRPCError):
            return False
        is_awaited = str(message.id) in self._awaited
        self._awaited.discard(str(message.id))
        return is_awaited

    def may_ask(self, item: SessionMessage | Exception) -> bool:
        """Whether a request of the server is answered; `True` for whatever is none."""
        from mcp_types import JSONRPCRequest

        if isinstance(item, Exception) or not isinstance(item.message, JSONRPCRequest):
            return True
        if self._open_requests >= _OPEN_REQUESTS_MAX:
            return False
        self._open_requests += 1
        return True

    async def slow_down(self, size_bytes: int) -> None:
        now = anyio.current_time()
        self._room += (now - self._at) * MESSAGES_PER_SECOND_MAX
        self._room = min(self._room, MESSAGES_BURST_MAX) - 1 - size_bytes / 1024
        self._at = now
        if self._room < 0:
            await anyio.sleep(-self._room / MESSAGES_PER_SECOND_MAX)


class _WatchedSender(anyio.abc.ObjectSendStream["SessionMessage"]):
    def __init__(self, stream: WriteStream[SessionMessage], traffic: _Traffic) -> None:
        self._stream = stream
        self._traffic = traffic

    async def send(self, item: SessionMessage) -> None:
        self._traffic.sending(item.message)
        await self._stream.send(item)
        self._traffic.sent(item.message)

    async def aclose(self) -> None:
        await self._stream.aclose()


class _WatchedStream(anyio.abc.ObjectReceiveStream["SessionMessage | Exception"]):
    """Filters lists of tools, holds a flood of messages back, and notices the end of the
    stream."""

    def __init__(
        self,
        stream: ReadStream[SessionMessage | Exception],
        connection: McpConnection,
        traffic: _Traffic,
    ) -> None:
        self._stream = stream
        self._connection = connection
        self._traffic = traffic

    async def receive(self) -> SessionMessage | Exception:
        while True:
            item = await self._next()
            if not self._traffic.is_awaited(item):
                await self._traffic.slow_down(self._size_of(item))
            if self._traffic.may_ask(item):
                return item

    def _size_of(self, item: SessionMessage | Exception) -> int:
        if isinstance(self._stream, ChildOutput):
            return self._stream.message_bytes
        return 0 if isinstance(item, Exception) else len(item.message.model_dump_json())

    async def _next(self) -> SessionMessage | Exception:
        try:
            item = await self._stream.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            self._connection.on_end(CLOSED)
            raise
        except LineTooLong as error:
            self._connection.on_end(str(error))
            raise anyio.EndOfStream from error
        # Of all answers only a list of tools has a field of this name.
        result = None if isinstance(item, Exception) else getattr(item.message, "result", None)
        if isinstance(result, dict) and isinstance(tools := result.get("tools"), list):
            result["tools"] = self._connection.listed(tools)
        return item

    async def aclose(self) -> None:
        await self._stream.aclose()


@cache
def _certificates() -> SSLContext:
    """The trusted certificates. Reading them takes a tenth of a second, so it is done once, off the
    loop."""
    import httpx2

    return httpx2.create_ssl_context()


def _is_named_by_secret(tool: JsonValue, secrets: SecretMask) -> bool:
    name = tool.get("name") if isinstance(tool, dict) else None
    return isinstance(name, str) and secrets.mask(name) != name


class McpConnection:
    def __init__(self, server: McpServer) -> None:
        self._server = server
        self._config = server.config
        self._client: Client | None = None
        self._tasks: anyio.abc.TaskGroup | None = None
        self._calls = 0
        self._look = anyio.Event()
        """Set when to look what tools there are; which also shows whether the server is
        still there."""
        self.ended: str | None = None
        """Why nothing more will come."""
        self.prompts: set[str] = set()

    @asynccontextmanager
    async def _transport(self) -> AsyncIterator[TransportStreams]:
        config = self._config
        async with AsyncExitStack() as during:
            if config.command is not None:
                line = child_process(
                    config.name,
                    config.command,
                    env=config.env,
                    cwd=config.cwd,
                    secrets=self._server.secrets,
                    last_lines=self._server.last_lines,
                )
            else:
                import httpx2
                from mcp.client.streamable_http import streamable_http_client

                from nplt_server.bounded_http import BoundedHttpClient

                assert config.url is not None
                http = BoundedHttpClient(
                    headers=dict(config.headers),
                    timeout=httpx2.Timeout(_REQUEST_SECONDS_MAX, read=_SILENCE_SECONDS_MAX),
                    verify=await to_thread.run_sync(_certificates),
                )
                await during.enter_async_context(http)
                line = streamable_http_client(
                    config.url, http_client=http, max_sse_event_size=RESULT_BYTES_MAX
                )
            read, write = await during.enter_async_context(line)
            traffic = _Traffic()
            yield _WatchedStream(read, self, traffic), _WatchedSender(write, traffic)

    async def live(self) -> None:
        """Raises what ended it. `TimeoutError`: the server did not answer in time."""
        from mcp import Client
        from mcp_types import Implementation

        client = Client(
            self._transport(),
            message_handler=self._on_message,
            client_info=Implementation(name="nplt", version=__version__),
            cache=None,
        )
        seconds = self._config.connect_seconds_max
        with anyio.CancelScope(deadline=anyio.current_time() + seconds) as greeting:
            async with client as self._client:
                await self._list(client)
                greeting.deadline = math.inf
                try:
                    async with anyio.create_task_group() as self._tasks:
                        self._tasks.start_soon(self._follow_changes, client)
                        await self._poll(client)
                        self._tasks.cancel_scope.cancel()
                    raise ConnectionEnded(self.ended or CLOSED)
                finally:
                    self._tasks = None
                    self._server.lose(self.ended)  # before the transport closes
                    greeting.deadline = anyio.current_time() + _PARTING_SECONDS_MAX
        if greeting.cancelled_caught:
            raise TimeoutError

    async def call(self, tool: str, arguments: JsonObject) -> mcp_types.CallToolResult:
        """Each report of progress restarts the server's time limit."""
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

        return await self.run(work, what=tool)

    async def run(
        self, work: Callable[[Client, anyio.CancelScope], Awaitable[T]], *, what: str
    ) -> T:
        """Runs work in a task of the connection, within the server's time. Raises `ToolFailed`."""
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
            self._look.set()
            why = self._server.secrets.mask(self._what_went_wrong(error, what))
            raise ToolFailed(why) from error
        finally:
            scope.cancel()
            self._calls -= 1

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
        offered = client.server_capabilities
        tools: list[mcp_types.Tool] = []
        cursor: str | None = None
        for _ in range(PAGES_MAX if offered.tools is not None else 0):
            page = await client.list_tools(cursor=cursor)
            tools += page.tools
            cursor = page.next_cursor
            if cursor is None or len(tools) > TOOLS_MAX:
                break
        is_cut = len(tools) > TOOLS_MAX or cursor is not None
        if is_cut:
            log.warning("mcp %s: only the first %d tools are used", self._config.name, TOOLS_MAX)
        # Of these the first page is enough to show what there is.
        sources: list[McpSource] = []
        prompts: list[mcp_types.Prompt] = []
        if offered.resources is not None:
            if resources := await self._if_listed(client.list_resources()):
                sources += [self._source(one, one.uri) for one in resources.resources]
            if templates := await self._if_listed(client.list_resource_templates()):
                found = templates.resource_templates
                sources += [self._source(one, one.uri_template) for one in found]
        if offered.prompts is not None and (listed := await self._if_listed(client.list_prompts())):
            prompts = listed.prompts
        self.prompts = {prompt.name for prompt in prompts}
        sources += [self._source_of_prompt(prompt) for prompt in prompts]
        self._server.on_list(tools[:TOOLS_MAX], sources, is_cut=is_cut)

    def _source(self, one: mcp_types.Resource | mcp_types.ResourceTemplate, uri: str) -> McpSource:
        mask = self._server.secrets.mask
        uri = one_line(mask(uri), characters_max=_REFERENCE_CHARACTERS_MAX)
        return McpSource(
            reference=f"mcp:{self._config.name}/{uri}",
            kind="template" if hasattr(one, "uri_template") else "resource",
            description=one_line(mask(one.description or one.title or one.name)),
        )

    def _source_of_prompt(self, prompt: mcp_types.Prompt) -> McpSource:
        names = [one_line(argument.name) for argument in prompt.arguments or ()]
        query = "&".join(f"{name}={{{name}}}" for name in names)
        wanted = f"{one_line(prompt.name)}{'?' if query else ''}{query}"
        about = one_line(prompt.description or prompt.title or "")
        mask = self._server.secrets.mask
        reference = f"mcp:{self._config.name}/{mask(wanted)}"
        return McpSource(reference=reference, kind="prompt", description=mask(about))

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
                    self._look.set()  # it may have changed before we listened
                    async for _ in changes:
                        self._look.set()
            except (ListenNotSupportedError, MCPError):
                return
            except SubscriptionLost:
                self._look.set()
            await anyio.sleep(_LISTEN_AGAIN_SECONDS)

    async def _on_message(self, message: IncomingMessage) -> None:
        if isinstance(message, Exception):
            log.debug("mcp %s: not understood: %s", self._config.name, type(message).__name__)
        elif message.method.endswith("/list_changed"):
            self._look.set()

    def on_end(self, reason: str) -> None:
        """Called when the connection has ended."""
        self.ended = self.ended or reason
        self._server.lose(self.ended)
        self._look.set()

    def listed(self, tools: list[JsonValue]) -> list[JsonValue]:
        """A page of the list of tools, checked and cleaned."""
        secrets = self._server.secrets
        safe = [tool for tool in tools if not (secrets and _is_named_by_secret(tool, secrets))]
        if len(safe) < len(tools):
            self.on_left_out("?", "its name holds a secret")
        kept = checked_listing(safe, left_out=self.on_left_out)
        return [secrets.mask_json(tool) for tool in kept] if secrets else kept

    def on_left_out(self, tool: str, reason: str) -> None:
        log.warning("mcp %s: the tool %s is left out: %s", self._config.name, tool, reason)

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


# ------------------------------------------------------------------------------
# All servers
#
# `run` never fails and ends when it is cancelled: connections are closed and started processes
# have ended (end of input, SIGTERM after two seconds, then SIGKILL).

_FOREIGN_LOGS: Final = ("mcp", "client", "httpx2", "httpcore2")
"""They log whole messages, and addresses, which may hold keys. We say ourselves what matters."""


class McpServers:
    def __init__(
        self,
        configs: Iterable[McpServerConfig],
        *,
        pauses: RetryPauses | None = None,
        secrets: SecretMask = NO_SECRETS,
    ) -> None:
        self.by_name: dict[str, McpServer] = {}
        for config in sorted(configs, key=lambda config: config.name):
            if config.name in self.by_name:
                raise ValueError(f"there are two MCP servers named {config.name}")
            self.by_name[config.name] = McpServer(
                config, pauses=pauses or RetryPauses(), secrets=secrets
            )

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The tools in the order of server names, then of their own names there."""
        return tuple(tool for server in self.by_name.values() for tool in server.tools)

    @property
    def described(self) -> JsonObject | None:
        """The state of each server by name; `None` where none is configured."""
        return {name: one.described for name, one in self.by_name.items()} or None

    async def read(self, reference: str) -> McpFile:
        """Reads the source that `mcp:SERVER/…` names. Raises `ToolFailed`."""
        name, _, wanted = reference.removeprefix("mcp:").partition("/")
        server = self.by_name.get(name)
        if server is None:
            raise ToolFailed(f"there is no MCP server {name!r}{did_you_mean(name, self.by_name)}")
        return await server.read(wanted)

    async def run(self) -> None:
        if not self.by_name:
            return
        error: str | None = None
        try:
            # Off the loop: it takes a second, and conversations go on.
            await to_thread.run_sync(_import_sdk, abandon_on_cancel=True)
            async with anyio.create_task_group() as side_by_side:
                for server in self.by_name.values():
                    side_by_side.start_soon(server.run)
        except ImportError:
            error = "their tools need a package that is not installed: pip install 'nplt[mcp]'"
            log.error("MCP servers are configured, but %s", error)
        finally:
            for server in self.by_name.values():
                server.stop(error)


def _import_sdk() -> None:
    with loading_modules():
        import mcp.client.stdio
        import mcp.client.streamable_http
        import mcp.client.subscriptions  # noqa: F401

    for name in _FOREIGN_LOGS:
        logging.getLogger(name).setLevel(logging.CRITICAL)
