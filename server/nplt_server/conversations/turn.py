"""A turn: one prompt until its final answer. What it is, and what it works with.

turn_loop   runs it            listening   has a model answer
desk        lays out its desk  tool_step   runs the tools of an answer
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

import anyio

from nplt_protocol.json_values import JsonObject
from nplt_server.accumulator import ModelOutputAccumulator
from nplt_server.agent_state import AgentState
from nplt_server.context.views import ContextView
from nplt_server.conversations.quarantine import Quarantine
from nplt_server.conversations.turn_clock import TurnClock
from nplt_server.conversations.voice import Voice
from nplt_server.deltas import UsageReport
from nplt_server.providers.base import Provider
from nplt_server.providers.metrics import ModelMetrics
from nplt_server.providers.model_facts import CallRoom
from nplt_server.providers.retrying import RetryPolicy
from nplt_server.tools.asking import Asker
from nplt_server.tools.base import ToolHost
from nplt_server.tools.runner import ToolRunner
from nplt_storage.facts.entries import Entry, ModelInputEntry, ModelInvocationDescriptor
from nplt_storage.facts.tool_calls import BlobReference, ToolCallResult

TurnState = Literal["completed", "interrupted", "failed"]
WriteEntry: TypeAlias = Callable[[Entry], Awaitable[Entry]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnLimits:
    steps_max: int = 10
    answer_bytes_max: int = 8 * 1024 * 1024
    call_seconds_max: float = 300.0
    turn_seconds_max: float = 1_800.0
    result_bytes_max: int = 32 * 1024
    """Of a tool's result in the record; the whole of a larger one is kept beside it."""


class PrepareContext(Protocol):
    def __call__(self, *, tokens_max: int | None) -> Awaitable[ContextView]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Respondent:
    """The model that answers, and what it is shown."""

    model: str
    provider: Provider
    invocation: ModelInvocationDescriptor
    metrics: ModelMetrics
    answer_tokens_max: int
    prepare: PrepareContext
    """What the next call is shown, of so many tokens at the most."""
    billed: Callable[[ContextView, UsageReport], None]
    """Hears what a provider says that it used for what it was shown."""
    has_window: Callable[[int], bool]
    """Hears what its provider says that fits. False: nothing new."""
    takes_no_more: Callable[[CallRoom], None]
    """Hears what was taken at last, since more was refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallingRules:
    """What may be done when a call fails before it is answered."""

    retries: RetryPolicy
    instead_of: Callable[[Sequence[str], str | None], str | None]
    """The next model, after those, not one of that provider."""
    quarantine: Quarantine
    forget_thoughts: Callable[[str], Awaitable[None]]
    """Begins an epoch for that model, in which it is not shown what it sealed itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnDesk:
    """What a turn works with, handed to it by its conversation."""

    state: AgentState
    respondent: Callable[[str], Respondent]
    """The model of that name."""
    rules: CallingRules
    tools: ToolRunner
    host: ToolHost
    asker: Asker
    sit_down: Callable[[], Awaitable[None]]
    """Before a model is called: it stood up while it waited for people."""
    voice: Voice
    limits: TurnLimits
    new_call_id: Callable[[], str]
    write: WriteEntry
    """On disk when it returns; not to be cancelled half way."""
    keep_blob: Callable[[bytes], Awaitable[BlobReference]]


@dataclass(slots=True, kw_only=True)
class Turn:
    prompt: ModelInputEntry
    model: str = ""
    """Chosen when the turn starts; fixed once anybody has begun to answer."""
    cancel_reason: str = "cancelled"
    cancel_called: bool = False
    call: int = 0
    output: ModelOutputAccumulator | None = None
    shown: ContextView | None = None
    """What the running call was shown."""
    of_request: bool = False
    """It fails because what was sent is not taken, and nobody said which part of it."""
    results: dict[str, ToolCallResult] = field(default_factory=dict)
    usage: dict[str, int] = field(default_factory=dict)
    clock: TurnClock = field(default_factory=TurnClock)
    has_answer: bool = False
    """It is taken up again where it waited for people: call `call` is answered, and of
    its tools `results` are known."""
    is_left: bool = False
    """The server stops, and the turn goes on after the next start."""
    _scope: anyio.CancelScope | None = None

    @property
    def turn_id(self) -> str:
        assert self.prompt.turn_id is not None
        return self.prompt.turn_id

    def cancel(self, reason: str) -> None:
        self.cancel_called = True
        self.cancel_reason = reason
        if self._scope is not None:
            self._scope.cancel()

    def leave(self, reason: str) -> None:
        """Nothing more is written or said of it in this life of the server."""
        self.is_left = True
        self.cancel(reason)

    def cancellable(self) -> anyio.CancelScope:
        """A fresh scope that `cancel` reaches, also when it came before."""
        self._scope = anyio.CancelScope()
        if self.cancel_called:
            self._scope.cancel()
        return self._scope


class TurnLeft(Exception):
    """The turn has not ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnOutcome:
    state: TurnState
    seq: int
    usage: JsonObject
    error: JsonObject | None = None
