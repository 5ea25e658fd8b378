"""Answers with a model on this machine, through llama.cpp's server in a child process.

The process starts at the first call and again when it has died. For a model that knows no tools
contexts are rewritten without them. The chat template is that of the model's file.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Final

from msgspec import structs

from nplt_server.context.messages import (
    ContextMessage,
    ModelInputMessage,
    ModelOutputMessage,
    SystemMessage,
    ToolResultsMessage,
)
from nplt_server.errors import ProviderUnavailable
from nplt_server.providers import (
    DeltaStream,
    LlmRequest,
    ModelFacts,
    ModelOutputDelta,
    Patience,
)
from nplt_server.providers.client import VendorProvider
from nplt_server.providers.models import FACTS, MODEL, installed_model
from nplt_server.providers.openai import OpenAIClient
from nplt_server.providers.openai_chat import ChatApi
from nplt_server.request_form import RequestForm

log = logging.getLogger(__name__)

_WHO_IT_IS: Final = SystemMessage(instruction="You are a helpful assistant.")
"""Used for contexts without an instruction: the template's own makes the model digress."""


def without_tools(request: LlmRequest) -> LlmRequest:
    """The request as the local model is shown it, which knows no tools. Results of other models'
    calls are shown as text; the calls are not shown, because the template would render them as
    empty answers. So small a model never calls a tool and takes their descriptions for the
    question: none is offered."""
    context: list[ContextMessage] = []
    for message in request.context:
        match message:
            case ModelOutputMessage(tool_calls=(_, *_)):
                if message.content:
                    context.append(structs.replace(message, tool_calls=(), parts=()))
            case ToolResultsMessage():
                text = "\n".join(result.result for result in message.results)
                context.append(
                    ModelInputMessage(
                        content=text, live_screen=message.live_screen, seq=message.seq
                    )
                )
            case _:
                context.append(message)
    if not any(isinstance(message, SystemMessage) for message in context):
        context.insert(0, _WHO_IT_IS)
    return structs.replace(request, tools=(), context=tuple(context))


_START_SECONDS_MAX = 60.0
"""Enough to read a hundred megabytes from a disk that has to spin up."""
_BYTES_A_SECOND = 50e6
_LEAVE_SECONDS_MAX = 2.0
_HEALTH_SECONDS_MAX = 2.0
_LAST_WORDS_BYTES = 2000
_ENVIRONMENT = ("HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PATH", "PYTHONPATH", "TMPDIR")
"""The variables that the process gets: keys of other providers are not among them."""
_QUIET = {"GGML_NO_BACKTRACE": "1"}
"""Keeps it from starting a debugger when it crashes, which takes seconds."""
_VENDOR_API = ChatApi()
_ONE_CALL = {"Connection": "close"}
"""llama.cpp's server closes connections that it promised to keep, sometimes before an answer."""


