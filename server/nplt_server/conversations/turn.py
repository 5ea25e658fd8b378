"""The turn loop: one prompt until its final answer, bounded in calls and in time.

    prompt → context → model → deltas → one output entry → tools → results → again

`run_turn` always ends with the turn's end on disk, whatever happens: an
answer, what there was of a cut answer, or a fault that says why there is none.
Cancelling is the turn's own scope, so the provider's stream is closed at once
and no further call is made; what was said until then is kept, as interrupted.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

import anyio

from nplt_protocol.json_values import JsonObject
from nplt_server import debug
from nplt_server.accumulator import ModelOutputAccumulator, usage_as_json
from nplt_server.agent_state import AgentState
from nplt_server.clean_text import clean_text
from nplt_server.context.views import ContextView
from nplt_server.conversations.voice import Voice
from nplt_server.deltas import (
    ModelOutputDelta,
    ReasoningPiece,
    TextPiece,
    ToolCallPiece,
    UsageReport,
)
from nplt_server.errors import (
    AnswerCut,
    ProviderError,
    ProviderRefused,
    TooManySteps,
    TurnTooLong,
)
from nplt_server.providers.base import ModelRequest, Provider
from nplt_server.providers.guarding import guarded
from nplt_server.tools.base import ToolHost
from nplt_server.tools.runner import ToolRunner
from nplt_storage.facts.entries import (
    Entry,
    FaultEntry,
    ModelInputEntry,
    ModelInvocationDescriptor,
    ModelOutputEntry,
    SentContext,
    ToolResultsEntry,
)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnDesk:
    """What a turn works with, handed to it by its conversation."""

    state: AgentState
    provider: Provider
    invocation: ModelInvocationDescriptor
    tools: ToolRunner
    host: ToolHost
    voice: Voice
    limits: TurnLimits
    answer_tokens_max: int
    new_call_id: Callable[[], str]
    prepare: Callable[[], Awaitable[ContextView]]
    """What the next call is shown."""
    billed: Callable[[ContextView, UsageReport], None]
    """Hears what a provider says that it used for what it was shown."""
    write: WriteEntry
    """On disk when it returns; not to be cancelled half way."""
    keep_blob: Callable[[bytes], Awaitable[BlobReference]]


@dataclass(slots=True, kw_only=True)
class Turn:
    prompt: ModelInputEntry
    model: str = ""
    """Chosen when the turn starts, and fixed inside it."""
    cancel_reason: str = "cancelled"
    cancel_called: bool = False
    call: int = 0
    output: ModelOutputAccumulator | None = None
    shown: ContextView | None = None
    """What the running call was shown."""
    results: dict[str, ToolCallResult] = field(default_factory=dict)
    usage: dict[str, int] = field(default_factory=dict)
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

    def cancellable(self) -> anyio.CancelScope:
        """A fresh scope that `cancel` reaches, also when it came before."""
        self._scope = anyio.CancelScope()
        if self.cancel_called:
            self._scope.cancel()
        return self._scope


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnOutcome:
    state: TurnState
    seq: int
    usage: JsonObject
    error: JsonObject | None = None


async def run_turn(turn: Turn, desk: TurnDesk) -> TurnOutcome:
    outcome: TurnOutcome | None = None
    too_long = TurnTooLong(desk.limits.turn_seconds_max)
    with turn.cancellable():
        try:
            with anyio.move_on_after(desk.limits.turn_seconds_max) as in_time:
                # Tools are told why they are stopped in the moment they are stopped.
                outcome = await _converse(
                    turn,
                    desk,
                    why_stopped=lambda: (
                        str(too_long)
                        if in_time.cancel_called and not turn.cancel_called
                        else turn.cancel_reason
                    ),
                )
            if in_time.cancelled_caught:
                raise too_long
        except ProviderError as error:
            outcome = await _end_early(turn, desk, "failed", error.code, str(error))
    if outcome is None:
        outcome = await _end_early(turn, desk, "interrupted", "cancelled", turn.cancel_reason)
    return outcome


async def _converse(turn: Turn, desk: TurnDesk, *, why_stopped: Callable[[], str]) -> TurnOutcome:
    for call in range(desk.limits.steps_max):
        turn.call = call
        desk.voice.begin_call(call)
        await _listen(turn, desk)
        answer = await _write_output(turn, desk)
        if not answer.tool_calls:
            return TurnOutcome(state="completed", seq=answer.seq, usage={**turn.usage})
        turn.results = {}
        await desk.tools.run_all(
            answer.tool_calls,
            started=desk.voice.tool_started,
            finished=_collect(turn, desk),
            host=desk.host,
            cancel_reason=why_stopped,
        )
        await _write_results(turn, desk, why_skipped=why_stopped())
    raise TooManySteps(desk.limits.steps_max)


async def _listen(turn: Turn, desk: TurnDesk) -> None:
    """One call of the model: its deltas go to the accumulator and to everyone."""
    turn.shown = await desk.prepare()
    output = turn.output = ModelOutputAccumulator(answer_bytes_max=desk.limits.answer_bytes_max)
    request = ModelRequest(
        invocation=desk.invocation,
        context=turn.shown.messages,
        tools=turn.shown.frame.offer.descriptions,
        options=turn.prompt.options,
        answer_tokens_max=desk.answer_tokens_max,
    )
    try:
        with (
            anyio.move_on_after(desk.limits.call_seconds_max) as in_time,
            guarded(desk.invocation.provider),
        ):
            async with desk.provider.call_model(request) as deltas:
                async for delta in deltas:
                    _hear(desk, output, delta)
    finally:
        desk.voice.flush()
        _add_usage(turn, desk, output)
        if debug.provider.on:
            _tell_debug(turn, desk, output)
    if in_time.cancelled_caught:
        seconds = desk.limits.call_seconds_max
        raise ProviderRefused(f"the model did not finish within {seconds:g} s")
    if output.stop_reason is None:
        raise AnswerCut
    if output.is_empty:
        raise ProviderRefused("the model gave an empty answer")


def _hear(desk: TurnDesk, output: ModelOutputAccumulator, delta: ModelOutputDelta) -> None:
    """Remembered first, said second: what was said is always in the record."""
    match delta:
        case TextPiece() | ReasoningPiece():
            delta = replace(delta, text=clean_text(delta.text))
        case ToolCallPiece():
            delta = replace(
                delta,
                tool_name=clean_text(delta.tool_name),
                arguments=clean_text(delta.arguments),
            )
        case _:
            pass
    output.apply(delta)
    match delta:
        case TextPiece(text=text):
            desk.voice.say(text)
        case ReasoningPiece(text=text):
            desk.voice.reason(text)
        case _:
            pass


async def _write_output(turn: Turn, desk: TurnDesk) -> ModelOutputEntry:
    assert turn.output is not None
    draft = turn.output.entry(
        turn_id=turn.turn_id,
        call=turn.call,
        invocation=desk.invocation,
        new_call_id=desk.new_call_id,
    )
    turn.output = None
    return await desk.state.append_model_output(replace(draft, sent=_sent(turn)))


async def _write_results(turn: Turn, desk: TurnDesk, *, why_skipped: str) -> None:
    calls = desk.state.history.open_calls(turn.turn_id)
    if not calls:
        return
    results = tuple(
        turn.results.get(call.tool_call_id) or desk.tools.skipped(call, why_skipped)
        for call in calls
    )
    kept = tuple([await _keep_whole(result, desk) for result in results])
    draft = ToolResultsEntry(turn_id=turn.turn_id, call=turn.call, results=kept)
    await desk.state.append_tool_results(draft)


async def _keep_whole(result: ToolCallResult, desk: TurnDesk) -> ToolCallResult:
    """A giant result goes beside the record; its beginning stands in it."""
    bytes_max = desk.limits.result_bytes_max
    if len(result.result) * 4 <= bytes_max:
        return result
    data = result.result.encode()
    if len(data) <= bytes_max:
        return result
    beginning = data[:bytes_max].decode(errors="ignore")
    blob: BlobReference | None = None
    with anyio.CancelScope(shield=True):
        blob = await desk.keep_blob(data)
    return replace(result, result=beginning, blob=blob)


async def _end_early(
    turn: Turn, desk: TurnDesk, state: Literal["interrupted", "failed"], code: str, reason: str
) -> TurnOutcome:
    """No call is left without its result, and what was said is kept."""
    error: JsonObject = {"code": code, "message": reason}
    await _write_results(turn, desk, why_skipped=reason)
    output, turn.output = turn.output, None
    entry: Entry
    if output is not None and output.text:
        cut = output.cut_entry(
            turn_id=turn.turn_id,
            call=turn.call,
            invocation=desk.invocation,
            state=state,
            error=error,
        )
        entry = await desk.state.append_model_output(replace(cut, sent=_sent(turn)))
    else:
        usage = None if output is None else usage_as_json(output.usage)
        fault = FaultEntry(
            turn_id=turn.turn_id,
            content=reason,
            code=code,
            state=state,
            invocation=None if usage is None else desk.invocation,
            usage=usage,
        )
        entry = await desk.write(fault)
    return TurnOutcome(state=state, seq=entry.seq, usage={**turn.usage}, error=error)


def _collect(turn: Turn, desk: TurnDesk) -> Callable[[ToolCallResult], None]:
    def finished(result: ToolCallResult) -> None:
        debug.tools(
            "ran",
            turn=turn.turn_id,
            tool=result.tool_name,
            status=result.status,
            seconds=result.duration,
            characters=len(result.result),
        )
        turn.results[result.tool_call_id] = result
        desk.voice.tool_finished(result)

    return finished


def _tell_debug(turn: Turn, desk: TurnDesk, output: ModelOutputAccumulator) -> None:
    debug.provider(
        "call ended",
        turn=turn.turn_id,
        call=turn.call,
        provider=desk.invocation.provider,
        model=desk.invocation.model,
        stop=output.stop_reason,
        characters=output.text_length,
        **(output.usage.as_json() if output.usage else {}),
    )


def _sent(turn: Turn) -> SentContext | None:
    return turn.shown.sent if turn.shown is not None else None


def _add_usage(turn: Turn, desk: TurnDesk, output: ModelOutputAccumulator) -> None:
    """Once per call: what a provider reports later holds, and includes what it said before."""
    if output.usage is None:
        return
    for name, tokens in output.usage.as_json().items():
        turn.usage[name] = turn.usage.get(name, 0) + tokens
    if turn.shown is not None:
        desk.billed(turn.shown, output.usage)
