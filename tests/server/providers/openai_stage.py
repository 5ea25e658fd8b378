"""A request to the emulated OpenAI, and what comes of its answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from itertools import count
from typing import Any

import orjson
from tests.server.providers.compiler_contexts import message_of
from tests.support.vendor_models import rendered_in
from tests.vendors.answers import Answer, Part
from tests.vendors.apis import Api
from tests.vendors.caching import Usage
from tests.vendors.emulator import Emulator, Limits
from tests.vendors.sse import Wire

from nplt_protocol import JsonValue
from nplt_server.context.messages import (
    ContextMessage,
    ModelInputMessage,
    ModelOutputMessage,
    SystemMessage,
    ToolResultsMessage,
)
from nplt_server.providers import LlmRequest, ModelOutputDelta, Patience
from nplt_server.providers.accumulator import ModelOutputAccumulator
from nplt_server.providers.client import VendorProvider
from nplt_server.providers.openai import OpenAIClient
from nplt_server.providers.openai_chat import ChatApi
from nplt_server.providers.openai_responses import ResponsesApi
from nplt_server.providers.vendor_api import VendorApi
from nplt_server.tools import ToolDescription
from nplt_storage.entries import ModelInvocationDescriptor, ToolCallResult

REASONER = "gpt-5.2"
PLAIN = "gpt-4o-mini"
CHAT = ChatApi()
RESPONSES = ResponsesApi()
LOOK = ToolDescription(
    name="look",
    description="Looks at something.",
    parameters={"type": "object", "properties": {"at": {"type": "string"}}},
)


def request(
    *context: ContextMessage,
    vendor_api: VendorApi = CHAT,
    model: str = REASONER,
    tools: tuple[ToolDescription, ...] = (LOOK,),
    options: dict[str, JsonValue] | None = None,
    answer_tokens_max: int | None = 4096,
) -> LlmRequest:
    return LlmRequest(
        invocation=ModelInvocationDescriptor(
            provider="openai", specification=vendor_api.specification, model=model
        ),
        context=context or (ModelInputMessage(content="hello", seq=1),),
        tools=tools,
        options=options or {},
        answer_tokens_max=answer_tokens_max,
    )


@asynccontextmanager
async def provider_of(
    vendors: Emulator,
    vendor_api: VendorApi = CHAT,
    *,
    key: str | None = None,
    patience: Patience | None = None,
) -> AsyncIterator[VendorProvider]:
    client = OpenAIClient(
        api_key=vendors.key if key is None else key,
        base_url=vendors.openai_url,
        patience=patience,
    )
    provider = VendorProvider("openai", client, apis=(vendor_api,), models=(REASONER,))
    try:
        yield provider
    finally:
        await provider.aclose()


def accumulated(deltas: Iterable[ModelOutputDelta]) -> ModelOutputAccumulator:
    output = ModelOutputAccumulator(answer_bytes_max=10**6)
    for delta in deltas:
        output.apply(delta)
    return output


def calls_of(output: ModelOutputAccumulator) -> list[tuple[str, str]]:
    entry = output.entry(
        turn_id="t", call=0, invocation=request().invocation, new_call_id=lambda: "c"
    )
    return [(call.tool_name, call.raw_arguments) for call in entry.tool_calls]


async def deltas_of(
    provider: VendorProvider, asked: LlmRequest, deltas: list[ModelOutputDelta]
) -> ModelOutputAccumulator:
    """`deltas` also holds what came before an error."""
    async with provider.call_model(asked) as stream:
        async for delta in stream:
            deltas.append(delta)
    return accumulated(deltas)


async def asked_over_http(
    vendors: Emulator, vendor_api: VendorApi, asked: LlmRequest | None = None, **how: Any
) -> ModelOutputAccumulator:
    async with provider_of(vendors, vendor_api, **how) as provider:
        return await deltas_of(provider, asked or request(vendor_api=vendor_api), [])


def parsed(vendor_api: VendorApi, *events: dict[str, Any] | bytes) -> list[ModelOutputDelta]:
    parser = vendor_api.parser(rendered_in(vendor_api, request(vendor_api=vendor_api)))
    lines = [each if isinstance(each, bytes) else orjson.dumps(each) for each in events]
    return [delta for line in lines for delta in parser.feed(line)]


class Talk:
    """A conversation in memory: rendered, admitted by the emulator's rules, answered,
    parsed, remembered, rendered again. API and model may change on the way."""

    def __init__(self, vendor_api: VendorApi, *, model: str = REASONER) -> None:
        self.vendor_api, self.model = vendor_api, model
        self.context: list[ContextMessage] = [SystemMessage(instruction="be brief")]
        self._vendors = Emulator(limits=Limits(cached_tokens_min=0))
        self.bodies: list[dict[str, Any]] = []
        self.usages: list[Usage] = []
        self._ids = count(1)

    @property
    def api(self) -> Api:
        return self._vendors.api(
            "chat" if self.vendor_api.specification == "openai-chat" else "responses"
        )

    def prompt(self, text: str) -> None:
        self.context.append(ModelInputMessage(content=text, seq=self._seq))

    def answers(self, *parts: Part, wire: Wire | None = None) -> ModelOutputAccumulator:
        asked = request(*self.context, vendor_api=self.vendor_api, model=self.model)
        rendered = rendered_in(self.vendor_api, asked)
        body: dict[str, Any] = rendered.body
        self.bodies.append(body)
        self.usages.append(self.api.admit(body))
        events = self.api.events(body, Answer(parts=parts), self.usages[-1], wire or Wire())
        parser = self.vendor_api.parser(rendered)
        lines = [
            e.data.encode() if isinstance(e.data, str) else orjson.dumps(e.data) for e in events
        ]
        output = accumulated(delta for line in lines for delta in parser.feed(line))
        entry = output.entry(
            turn_id="t",
            call=0,
            invocation=asked.invocation,
            new_call_id=lambda: f"own-{next(self._ids)}",
        )
        self.context.append(message_of(entry, self._seq))
        return output

    def runs_tools(self, text: str = "seen") -> None:
        last = self.context[-1]
        assert isinstance(last, ModelOutputMessage)
        results = tuple(
            ToolCallResult(
                tool_call_id=call.tool_call_id,
                tool_name=call.tool_name,
                status="success",
                result=text,
                duration=0.1,
                timestamp=datetime(2026, 1, 1, tzinfo=UTC),
            )
            for call in last.tool_calls
        )
        self.context.append(ToolResultsMessage(results=results, seq=self._seq))

    @property
    def _seq(self) -> int:
        return len(self.context) + 1