class Engine:
    """The child process that holds the model, and the provider that calls it."""

    def __init__(
        self, process: asyncio.subprocess.Process, file: Path, name: str, *, takes_tools: bool
    ) -> None:
        self.pid = process.pid
        self._name = name
        self._form = RequestForm(without_tools=not takes_tools)
        self._file = file
        self.chat: VendorProvider | None = None
        """Set when the engine is ready."""
        self.key = secrets.token_urlsafe(32)
        self.address = ""
        self._process = process
        self._last_words = b""
        self._listening = asyncio.create_task(self._listen())

    @property
    def has_ended(self) -> bool:
        return self._process.returncode is not None

    async def become_ready(self, provider_id: str, patience: Patience | None) -> None:
        """Waits until the model is loaded. Raises `ProviderUnavailable`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(ConnectionError):  # it has ended already, which is noticed below
            self._process.stdin.write(f"{self.key}\n".encode())
            await self._process.stdin.drain()
        try:
            async with asyncio.timeout(self._start_seconds):
                line = await self._process.stdout.readline()
                if not line:
                    await self._process.wait()  # for its last words
        except TimeoutError:
            raise ProviderUnavailable(
                f"the local model {self._name} takes too long to load"
            ) from None
        if not line:
            raise ProviderUnavailable(
                f"the local model {self._name} can't be loaded; the server's log says why"
            )
        self.address = line.decode().strip()
        client = OpenAIClient(
            api_key=self.key,
            base_url=f"{self.address}/v1",
            headers=_ONE_CALL,
            patience=patience,
        )
        self.chat = VendorProvider(
            provider_id,
            client,
            apis=(_VENDOR_API,),
            models=(self._name,),
            form=self._form,
        )

    @property
    def _start_seconds(self) -> float:
        """The time to load it, at least as fast as a slow disk reads."""
        return _START_SECONDS_MAX + self._file.stat().st_size / _BYTES_A_SECOND

    async def is_well(self) -> bool:
        """Whether it is still there, and answers."""
        host, _, port = self.address.removeprefix("http://").partition(":")
        with suppress(OSError):  # a time-out is one
            async with asyncio.timeout(_HEALTH_SECONDS_MAX):
                reader, writer = await asyncio.open_connection(host, int(port))
                try:
                    writer.write(b"GET /health HTTP/1.0\r\n\r\n")
                    return not self.has_ended and b" 200 " in await reader.readline()
                finally:
                    writer.close()
        return False

    async def leave(self) -> None:
        """Ends the process by the end of its input, as the end of the server would."""
        if self.chat is not None:
            await self.chat.aclose()
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

    async def _listen(self) -> None:
        """Reads the stderr of the process, so that it never blocks on a full pipe."""
        assert self._process.stderr is not None
        while piece := await self._process.stderr.read(_LAST_WORDS_BYTES):
            self._last_words = (self._last_words + piece)[-_LAST_WORDS_BYTES:]


_ANSWERS_AT_ONCE = 2


class LocalProvider:
    """One engine, started at the first call, and again when it is gone.

    Calls that come while the engine starts wait for the same start; cancelling one does not
    affect the others. A start that fails fails all who wait for it. The breaker decides how
    often a start is worth trying. If the process dies before the first word, the call is sent
    to the next process, once; after the first word the answer is cut.
    """

    def __init__(
        self,
        provider_id: str = "local",
        *,
        file: Path | None = None,
        name: str = MODEL,
        facts: ModelFacts = FACTS,
        window_tokens: int | None = None,
        patience: Patience | None = None,
    ) -> None:
        """`file`: the model, if it is not the one that was installed; `facts`: about it."""
        self.id = provider_id
        self.models = (name,)
        self._name = name
        self._takes_tools = facts.takes_tools
        self.patience = patience
        self.window_tokens = window_tokens or facts.context_tokens
        self._file = file or installed_model() or Path(f"{MODEL}.gguf")
        self._engine: Engine | None = None
        self._starting: asyncio.Task[Engine] | None = None
        self._is_closed = False

    def specification_of(self, model: str) -> str:
        return _VENDOR_API.specification

    def call_model(self, request: LlmRequest) -> DeltaStream:
        return aclosing(self._answer(request if self._takes_tools else without_tools(request)))

    async def running(self) -> Engine:
        if self._is_closed:
            raise ProviderUnavailable("the local model was stopped")
        if self._engine is not None and not self._engine.has_ended:
            return self._engine
        if self._starting is None or self._starting.done():
            self._starting = asyncio.create_task(self._start())
        # It is everyone's, so nobody's cancellation ends it.
        return await asyncio.shield(self._starting)

    async def is_lost(self, engine: Engine) -> bool:
        """Whether a call failed because its engine did; the next one gets another."""
        if await engine.is_well():
            return False
        if self._engine is engine:
            await self._leave()
        return True

    async def aclose(self) -> None:
        self._is_closed = True
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        await self._leave()

    async def _answer(self, request: LlmRequest) -> AsyncGenerator[ModelOutputDelta, None]:
        for may_ask_again in (True, False):
            engine = await self.running()
            assert engine.chat is not None
            try:
                async with engine.chat.call_model(request) as deltas:
                    async for delta in deltas:
                        yield delta
                return
            except ProviderUnavailable as failure:
                is_lost = await self.is_lost(engine)
                if not (is_lost and may_ask_again and failure.before_first_token):
                    raise

    async def _start(self) -> Engine:
        """Ready, or gone without a trace."""
        await self._leave()
        if not self._file.is_file():
            raise ProviderUnavailable(f"the local model's file is not there: {self._file.name}")
        try:
            process = await asyncio.create_subprocess_exec(
                # -P: whatever lies in the directory the server was started in stays unread.
                *(sys.executable, "-P", "-m", f"{__package__}.local_child"),
                *(str(self._file), self._name, str(self.window_tokens), str(_ANSWERS_AT_ONCE)),
                *(("--small",) if self._name == MODEL else ()),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
                | _QUIET,
                # Ctrl-C is for the server, which first finishes what it is about.
                start_new_session=True,
            )
        except OSError as error:
            raise ProviderUnavailable("the local model's process can't be started") from error
        engine = Engine(process, self._file, self._name, takes_tools=self._takes_tools)
        try:
            await engine.become_ready(self.id, self.patience)
        except BaseException:
            await engine.leave()
            raise
        log.info("the local model %s is loaded (process %d)", self._name, engine.pid)
        self._engine = engine
        return engine

    async def _leave(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            await engine.leave()
