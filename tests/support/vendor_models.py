"""The vendors' models behind the provider port, without HTTP: our own rendering, the
vendor's rules, a scripted answer in the vendor's events, our own parsing.

So a conversation can be played thousands of times, and every request is still judged
by the emulators. An answer may be broken off after any event.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any, Protocol, TypeAlias

import orjson
from tests.vendors import Answer, Emulator, Limits, Part, Rejection
from tests.vendors.answers import ApiName
from tests.vendors.apis import Api
from tests.vendors.caching import Usage
from tests.vendors.sse import Event, Wire

from nplt_server.errors import ProviderRefused
from nplt_server.providers import LlmRequest, ModelOutputDelta
from nplt_server.providers.anthropic import MessageParser, MessagesApi
from nplt_server.providers.compiler import ContextCompiler, VendorRules
from nplt_server.providers.openai_chat import ChatApi
from nplt_server.providers.openai_responses import ResponsesApi
from nplt_server.providers.vendor_api import RenderedRequest, VendorApi

Json: TypeAlias = dict[str, Any]

_PIECE_CHARACTERS = 24


class Parser(Protocol):
    def feed(self, data: bytes) -> list[ModelOutputDelta]: ...


class Prompter(Protocol):
    """Who tells the models what to say, and may stop them in the middle of it."""

    def next_answer(self) -> Sequence[Part]: ...

    async def listens(self, events: int, of: int) -> bool:
        """So many of the running answer's events are through. False: the stream ends
        here, without a word. May also raise, or never return."""
        ...


Rendering: TypeAlias = Callable[[LlmRequest], tuple[Json, Parser]]


class VendorVoice:
    """One vendor's API. `rejections` must stay empty."""

    def __init__(
        self,
        provider_id: str,
        api: Api,
        *,
        specification: str,
        models: tuple[str, ...],
        rendering: Rendering,
        prompter: Prompter,
    ) -> None:
        self.id = provider_id
        self._specification = specification
        self.models = models
        self.rejections: list[Rejection] = []
        self.usages: list[Usage] = []
        self._api = api
        self._rendering = rendering
        self._prompter = prompter

    def specification_of(self, model: str) -> str:
        return self._specification

    def call_model(
        self, request: LlmRequest
    ) -> AbstractAsyncContextManager[AsyncIterator[ModelOutputDelta]]:
        return aclosing(self._answer(request))

    async def aclose(self) -> None:
        pass  # it holds nothing

    async def _answer(self, request: LlmRequest) -> AsyncGenerator[ModelOutputDelta, None]:
        rendered, parser = self._rendering(request)
        body: Json = orjson.loads(orjson.dumps(rendered))  # as it would arrive
        try:
            usage = self._api.admit(body)
        except Rejection as rejection:
            self.rejections.append(rejection)
            raise ProviderRefused("the vendor refused it") from None
        self.usages.append(usage)
        answer = Answer(
            parts=tuple(self._prompter.next_answer()), piece_characters=_PIECE_CHARACTERS
        )
        events = self._api.events(body, answer, usage, Wire())
        for number, event in enumerate(events):
            if not await self._prompter.listens(number, len(events)):
                return
            for delta in parser.feed(_data(event)):
                yield delta


def all_voices(prompter: Prompter) -> Iterator[VendorVoice]:
    """Both of OpenAI's APIs and Anthropic's, with models that think and some that don't."""
    vendors = Emulator(limits=Limits(cached_tokens_min=0))
    for name, vendor_api in (("chat", ChatApi()), ("responses", ResponsesApi())):
        api: ApiName = "chat" if name == "chat" else "responses"
        yield VendorVoice(
            name,
            vendors.api(api),
            specification=vendor_api.specification,
            models=("gpt-4o-mini", "gpt-5.6"),
            rendering=_spoken_in(vendor_api),
            prompter=prompter,
        )
    yield VendorVoice(
        "anthropic",
        vendors.api("messages"),
        specification="anthropic-messages",
        models=("claude-opus-4-5", "claude-opus-5-5"),
        rendering=_as_messages(),
        prompter=prompter,
    )


def rendered_in(vendor_api: VendorApi, request: LlmRequest) -> RenderedRequest:
    compiled = ContextCompiler(vendor_api.rules).compile(request.context, origin=request.invocation)
    return vendor_api.render(request, compiled)


def _spoken_in(vendor_api: VendorApi) -> Rendering:
    def rendering(request: LlmRequest) -> tuple[Json, Parser]:
        rendered = rendered_in(vendor_api, request)
        return rendered.body, vendor_api.parser(rendered)

    return rendering


def _as_messages() -> Rendering:
    compiler = ContextCompiler(VendorRules())

    def rendering(request: LlmRequest) -> tuple[Json, Parser]:
        compiled = compiler.compile(request.context, origin=request.invocation)
        rendered = MessagesApi().render(request, compiled)
        return rendered.body, MessageParser(rendered.own_names)

    return rendering


def _data(event: Event) -> bytes:
    return event.data.encode() if isinstance(event.data, str) else orjson.dumps(event.data)
