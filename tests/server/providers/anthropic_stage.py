"""A conversation with the emulated Claude, in memory: rendered, admitted, answered, parsed,
remembered, rendered again. The rules and the caches are the emulator's; only HTTP is not there."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import count
from typing import Any

import orjson
from tests.server.providers.compiler_contexts import message_of
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
from nplt_server.errors import ProviderError
from nplt_server.providers import (
    LlmRequest,
    ModelOutputDelta,
    Patience,
    ProviderClient,
    Stopped,
    ToolCallPiece,
)
from nplt_server.providers.accumulator import ModelOutputAccumulator
from nplt_server.providers.anthropic import MessageParser, MessagesApi, MessagesClient
from nplt_server.providers.client import VendorProvider
from nplt_server.providers.compiler import ContextCompiler, VendorRules
from nplt_server.providers.vendor_api import RenderedRequest
from nplt_server.tools import ToolDescription
from nplt_storage.entries import ModelInvocationDescriptor, ModelOutputEntry, ToolCallResult

Json = dict[str, Any]

BUDGETED = "claude-opus-4-5"  # thinks on a budget
ADAPTIVE = "claude-opus-5-5"  # thinks as it likes
LOOK = ToolDescription(
    name="look",
    description="Looks at something.",
    parameters={"type": "object", "properties": {"at": {"type": "string"}}},
)
THEN = datetime(2026, 1, 1, tzinfo=UTC)


def claude(model: str = BUDGETED) -> ModelInvocationDescriptor:
    return ModelInvocationDescriptor(
        provider="anthropic", specification="anthropic-messages", model=model
    )


def request(
    *context: ContextMessage,
    model: str = BUDGETED,
    tools: tuple[ToolDescription, ...] = (LOOK,),
    options: dict[str, JsonValue] | None = None,
    answer_tokens_max: int | None = 4096,
) -> LlmRequest:
    return LlmRequest(
        invocation=claude(model),
        context=context or (ModelInputMessage(content="hello", seq=1),),
        tools=tools,
        options=options or {},
        answer_tokens_max=answer_tokens_max,
    )


def anthropic_provider(
    *,
    models: tuple[str, ...],
    key: str,
    base_url: str | None = None,
    patience: Patience | None = None,
) -> VendorProvider:
    client = MessagesClient(api_key=key, base_url=base_url, patience=patience)
    return VendorProvider("anthropic", client, apis=(MessagesApi(),), models=models)


def rendered(asked: LlmRequest) -> RenderedRequest:
    compiled = ContextCompiler(VendorRules()).compile(asked.context, origin=asked.invocation)
    return MessagesApi().render(asked, compiled)


def body_of(asked: LlmRequest) -> Json:
    return rendered(asked).body


def accumulated(deltas: Sequence[ModelOutputDelta]) -> ModelOutputAccumulator:
    output = ModelOutputAccumulator(answer_bytes_max=10**6)
    for delta in deltas:
        output.apply(delta)
    return output


def entry_of(
    output: ModelOutputAccumulator, invocation: ModelInvocationDescriptor, numbers: count[int]
) -> ModelOutputEntry:
    return output.entry(
        turn_id="t", call=1, invocation=invocation, new_call_id=lambda: f"own-{next(numbers)}"
    )


class Talk:
    """Every call keeps what was sent and what it cost."""

    def __init__(
        self,
        model: str = BUDGETED,
        *,
        system: str = "",
        tools: tuple[ToolDescription, ...] = (LOOK,),
        options: dict[str, JsonValue] | None = None,
        api: Api | None = None,
    ) -> None:
        self.model, self.tools, self.options = model, tools, options
        self.context: list[ContextMessage] = [SystemMessage(instruction=system, seq=1)]
        self.api = api or Emulator(limits=Limits(cached_tokens_min=0)).api("messages")
        self.bodies: list[Json] = []
        self.usages: list[Usage] = []
        self._numbers = count(1)

    def prompt(self, text: str) -> None:
        self.context.append(ModelInputMessage(content=text, seq=self._seq))

    def answers(self, *parts: Part) -> ModelOutputMessage:
        """The model is asked, says this, and it is remembered."""
        asked = request(*self.context, model=self.model, tools=self.tools, options=self.options)
        body = body_of(asked)
        usage = self.api.admit(body)
        self.bodies.append(body)
        self.usages.append(usage)
        parser = MessageParser()
        events = self.api.events(body, Answer(parts=parts), usage, Wire())
        output = accumulated([d for e in events for d in parser.feed(orjson.dumps(e.data))])
        entry = entry_of(output, asked.invocation, self._numbers)
        message = message_of(entry, self._seq)
        self.context.append(message)
        return message

    def overhears(self, text: str, *, calls: int = 0) -> None:
        """Another model answers in this conversation, with so many rounds of tools."""
        other = ModelInvocationDescriptor(provider="o", specification="openai-chat", model="g")
        for _ in range(calls):
            output = accumulated([*_a_call()])
            entry = entry_of(output, other, self._numbers)
            self.context.append(
                ModelOutputMessage(
                    content="", tool_calls=entry.tool_calls, invocation=other, seq=self._seq
                )
            )
            self.runs_tools()
        self.context.append(ModelOutputMessage(content=text, invocation=other, seq=self._seq))

    def runs_tools(self, text: str = "seen") -> None:
        last = self.context[-1]
        assert isinstance(last, ModelOutputMessage)
        results = tuple(result(call.tool_call_id, text) for call in last.tool_calls)
        self.context.append(ToolResultsMessage(results=results, seq=self._seq))

    @property
    def _seq(self) -> int:
        return len(self.context) + 1


def result(call_id: str, text: str = "seen", **fields: Any) -> ToolCallResult:
    known: Json = {"tool_name": "look", "status": "success", "duration": 0.1, "timestamp": THEN}
    return ToolCallResult(tool_call_id=call_id, result=text, **{**known, **fields})


async def deltas_of(provider: ProviderClient, asked: LlmRequest) -> list[ModelOutputDelta]:
    async with provider.call_model(asked) as deltas:
        return [delta async for delta in deltas]


async def received_until_failure(
    provider: ProviderClient, asked: LlmRequest
) -> tuple[list[ModelOutputDelta], ProviderError | None]:
    text: list[ModelOutputDelta] = []
    try:
        async with provider.call_model(asked) as deltas:
            async for delta in deltas:
                text.append(delta)
    except ProviderError as error:
        return text, error
    return text, None


def _a_call() -> Sequence[ModelOutputDelta]:
    return (
        ToolCallPiece(index=0, tool_name="look", arguments="{}"),
        Stopped(reason="tool_calls"),
    )
