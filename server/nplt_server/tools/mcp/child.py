"""Runs an MCP server as a child process: JSON lines over its standard streams.

The transport is our own: the SDK's joins a line without end over and over on the loop, for
ever. Here a line has a limit, and a child that exceeds it is stopped. A child is asked to end
by the end of its input, then by SIGTERM, then by SIGKILL, with all that it has started. Its
stderr goes to the log.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import signal
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing, suppress
from typing import TYPE_CHECKING, Final, TextIO

import anyio
import anyio.abc
from anyio import to_thread

from nplt_server.masking import NO_SECRETS, SecretMask
from nplt_server.tools import RESULT_BYTES_MAX
from nplt_server.tools.mcp.results import one_line

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams
    from mcp.shared.message import SessionMessage

log = logging.getLogger(__name__)

LINE_BYTES_MAX: Final = 2 * RESULT_BYTES_MAX
"""The longest message; as JSON a result can be twice as long."""
_PARSED_ON_THE_LOOP_BYTES_MAX: Final = 128 * 1024
_STOPPING_SECONDS_MAX: Final = 2.0
"""The time that each way of asking the process to end is given."""
_GROUP_POLL_SECONDS: Final = 0.01


class LineTooLong(Exception):
    """A message is longer than `LINE_BYTES_MAX`."""


class ChildOutput(anyio.abc.ObjectReceiveStream["SessionMessage | Exception"]):
    """The messages a child writes; what is no message is given as the exception it caused."""

    def __init__(self, stdout: anyio.abc.ByteReceiveStream) -> None:
        self._stdout = stdout
        self._read = bytearray()
        self._searched = 0
        self.message_bytes = 0
        """The size of the last message."""
        self.is_too_long = False

    async def receive(self) -> SessionMessage | Exception:
        line = await self._line()
        self.message_bytes = len(line)
        if len(line) > _PARSED_ON_THE_LOOP_BYTES_MAX:
            return await to_thread.run_sync(_message_in, line)
        return _message_in(line)

    async def _line(self) -> bytes:
        while (end := self._read.find(b"\n", self._searched)) < 0:
            self._searched = len(self._read)
            if self._searched > LINE_BYTES_MAX:
                self.is_too_long = True
                self._read.clear()
                raise LineTooLong(f"it wrote a line of more than {LINE_BYTES_MAX:,} bytes")
            self._read += await self._stdout.receive()
        line = bytes(self._read[:end])
        del self._read[: end + 1]
        self._searched = 0
        return line

    async def aclose(self) -> None:
        """The pipe is closed with the process."""


class ChildInput(anyio.abc.ObjectSendStream["SessionMessage"]):
    def __init__(self, stdin: anyio.abc.ByteSendStream) -> None:
        self._stdin = stdin

    async def send(self, item: SessionMessage) -> None:
        line = item.message.model_dump_json(by_alias=True, exclude_unset=True)
        try:
            await self._stdin.send(line.encode() + b"\n")
        except OSError as error:
            raise anyio.BrokenResourceError from error

    async def aclose(self) -> None:
        """The pipe is closed with the process."""


@asynccontextmanager
async def child_process(
    name: str,
    command: tuple[str, ...],
    *,
    env: Mapping[str, str],
    cwd: str | None,
    secrets: SecretMask,
    last_lines: deque[str],
) -> AsyncIterator[TransportStreams]:
    """A transport for the SDK. The child gets PATH, HOME and the like besides `env`, but not the
    rest of our environment. The end of its stderr is kept in `last_lines`."""
    from mcp.client.stdio import get_default_environment

    with closing(ChildStderr(name, secrets, last_lines)) as stderr:
        process = await anyio.open_process(
            command,
            env=get_default_environment() | dict(env),
            cwd=cwd,
            stderr=stderr.file,
            start_new_session=True,
        )
        stderr.file.close()  # the child has its own copy; with ours closed, its end can be seen
        assert process.stdin is not None
        assert process.stdout is not None
        output = ChildOutput(process.stdout)
        try:
            yield output, ChildInput(process.stdin)
        finally:
            with anyio.CancelScope(shield=True):
                await _stop(process, at_once=output.is_too_long)


_ESCAPE: Final = (
    r"\\(?:u[dD][89abAB][\da-fA-F]{2}\\u[dD][c-fC-F][\da-fA-F]{2}"
    r"|(u[dD][89a-fA-F][\da-fA-F]{2})|.)"
)
"""An escape in JSON. The group is a surrogate without its other half."""


def _message_in(line: bytes) -> SessionMessage | Exception:
    """A lone surrogate, which the SDK does not read, is replaced. A reply that can't be read
    becomes an error: otherwise its call would wait until its time is over."""
    from mcp.shared.message import SessionMessage
    from mcp_types import jsonrpc_message_adapter

    text = line.decode(errors="replace")
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(text, by_name=False))
    except ValueError as error:
        mended = re.sub(_ESCAPE, lambda found: r"\ufffd" if found[1] else found[0], text)
        if mended != text:
            return _message_in(mended.encode())
        return _failed_reply(text) or error


def _failed_reply(text: str) -> SessionMessage | None:
    from mcp.shared.message import SessionMessage
    from mcp_types import PARSE_ERROR, ErrorData, JSONRPCError

    try:
        reply = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(reply, dict) or "method" in reply or type(reply.get("id")) not in (int, str):
        return None
    error = ErrorData(code=PARSE_ERROR, message="its reply can't be read")
    return SessionMessage(JSONRPCError(jsonrpc="2.0", id=reply["id"], error=error))


async def _stop(process: anyio.abc.Process, *, at_once: bool) -> None:
    assert process.stdin is not None
    with suppress(OSError, anyio.BrokenResourceError):
        await process.stdin.aclose()
    if at_once or not await _has_ended(process):
        for request in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, request)
            if await _has_group_ended(process.pid):
                break
        await _has_ended(process)
    with anyio.move_on_after(_STOPPING_SECONDS_MAX):
        await process.aclose()


async def _has_ended(process: anyio.abc.Process) -> bool:
    """Reads on, for one that can't write what it has to say does not end."""
    assert process.stdout is not None
    with anyio.move_on_after(_STOPPING_SECONDS_MAX) as waiting:
        with suppress(anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
            while True:
                await process.stdout.receive()
        await process.wait()
    return not waiting.cancelled_caught


async def _has_group_ended(group: int) -> bool:
    with anyio.move_on_after(_STOPPING_SECONDS_MAX):
        while True:
            try:
                os.killpg(group, 0)
            except ProcessLookupError:
                return True
            except PermissionError:
                pass
            await anyio.sleep(_GROUP_POLL_SECONDS)
    return False


_LOGGED_LINE_BYTES_MAX: Final = 2_000
_LOGGED_BYTES_MAX: Final = 256 * 1024
"""The most that is logged of one process in its whole life."""
_READ_BYTES: Final = 16 * 1024
_LAST_READS_MAX: Final = 16
"""A process that has ended leaves at most a full pipe; one that has not may write for ever."""


class ChildStderr:
    """Reads the child's stderr always, keeps its last lines, and logs it at level debug, up to a
    limit. `file` is the end for the child; it is to be closed here when the child has it."""

    def __init__(
        self,
        name: str,
        secrets: SecretMask = NO_SECRETS,
        last_lines: deque[str] | None = None,
    ) -> None:
        self._name = name
        self._last_lines = deque[str](maxlen=0) if last_lines is None else last_lines
        self._secrets = secrets
        self._line = b""
        self._logged_bytes = 0
        self._descriptor, given = os.pipe()
        os.set_blocking(self._descriptor, False)
        self.file: TextIO = os.fdopen(given, "w")
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._descriptor, self._read)

    def close(self) -> None:
        self.file.close()
        for _ in range(_LAST_READS_MAX):
            if not self._read():
                break
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)

    def _read(self) -> bool:
        data = b""
        with suppress(BlockingIOError):
            data = os.read(self._descriptor, _READ_BYTES)
            if not data:
                self._loop.remove_reader(self._descriptor)
                data = b"\n" if self._line else b""
        *lines, self._line = (self._line + data).split(b"\n")
        self._line = self._line[:_LOGGED_LINE_BYTES_MAX]
        is_logged = log.isEnabledFor(logging.DEBUG)
        kept = self._last_lines.maxlen or 0
        said = [line for line in lines if line.strip()]
        for number, line in enumerate(said, start=1):
            is_last = number > len(said) - kept
            if not is_last and not is_logged:
                continue
            text = self._text_of(line)
            if is_last:
                self._last_lines.append(text)
            if is_logged and self._logged_bytes <= _LOGGED_BYTES_MAX:
                self._log(line, text)
        return bool(data)

    def _text_of(self, line: bytes) -> str:
        masked = self._secrets.mask(line[:_LOGGED_LINE_BYTES_MAX].decode(errors="replace"))
        return one_line(masked, characters_max=500)

    def _log(self, line: bytes, text: str) -> None:
        log.debug("mcp %s says: %s", self._name, text)
        self._logged_bytes += len(line)
        if self._logged_bytes > _LOGGED_BYTES_MAX:
            log.debug("mcp %s: what else it says is not logged", self._name)
