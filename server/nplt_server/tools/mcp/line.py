"""How words travel to an MCP server and back: the SDK's transports, watched.

Two things the SDK doesn't tell or do. That a line has ended: it would only be
noticed at the next call. And that one tool that is not well formed makes it
refuse the whole list: so lists are sifted before it reads them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import cache
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, TextIO

import anyio
import anyio.to_thread

from nplt_server.tools.bounds import RESULT_BYTES_MAX
from nplt_server.tools.mcp.child_stderr import ChildStderr
from nplt_server.tools.mcp.config import McpServerConfig
from nplt_server.tools.mcp.listing import sifted

if TYPE_CHECKING:
    from ssl import SSLContext

    import httpx2
    from mcp.client import Transport
    from mcp.shared.message import SessionMessage

    # The SDK names them in a private module only; these are what they are.
    from mcp.client._transport import ReadStream, TransportStreams  # isort: skip

log = logging.getLogger(__name__)

_REQUEST_SECONDS_MAX: Final = 30.0
_SILENCE_SECONDS_MAX: Final = 300.0
"""Of a stream that stays open; a server is expected to say at least that it lives."""


class Line:
    """A transport as the SDK wants it. `ended` is called when nothing more will come."""

    def __init__(
        self,
        inner: Transport,
        *,
        name: str,
        opened: Callable[[], None],
        ended: Callable[[], None],
    ) -> None:
        self._inner = inner
        self._name = name
        self._opened = opened
        self._ended = ended

    async def __aenter__(self) -> TransportStreams:
        read, write = await self._inner.__aenter__()
        self._opened()
        return _Watched(read, sift=self._sift, ended=self._ended), write

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        return await self._inner.__aexit__(kind, error, traceback)

    def _sift(self, item: SessionMessage | Exception) -> None:
        """Of all answers only a list of tools has a field of this name."""
        result = None if isinstance(item, Exception) else getattr(item.message, "result", None)
        if isinstance(result, dict) and isinstance(tools := result.get("tools"), list):
            result["tools"] = sifted(tools, left_out=self._left_out)

    def _left_out(self, tool: str, reason: str) -> None:
        log.warning("mcp %s: the tool %s is left out: %s", self._name, tool, reason)


class _Watched:
    """A stream to read from, with an eye on what comes and on its end."""

    def __init__(
        self,
        stream: ReadStream[SessionMessage | Exception],
        *,
        sift: Callable[[SessionMessage | Exception], None],
        ended: Callable[[], None],
    ) -> None:
        self._stream = stream
        self._sift = sift
        self._ended = ended

    async def receive(self) -> SessionMessage | Exception:
        try:
            item = await self._stream.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            self._ended()
            raise
        self._sift(item)
        return item

    def __aiter__(self) -> ReadStream[SessionMessage | Exception]:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> bool | None:
        await self.aclose()
        return None


async def line_to(
    config: McpServerConfig, *, ended: Callable[[], None], during: AsyncExitStack
) -> Line:
    """Not open yet: the SDK opens it. What it needs is put away by `during`, after it."""
    match config:
        case McpServerConfig(command=(program, *arguments)):
            stderr = during.enter_context(ChildStderr(config.name))
            inner = _line_to_process(config, program, arguments, stderr.file)
            return Line(inner, name=config.name, opened=stderr.started, ended=ended)
        case McpServerConfig(url=str(url)):
            certificates = await anyio.to_thread.run_sync(_certificates)
            client = await during.enter_async_context(_web_client(config, certificates))
            inner = _line_to_address(url, client)
            return Line(inner, name=config.name, opened=lambda: None, ended=ended)
        case _:
            raise AssertionError("a server has a command or a url")


def _line_to_address(url: str, client: httpx2.AsyncClient) -> Transport:
    from mcp.client.streamable_http import streamable_http_client

    return streamable_http_client(url, http_client=client, max_sse_event_size=RESULT_BYTES_MAX)


def _line_to_process(
    config: McpServerConfig, program: str, arguments: list[str], stderr: TextIO
) -> Transport:
    from mcp.client.stdio import StdioServerParameters, stdio_client

    process = StdioServerParameters(
        command=program,
        args=arguments,
        env=dict(config.env),  # beside PATH, HOME and the like; ours is not handed on
        cwd=config.cwd,
        encoding_error_handler="replace",
    )
    return stdio_client(process, errlog=stderr)


def _web_client(config: McpServerConfig, certificates: SSLContext) -> httpx2.AsyncClient:
    import httpx2

    timeout = httpx2.Timeout(_REQUEST_SECONDS_MAX, read=_SILENCE_SECONDS_MAX)
    return httpx2.AsyncClient(headers=dict(config.headers), timeout=timeout, verify=certificates)


@cache
def _certificates() -> SSLContext:
    """Those to trust. To read them takes a tenth of a second: once, and off the loop."""
    import httpx2

    return httpx2.create_ssl_context()
