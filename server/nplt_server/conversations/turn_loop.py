"""The turn loop: one prompt until its final answer, bounded in calls and in time.

    prompt → context → model → deltas → one output entry → tools → results → again

`run_turn` always ends with the turn's end on disk, whatever happens: an
answer, what there was of a cut answer, or a fault that says why there is none.
Cancelling is the turn's own scope, so the provider's stream is closed at once
and no further call is made; what was said until then is kept, as interrupted.
Only a turn that waits for people can be left where it stands (`TurnLeft`), to go
on after the server was started anew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from nplt_protocol.json_values import JsonObject
from nplt_server.accumulator import usage_as_json
from nplt_server.conversations.listening import Listening
from nplt_server.conversations.tool_step import run_tools, write_results
from nplt_server.conversations.turn import Turn, TurnDesk, TurnLeft, TurnOutcome
from nplt_server.errors import (
    ProviderUnavailable,
    TooManySteps,
    TurnTooLong,
    as_request_error,
    internal_error,
)
from nplt_storage.errors import BadEntry, StorageError
from nplt_storage.facts.entries import (
    Entry,
    FaultEntry,
    ModelInvocationDescriptor,
    ModelOutputEntry,
    SentContext,
)

log = logging.getLogger(__name__)


async def run_turn(turn: Turn, desk: TurnDesk) -> TurnOutcome:
    outcome: TurnOutcome | None = None
    too_long = TurnTooLong(desk.limits.turn_seconds_max)
    with turn.cancellable():
        try:
            with turn.clock.wind_up(desk.limits.turn_seconds_max) as in_time:
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
        except Exception as error:
            if isinstance(error, StorageError) and not isinstance(error, BadEntry):
                raise  # the record takes nothing now, its end neither
            outcome = await _end_early(turn, desk, "failed", error=_told(turn, error))
    if outcome is None and turn.is_left:
        raise TurnLeft
    if outcome is None:
        cancelled: JsonObject = {"code": "cancelled", "message": turn.cancel_reason}
        outcome = await _end_early(turn, desk, "interrupted", error=cancelled)
    return outcome


async def _converse(turn: Turn, desk: TurnDesk, *, why_stopped: Callable[[], str]) -> TurnOutcome:
    listening = Listening(turn, desk)
    for call in range(turn.call, desk.limits.steps_max):
        turn.call = call
        desk.voice.begin_call(call)
        if turn.has_answer:  # from before the server was started anew
            turn.has_answer = False
        else:
            with turn.clock.stopped():
                await desk.sit_down()
            await listening.listen()
            answer = await _write_output(turn, desk)
            if not answer.tool_calls:
                return TurnOutcome(state="completed", seq=answer.seq, usage={**turn.usage})
            turn.results = {}
        await run_tools(turn, desk, why_stopped=why_stopped)
    raise TooManySteps(desk.limits.steps_max)


async def _write_output(turn: Turn, desk: TurnDesk) -> ModelOutputEntry:
    assert turn.output is not None
    draft = turn.output.entry(
        turn_id=turn.turn_id,
        call=turn.call,
        invocation=_answering(turn, desk),
        new_call_id=desk.new_call_id,
    )
    answer = await desk.state.append_model_output(replace(draft, sent=_sent(turn)))
    turn.output = None
    return answer


async def _end_early(
    turn: Turn, desk: TurnDesk, state: Literal["interrupted", "failed"], *, error: JsonObject
) -> TurnOutcome:
    """No call is left without its result, and what was said is kept."""
    code, reason = str(error["code"]), str(error["message"])
    await write_results(turn, desk, why_skipped=reason)
    output, turn.output = turn.output, None
    entry: Entry
    if output is not None and output.text:
        cut = output.cut_entry(
            turn_id=turn.turn_id,
            call=turn.call,
            invocation=_answering(turn, desk),
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
            invocation=None if usage is None else _answering(turn, desk),
            usage=usage,
            of_request=turn.of_request,
        )
        entry = await desk.write(fault)
    return TurnOutcome(state=state, seq=entry.seq, usage={**turn.usage}, error=error)


def _told(turn: Turn, error: Exception) -> JsonObject:
    known = as_request_error(error)
    if known is None:
        log.error("turn %s failed", turn.turn_id, exc_info=error)
        known = internal_error()
    told: JsonObject = {"code": known.code, "message": known.message}
    if isinstance(error, ProviderUnavailable) and error.retry_after is not None:
        told["retry_after"] = round(error.retry_after, 3)
    return told


def _answering(turn: Turn, desk: TurnDesk) -> ModelInvocationDescriptor:
    return desk.respondent(turn.model).invocation


def _sent(turn: Turn) -> SentContext | None:
    return turn.shown.sent if turn.shown is not None else None
