"""A process that holds the model: how it comes to be, whether it is well, how it goes."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from nplt_server.errors import ProviderUnavailable

log = logging.getLogger(__name__)

_START_SECONDS_MAX = 60.0
"""A hundred megabytes from a disk that sleeps."""
_LEAVE_SECONDS_MAX = 2.0
_HEALTH_SECONDS_MAX = 2.0
_LAST_WORDS_BYTES = 2000
_ENVIRONMENT = ("HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PATH", "PYTHONPATH", "TMPDIR")
"""All it needs of ours: keys of other providers are none of its business."""
_QUIET = {"GGML_NO_BACKTRACE": "1"}
"""Otherwise it calls a debugger when it breaks down, which takes seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOrder:
    """What to run."""

    file: Path
    name: str
    window_tokens: int
    answers_at_once: int = 2

    @property
    def command(self) -> tuple[str, ...]:
        numbers = (str(self.window_tokens), str(self.answers_at_once))
        # -P: whatever lies in the directory the server was started in stays unread.
        child = (sys.executable, "-P", "-m", f"{__package__}.child")
        return (*child, str(self.file), self.name, *numbers)


class Engine:
    """Made by `start_engine`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.key = secrets.token_urlsafe(32)
        self.address = ""
        self._process = process
        self._last_words = b""
        self._listening = asyncio.create_task(self._listen())

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        return self._process.returncode is not None

    async def become_ready(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(ConnectionError):  # it has ended already, which is told below
            self._process.stdin.write(f"{self.key}\n".encode())
            await self._process.stdin.drain()
        try:
            async with asyncio.timeout(_START_SECONDS_MAX):
                line = await self._process.stdout.readline()
                if not line:
                    await self._process.wait()  # for its last words
        except TimeoutError:
            raise ProviderUnavailable("the local model takes too long to load") from None
        if not line:
            raise ProviderUnavailable("the local model can't be loaded; the server's log says why")
        self.address = line.decode().strip()

    async def is_well(self) -> bool:
        """Whether it is still there, and answers."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_HEALTH_SECONDS_MAX):
                return not self.has_ended and await self._says_it_is_well()
        return False

    async def leave(self) -> None:
        """The end of its input tells it to go, as our own end would."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(_LEAVE_SECONDS_MAX):
                await self._process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        await self._listening
        if self._process.returncode:
            words = self._last_words.decode(errors="replace").rstrip()
            log.warning("the local model's process ended (%d)\n%s", self._process.returncode, words)

    async def _says_it_is_well(self) -> bool:
        host, _, port = self.address.removeprefix("http://").partition(":")
        try:
            reader, writer = await asyncio.open_connection(host, int(port))
            try:
                writer.write(b"GET /health HTTP/1.0\r\n\r\n")
                return b" 200 " in await reader.readline()
            finally:
                writer.close()
        except OSError:
            return False

    async def _listen(self) -> None:
        """Whatever it says of itself, so that it never waits for a reader."""
        assert self._process.stderr is not None
        while piece := await self._process.stderr.read(_LAST_WORDS_BYTES):
            self._last_words = (self._last_words + piece)[-_LAST_WORDS_BYTES:]


async def start_engine(order: EngineOrder) -> Engine:
    """Ready, or gone without a trace."""
    if not order.file.is_file():
        raise ProviderUnavailable("the local model's file is not there")
    try:
        engine = Engine(await _start_process(order))
    except OSError as error:
        raise ProviderUnavailable("the local model's process can't be started") from error
    try:
        await engine.become_ready()
    except BaseException:
        await engine.leave()
        raise
    log.info("the local model %s is loaded (process %d)", order.name, engine.pid)
    return engine


async def _start_process(order: EngineOrder) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *order.command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ} | _QUIET,
        # Ctrl-C is for the server, which first finishes what it is about.
        start_new_session=True,
    )
