"""Every provider there is, ready to be held to the contract."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Literal, TypeAlias

import orjson
from tests.server.providers.anthropic_stage import anthropic_provider
from tests.server.providers.contract import Scene, SceneName, Stage
from tests.support.llama import speech
from tests.support.llama.server import MODEL, LlamaServer, llama_server
from tests.vendors import (
    Answer,
    Cut,
    Emulator,
    Stall,
    Status,
    Text,
    ToolCall,
    emulator,
)
from tests.vendors.answers import UnknownItem
from tests.vendors.sse import Wire

from nplt_server.errors import ProviderUnavailable
from nplt_server.providers import (
    LlmRequest,
    ProviderClient,
    Stopped,
    TextPiece,
    ToolCallPiece,
    UsageReport,
)
from nplt_server.providers.accumulator import ModelOutputAccumulator
from nplt_server.providers.client import VendorProvider
from nplt_server.providers.local_model import LocalProvider
from nplt_server.providers.offline import OfflineProvider, Piece, ScriptedProvider
from nplt_server.providers.openai import OpenAIClient
from nplt_server.providers.openai_chat import ChatApi
from nplt_server.providers.openai_responses import ResponsesApi
from nplt_server.providers.vendor_api import VendorApi

Api: TypeAlias = Literal["chat", "responses", "messages"]
OpenStage: TypeAlias = Callable[[], AbstractAsyncContextManager[Stage]]
_VENDOR_APIS: dict[str, VendorApi] = {"chat": ChatApi(), "responses": ResponsesApi()}
_TEXT = "an answer of several pieces"


class _AnyStage:
    cannots: dict[SceneName, str] = {}  # noqa: RUF012

    def __init__(self, provider: ProviderClient) -> None:
        self.provider = provider

    def cannot(self, scene: SceneName) -> str | None:
        return self.cannots.get(scene)

    def break_off(self) -> None:
        pass

    def is_busy(self) -> bool:
        return False


class OfflineStage(_AnyStage):
    cannots = {  # noqa: RUF012
        "parallel calls": "a prompt can ask it for one call",
        "truncated": "it says all it heard",
        "unknown content": "nobody but itself speaks",
        "cut": "nothing can happen to it on the way",
    }
    _PROMPTS: dict[SceneName, str] = {  # noqa: RUF012
        "call": '!tool paint {"colour": "red"}',
        "broken arguments": '!tool paint {"colour":',
        "endless": "!slow 3600",
        "failure": "!fail",
    }

    def set(self, scene: SceneName) -> Scene:
        return Scene(prompt=self._PROMPTS.get(scene, _TEXT), text=_TEXT)

    def has_seen(self, text: str, output: ModelOutputAccumulator) -> bool:
        """It says the prompt alone, but counts all it heard."""
        assert output.usage is not None
        return output.usage.input_tokens >= len(f"{_TEXT} {text}".split())


class ScriptedStage(_AnyStage):
    cannots = {  # noqa: RUF012
        "unknown content": "what it says has types",
    }

    def __init__(self) -> None:
        super().__init__(ScriptedProvider(self._answer))
        self._scene: SceneName = "text"
        self._is_speaking = False
        self._seen: list[str] = []

    def set(self, scene: SceneName) -> Scene:
        self._scene = scene
        return Scene(text=_TEXT)

    def has_seen(self, text: str, output: ModelOutputAccumulator) -> bool:
        return text in self._seen[-1]

    def is_busy(self) -> bool:
        return self._is_speaking

    async def _answer(self, request: LlmRequest) -> AsyncIterator[Piece]:
        self._seen.append(request.context[-1].text)  # type: ignore[union-attr]
        if self._scene == "failure":
            raise ProviderUnavailable("it was told to")
        return self._pieces()

    async def _pieces(self) -> AsyncIterator[Piece]:
        call = ToolCallPiece(index=0, tool_name="paint", arguments='{"colour":')
        rest = ToolCallPiece(index=0, arguments='"red"}')
        second = ToolCallPiece(index=1, tool_name="paint", arguments='{"colour":"red"}')
        usage = UsageReport(input_tokens=1, output_tokens=5)
        called = Stopped(reason="tool_calls")
        says: dict[SceneName, tuple[Piece, ...]] = {
            "usage": (_TEXT, usage, Stopped(reason="end")),
            "call": (call, rest, called),
            "parallel calls": (call, rest, second, called),
            "broken arguments": (call, called),
            "truncated": (TextPiece(text=_TEXT), Stopped(reason="length")),
            "cut": (TextPiece(text=_TEXT),),
        }
        self._is_speaking = True
        try:
            for piece in says.get(self._scene, (_TEXT[:5], _TEXT[5:])):
                yield piece
            if self._scene == "endless":
                await asyncio.Event().wait()
        finally:
            self._is_speaking = False


class EmulatorStage(_AnyStage):
    def __init__(self, vendors: Emulator, api: Api, *, url: str | None = None) -> None:
        """`url`: of whoever stands before it."""
        model = "claude-opus-4-5" if api == "messages" else "gpt-5.6"
        super().__init__(
            provider_of(api, model=model, key=vendors.key, url=url or vendors.url),
        )
        self._vendors = vendors
        self._unknown_item = {"type": "sculpture", "id": "s_1", "marble": [1]}
        self._parts_with_strangers = api != "chat"  # where an answer has no such parts

    def set(self, scene: SceneName) -> Scene:
        text_part, red = Text(_TEXT), ToolCall("paint", '{"colour":"red"}')
        answer = Answer(parts=(text_part,))
        match scene:
            case "call":
                answer = Answer(parts=(red,))
            case "parallel calls":
                answer = Answer(parts=(red, red))
            case "broken arguments":
                answer = Answer(parts=(ToolCall("paint", '{"colour":'),))
            case "truncated":
                answer = Answer(parts=(text_part,), stop="length")
            case "unknown content":
                self._vendors.wire = Wire(unknown_events=True, extra_fields=True, pings=True)
                if self._parts_with_strangers:
                    answer = Answer(parts=(UnknownItem(self._unknown_item), text_part))
            case "endless":
                self._vendors.fail_next(Stall(after=6))
            case "cut":
                self._vendors.fail_next(Cut(after=6))
            case "failure":
                self._vendors.fail_next(Status(status=500))
            case _:
                pass
        self._vendors.script = lambda _: answer
        return Scene(text=_TEXT)

    def has_seen(self, text: str, output: ModelOutputAccumulator) -> bool:
        return orjson.dumps(text)[1:-1] in orjson.dumps(self._vendors.received[-1].body)

    def is_busy(self) -> bool:
        """What stalls goes on, and ends when nobody is there any more to hear it."""
        self._vendors.release()
        return False


class LlamaStage(_AnyStage):
    cannots = {  # noqa: RUF012
        "parallel calls": "the hand-made model makes one call",
        "broken arguments": "llama.cpp lets no model break them",
        "unknown content": "it is a real server, and says what it says",
        "cut": "it is a real server, and others are using it",
    }

    def __init__(self, server: LlamaServer, api: Api) -> None:
        super().__init__(provider_of(api, model=MODEL, key="none", url=server.url))
        self._server = server
        if api == "responses":
            self.cannots = {
                **self.cannots,
                "truncated": "llama.cpp tells every response to be complete",
            }

    def set(self, scene: SceneName) -> Scene:
        return _scene_of_speech(scene)

    def has_seen(self, text: str, output: ModelOutputAccumulator) -> bool:
        return output.text == speech.spoken(speech.SCREEN_SENTENCE)

    def is_busy(self) -> bool:
        return self._server.busy_slots > 0


class LocalStage(_AnyStage):
    cannots = {  # noqa: RUF012
        **LlamaStage.cannots,
        "call": "it is offered no tools",
        "broken arguments": "it is offered no tools",
    }

    def __init__(self, provider: LocalProvider, pid: int) -> None:
        super().__init__(provider)
        self._pid = pid

    def cannot(self, scene: SceneName) -> str | None:
        return None if scene == "cut" else super().cannot(scene)

    def set(self, scene: SceneName) -> Scene:
        return _scene_of_speech(scene)

    def break_off(self) -> None:
        os.kill(self._pid, signal.SIGKILL)

    def has_seen(self, text: str, output: ModelOutputAccumulator) -> bool:
        return output.text == speech.spoken(speech.SCREEN_SENTENCE)


def _scene_of_speech(scene: SceneName) -> Scene:
    match scene:
        case "endless" | "cut":
            return Scene(prompt=speech.GO_ON)
        case "truncated":
            return Scene(prompt=speech.GO_ON, options={"output_tokens": 16})
        case "failure":
            return Scene(prompt="more than fits the window " * 1000)
        case _:
            return Scene(text=speech.spoken(speech.SENTENCE))


def provider_of(api: Api, *, model: str, key: str, url: str) -> ProviderClient:
    if api == "messages":
        return anthropic_provider(models=(model,), key=key, base_url=url)
    client = OpenAIClient(api_key=key, base_url=f"{url}/v1")
    return VendorProvider("openai", client, apis=(_VENDOR_APIS[api],), models=(model,))


@asynccontextmanager
async def _closing(stage: Stage) -> AsyncIterator[Stage]:
    try:
        yield stage
    finally:
        await stage.provider.aclose()


def _emulated(api: Api) -> OpenStage:
    @asynccontextmanager
    async def opened() -> AsyncIterator[Stage]:
        async with emulator() as vendors, _closing(EmulatorStage(vendors, api)) as stage:
            yield stage

    return opened


@asynccontextmanager
async def open_local() -> AsyncIterator[Stage]:
    provider = LocalProvider(file=llama_server().model_file)
    stage = LocalStage(provider, (await provider.running()).pid)
    async with _closing(stage):
        yield stage


STAGES: dict[str, OpenStage] = {
    "offline": lambda: _closing(OfflineStage(OfflineProvider(words_per_second=0))),
    "scripted": lambda: _closing(ScriptedStage()),
    "emulated chat": _emulated("chat"),
    "emulated responses": _emulated("responses"),
    "emulated messages": _emulated("messages"),
    "llama.cpp chat": lambda: _closing(LlamaStage(llama_server(), "chat")),
    "llama.cpp responses": lambda: _closing(LlamaStage(llama_server(), "responses")),
    "llama.cpp messages": lambda: _closing(LlamaStage(llama_server(), "messages")),
}
