"""The tools of one answer: its calls are run, and their results written as one entry.

A turn that is taken up again in the middle of such a step brings the results it
knows along; the other calls are still to be asked about.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import anyio

from nplt_server import debug
from nplt_server.conversations.turn import Turn, TurnDesk
from nplt_storage.facts.entries import ToolResultsEntry
from nplt_storage.facts.tool_calls import BlobReference, ToolCallResult


async def run_tools(turn: Turn, desk: TurnDesk, *, why_stopped: Callable[[], str]) -> None:
    calls = desk.state.history.open_calls(turn.turn_id)
    await desk.tools.run_all(
        tuple(call for call in calls if call.tool_call_id not in turn.results),
        started=desk.voice.tool_started,
        finished=_collect(turn, desk),
        host=desk.host,
        asker=desk.asker,
        cancel_reason=why_stopped,
    )
    await write_results(turn, desk, why_skipped=why_stopped())


async def write_results(turn: Turn, desk: TurnDesk, *, why_skipped: str) -> None:
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


def _collect(turn: Turn, desk: TurnDesk) -> Callable[[ToolCallResult], None]:
    def finished(result: ToolCallResult) -> None:
        if turn.is_left:
            return  # it was not run, and will be asked about again
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
