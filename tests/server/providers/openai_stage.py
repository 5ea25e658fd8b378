"""A request to the emulated OpenAI, and what comes of its answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from itertools import count
from typing import Any

import orjson

from nplt_protocol.json_values import JsonValue
from nplt_server.accumulator import ModelOutputAccumulator
from nplt_server.context import (
    ContextMessage,
    ModelInputMessage,
    ModelOutputMessage,
    SystemMessage,
    ToolResultsMessage,
)
from nplt_server.deltas import ModelOutputDelta
from nplt_server.providers.base import ModelRequest
from nplt_server.providers.openai.chat_render import ChatDialect
from nplt_server.providers.openai.client import OpenAIClient
from nplt_server.providers.openai.dialect import Dialect
from nplt_server.providers.openai.provider import OpenAIProvider
from nplt_server.providers.openai.responses_render import ResponsesDialect
from nplt_server.providers.patience import Patience
from nplt_server.testing.vendors.answers import Answer, Part
from nplt_server.testing.vendors.apis import Api
from nplt_server.testing.vendors.caching import Usage
from nplt_server.testing.vendors.emulator import Emulator, Limits
from nplt_server.testing.vendors.sse import Wire
from nplt_server.tools.base import ToolDescription
from nplt_storage.facts.entries import ModelInvocationDescriptor
from nplt_storage.facts.tool_calls import ToolCallResult

REASONER = "gpt-5.6"
PLAIN = "gpt-4o-mini"
CHAT = ChatDialect()
RESPONSES = ResponsesDialect()
LOOK = ToolDescription(
    name="look",
    description="Looks at something.",
    parameters={"type": "object", "properties": {"at": {"type": "string"}}},
)


def request(
    *context: ContextMessage,
    dialect: Dialect = CHAT,
    model: str = REASONER,
    tools: tuple[ToolDescription, ...] = (LOOK,),
    options: dict[str, JsonValue] | None = None,
    answer_tokens_max: int | None = 4096,
) -> ModelRequest:
    return ModelRequest(
        invocation=ModelInvocationDescriptor(
            provider="openai", specification=dialect.specification, model=model
        ),
        context=context or (ModelInputMessage(content="hello", seq=1),),
        tools=tools,
        options=options or {},
        answer_tokens_max=answer_tokens_max,
    )


@asynccontextmanager
async def provider_of(
    vendors: Emulator,
    dialect: Dialect = CHAT,
    *,
    key: str | None = None,
    patience: Patience | None = None,
) -> AsyncIterator[OpenAIProvider]:
    client = OpenAIClient(
        api_key=vendors.key if key is None else key,
        base_url=vendors.openai_url,
        patience=patience,
    )
    provider = OpenAIProvider("openai", client, dialect=dialect, models=(REASONER,))
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


async def heard(
    provider: OpenAIProvider, asked: ModelRequest, deltas: list[ModelOutputDelta]
) -> ModelOutputAccumulator:
    """`deltas` also holds what came before an error."""
    async with provider.call_model(asked) as stream:
        async for delta in stream:
            deltas.append(delta)
    return accumulated(deltas)


async def asked_over_http(
    vendors: Emulator, dialect: Dialect, asked: ModelRequest | None = None, **how: Any
) -> ModelOutputAccumulator:
    async with provider_of(vendors, dialect, **how) as provider:
        return await heard(provider, asked or request(dialect=dialect), [])


def parsed(dialect: Dialect, *events: dict[str, Any] | bytes) -> list[ModelOutputDelta]:
    parser = dialect.parser(dialect.render(request(dialect=dialect)))
    lines = [each if isinstance(each, bytes) else orjson.dumps(each) for each in events]
    return [delta for line in lines for delta in parser.feed(line)]


class Talk:
    """A conversation in memory: rendered, admitted by the emulator's rules, answered,
    parsed, remembered, rendered again. Dialect and model may change on the way."""

    def __init__(self, dialect: Dialect, *, model: str = REASONER) -> None:
        self.dialect, self.model = dialect, model
        self.context: list[ContextMessage] = [SystemMessage(instruction="be brief")]
        self._vendors = Emulator(limits=Limits(cached_tokens_min=0))
        self.bodies: list[dict[str, Any]] = []
        self.usages: list[Usage] = []
        self._ids = count(1)

    @property
    def api(self) -> Api:
        return self._vendors.api(
            "chat" if self.dialect.path == "/chat/completions" else "responses"
        )

    def prompt(self, text: str) -> None:
        self.context.append(ModelInputMessage(content=text, seq=self._seq))

    def answers(self, *parts: Part, wire: Wire | None = None) -> ModelOutputAccumulator:
        asked = request(*self.context, dialect=self.dialect, model=self.model)
        rendered = self.dialect.render(asked)
        body: dict[str, Any] = rendered.body
        self.bodies.append(body)
        self.usages.append(self.api.admit(body))
        events = self.api.events(body, Answer(parts=parts), self.usages[-1], wire or Wire())
        parser = self.dialect.parser(rendered)
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
        self.context.append(
            ModelOutputMessage(
                content=entry.content,
                tool_calls=entry.tool_calls,
                invocation=entry.invocation,
                reasoning=entry.reasoning if entry.parts else "",
                parts=entry.parts,
                seq=self._seq,
            )
        )
        return output

    def runs_tools(self, said: str = "seen") -> None:
        last = self.context[-1]
        assert isinstance(last, ModelOutputMessage)
        results = tuple(
            ToolCallResult(
                tool_call_id=call.tool_call_id,
                tool_name=call.tool_name,
                status="success",
                result=said,
                duration=0.1,
                timestamp=datetime(2026, 1, 1, tzinfo=UTC),
            )
            for call in last.tool_calls
        )
        self.context.append(ToolResultsMessage(results=results, seq=self._seq))

    @property
    def _seq(self) -> int:
        return len(self.context) + 1
