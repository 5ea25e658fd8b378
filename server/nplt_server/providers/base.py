"""The provider port: whoever can answer a turn.

`call_model` is an async context manager of deltas, so that leaving it, by
whatever way, closes the provider's stream at once. A provider reads the
request and never writes anything back. It fails with a `ProviderError`; every
other exception is a bug of the provider and ends the turn as `failed` too.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

from nplt_protocol.json_values import JsonValue
from nplt_server.context import ContextMessage
from nplt_server.deltas import ModelOutputDelta
from nplt_server.tools.base import ToolDescription
from nplt_storage.facts.entries import ModelInvocationDescriptor


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    invocation: ModelInvocationDescriptor
    context: Sequence[ContextMessage]
    tools: tuple[ToolDescription, ...] = ()
    options: Mapping[str, JsonValue] = field(default_factory=dict)
    """Of the prompt: `temperature`, `output_tokens`, `effort`; whoever can't is silent."""
    answer_tokens_max: int | None = None
    """How long the answer may be, unless the options say less."""


class Provider(Protocol):
    @property
    def id(self) -> str: ...

    @property
    def specification(self) -> str:
        """The wire format spoken behind the port, e.g. `openai-chat`."""
        ...

    @property
    def models(self) -> tuple[str, ...]: ...

    def call_model(
        self, request: ModelRequest
    ) -> AbstractAsyncContextManager[AsyncIterator[ModelOutputDelta]]: ...

    async def aclose(self) -> None:
        """When the server stops: no call runs any more."""
        ...
